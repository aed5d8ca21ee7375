"""Reads the chat format of a folder of Hugging Face files.

    chat_template.jinja      the template; otherwise in tokenizer_config.json
    tokenizer_config.json    names of the tokens that the template writes
    generation_config.json   the tokens that end a reply (`generation`)

The template becomes a `chat.Format` (see `glue`), whose prompts are the
template's own but for the adaptations, which `ChatFormat.adaptations` lists.
"""

import dataclasses
import datetime
import pathlib
from typing import Any
from typing import NamedTuple

from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.interchange import generation
from kaiju_jax.interchange.gguf import folder as gguf_folder
from kaiju_jax.interchange.templates import adaptations
from kaiju_jax.interchange.templates import controls as controls_lib
from kaiju_jax.interchange.templates import glue as glue_lib
from kaiju_jax.interchange.templates import pieces
from kaiju_jax.interchange.templates import rendering
from kaiju_jax.interchange.templates import steps as steps_lib

TOKENIZER = 'tokenizer.json'


class ChatFormat(NamedTuple):
  """The chat format of a folder."""

  # The format; without reasoning, if that can be turned off.
  format: chat.Format
  # What differs from the folder's template, in words.
  adaptations: tuple[str, ...]
  # The format with reasoning; None where nothing turns it on.
  thinking: chat.Format | None
  glue: steps_lib.Glue  # The format as text.


def read(
  folder: pathlib.Path,
  tokenizer: tokenizer_lib.Tokenizer,
  template: str | None = None,
  now: datetime.datetime | None = None,
  keeps_thoughts: bool = False,
) -> ChatFormat | None:
  """Returns the chat format of a folder; None if it has no template.

  Args:
    folder: the folder.
    tokenizer: its tokenizer.
    template: a Jinja template instead of the folder's.
    now: the time that the template's clock shows; by default the present.
    keeps_thoughts: whether later prompts hold the reasoning of replies.

  Raises:
    ImportError: jinja2 is not installed.
    OSError: a file cannot be read.
    ValueError: a file is not as expected; or see `glue.find`.
  """
  folder = gguf_folder.small_files(folder)
  settings = generation.read_object(folder / generation.SETTINGS)
  found = template or _template(folder, settings)
  if found is None:
    return None
  marks = ''.join(adaptations.THOUGHT)  # A template may write the first alone.
  has_thought = any(one in found for one in adaptations.THOUGHT)
  controls = controls_lib.Controls(
    folder / TOKENIZER, found + marks if has_thought else found, tokenizer
  )
  variables = _variables(folder, settings)
  now = now or datetime.datetime.now()
  ends = generation.read(folder, tokenizer).ends
  thought = None
  if controls.tokens.keys() >= set(adaptations.THOUGHT):
    thought = chat.Thought(
      *(controls.tokens[one] for one in adaptations.THOUGHT)
    )

  def renderer_of(thinks: bool, now=now) -> rendering.Renderer:
    return rendering.Renderer(
      found, variables | {'enable_thinking': thinks}, now
    )

  def made(thinks: bool) -> tuple[chat.Format, list[str], steps_lib.Glue]:
    # Reasoning without tokens of its own cannot be cut out again.
    keeps = keeps_thoughts or thought is None
    renderer = renderer_of(thinks)
    literals = renderer.find_literals()
    glue = glue_lib.find(renderer.render, keeps, literals, controls.special)
    bos = variables.get('bos_token', '')
    format = pieces.format_of(
      glue, controls, tokenizer, bos, ends, thought, keeps_thoughts
    )
    if not (thinks or format.opens_thought):
      format = dataclasses.replace(format, keeps_thoughts=False)
    apart = pieces.name_differences(format, glue, controls)
    return format, [*glue.adaptations, *apart], glue

  format, notes, glue = made(False)
  plain = _rendered(renderer_of(False))
  if 'strftime_now' in found:  # The only clock that the sandbox has.
    later = renderer_of(
      False, now + datetime.timedelta(days=40, hours=5, minutes=7)
    )
    if plain != _rendered(later):
      notes.append(f'the clock stays at {now:%Y-%m-%d}')
  thinking = None
  if thought and plain != _rendered(renderer_of(True)):
    thinking, more, _ = made(True)
    notes += [f'with reasoning, {one}' for one in more if one not in notes]
  return ChatFormat(format, tuple(notes), thinking, glue)


def _variables(
  folder: pathlib.Path, settings: dict[str, Any]
) -> dict[str, Any]:
  """Returns the names of tokens that `transformers` gives a template."""
  if 'added_tokens_decoder' not in settings:  # An old folder.
    settings = {**settings, **generation.read_object(folder / generation.NAMES)}
  found = {
    name: generation.name_of(value)
    for name, value in settings.items()
    if name.endswith('_token') and value and isinstance(value, str | dict)
  }
  for name in 'additional_special_tokens', 'extra_special_tokens':
    several = settings.get(name)
    if isinstance(several, list):
      found['additional_special_tokens'] = [*map(generation.name_of, several)]
    elif isinstance(several, dict):
      found |= {key: generation.name_of(x) for key, x in several.items()}
  return found


def _rendered(renderer: rendering.Renderer) -> list[str | rendering.Refusal]:
  user = (('user', 'a'),)
  return renderer.render(
    [rendering.Chat(user), rendering.Chat((('system', 'b'), *user))]
  )


def _template(folder: pathlib.Path, settings: dict[str, Any]) -> str | None:
  if (folder / generation.TEMPLATE).is_file():
    return (folder / generation.TEMPLATE).read_text()
  found = settings.get('chat_template')
  if isinstance(found, list):  # Several, by name.
    named = {
      one.get('name'): one.get('template')
      for one in found
      if isinstance(one, dict)
    }
    found = named.get('default')
  if found is not None and not isinstance(found, str):
    raise ValueError(
      f'{folder / generation.SETTINGS}: chat_template: must be a string, or a'
      " list of {name, template} with the name 'default'."
    )
  return found
