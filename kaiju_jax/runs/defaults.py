"""Reads what comes with a model: chat format, and settings of sampling."""

import os
import pathlib
from typing import Any
from typing import NamedTuple

from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.requests import sampling as sampling_lib
from kaiju_jax.interchange import generation as generation_lib
from kaiju_jax.interchange.templates import folder as folder_lib
from kaiju_jax.runs import load

# How a server draws chats where the folder of another's model is silent
# (results/smollm2.md).
CHATS = {
  'temperature': 0.8,
  'min_p': 0.1,
  'frequency_penalty': 0.5,
  'dry_multiplier': 0.8,
}


class Defaults(NamedTuple):
  """What comes with a model."""

  # Its chat format; None for a model that only continues text.
  format: chat.Format | None
  # What differs from the folder's chat template, in words.
  adaptations: tuple[str, ...] = ()
  # The settings of sampling and the tokens that end a reply.
  generation: generation_lib.Generation = generation_lib.NONE
  # The chat format with reasoning; None where nothing turns it on.
  thinking: chat.Format | None = None
  is_ours: bool = True  # Whether this project trained it.

  @property
  def chat_sampling(self) -> dict[str, Any]:
    """The settings by which a server draws chats."""
    return self.generation.sampling or ({} if self.is_ours else CHATS)

  def notes(self) -> list[str]:
    """Returns what the user should know before the first request, in lines."""
    lines = [f'Chat template: {note}.' for note in self.adaptations]
    if self.generation.sampling:
      lines.append(f'Sampling: {describe(self.generation.sampling)}.')
    if self.generation.ignored:
      ignored = ', '.join(self.generation.ignored)
      lines.append(f'{generation_lib.FILE}: ignored: {ignored}.')
    return lines


def read(
  loaded: load.Loaded,
  tokenizer: tokenizer_lib.Tokenizer,
  template: str | os.PathLike[str] = '',
  keeps_thoughts: bool = False,
) -> Defaults:
  """Reads what comes with a model.

  Args:
    loaded: the model.
    tokenizer: its tokenizer.
    template: the path of a Jinja template instead of the folder's; '' for the
      folder's.
    keeps_thoughts: whether later prompts hold the reasoning of replies.

  Raises:
    ImportError: the folder has a template, and jinja2 is not installed.
    OSError: a file cannot be read.
    ValueError: a template needs a Hugging Face folder; a setting is wrong; or
      as `templates.folder.read` and `data.chat.format_of`.
  """
  if not loaded.chats:
    if template:
      raise ValueError(
        f'template={template}: only a Hugging Face folder with a tokenizer.json'
        f' takes a chat template; {loaded.origin} has our own format.'
      )
    return Defaults(chat.format_of(tokenizer))
  generation = read_generation(loaded, tokenizer)
  folder = pathlib.Path(loaded.chats)
  text = pathlib.Path(template).read_text() if template else None
  found = folder_lib.read(
    folder, tokenizer, text, keeps_thoughts=keeps_thoughts
  )
  if found is not None:
    return Defaults(
      found.format,
      found.adaptations,
      generation,
      found.thinking,
      loaded.is_ours,
    )
  # A model that was trained elsewhere has never seen our own format.
  written = chat.format_of(tokenizer) if loaded.is_ours else None
  return Defaults(written, (), generation, None, loaded.is_ours)


def read_generation(
  loaded: load.Loaded, tokenizer: tokenizer_lib.Tokenizer
) -> generation_lib.Generation:
  """Reads a model's settings of sampling and the tokens that end a reply.

  Raises:
    OSError: a file cannot be read.
    ValueError: a setting is wrong.
  """
  if not loaded.chats:
    return generation_lib.NONE
  folder = pathlib.Path(loaded.chats)
  found = generation_lib.read(folder, tokenizer)
  try:
    sampling_lib.Sampling(**found.sampling)
  except ValueError as error:
    raise ValueError(f'{folder / generation_lib.FILE}: {error}') from error
  for token in found.ends:
    if token >= loaded.config.vocab_size:
      raise ValueError(
        f'{folder / generation_lib.FILE}: eos_token_id={token}: must be a token'
        f' of the model, 0…{loaded.config.vocab_size - 1}.'
      )
  return found


def describe(sampling: dict[str, Any]) -> str:
  """Returns settings of sampling in words."""
  return ', '.join(
    f'{name} {value if isinstance(value, list) else format(value, "g")}'
    for name, value in sampling.items()
  )
