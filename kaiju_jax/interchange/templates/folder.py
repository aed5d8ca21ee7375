"""Reads the chat format of a folder of Hugging Face files.

    chat_template.jinja      the template; otherwise in tokenizer_config.json
    tokenizer_config.json    names of the tokens that the template writes
    generation_config.json   the tokens that end a reply (`generation`)

The template becomes a `chat.Format` (see `glue`), whose prompts are the
template's own but for the adaptations, which `Chat.adaptations` lists.
"""

import dataclasses
import datetime
import pathlib
from typing import Any
from typing import NamedTuple

from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.interchange import generation
from kaiju_jax.interchange.templates import controls as controls_lib
from kaiju_jax.interchange.templates import glue as glue_lib
from kaiju_jax.interchange.templates import pieces
from kaiju_jax.interchange.templates import rendering

TOKENIZER = 'tokenizer.json'
_NAMES = ('bos_token', 'eos_token', 'unk_token', 'pad_token')


class Chat(NamedTuple):
  """The chat format of a folder.

  Attributes:
    format: the format; without reasoning, if that can be turned off.
    adaptations: what differs from the folder's template, in words.
    thinking: the format with reasoning; None where nothing turns it on.
  """

  format: chat.Format
  adaptations: tuple[str, ...]
  thinking: chat.Format | None = None


def read(
  folder: pathlib.Path,
  tokenizer: tokenizer_lib.Tokenizer,
  template: str | None = None,
  now: datetime.datetime | None = None,
  keeps_thoughts: bool = False,
) -> Chat | None:
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
  settings = generation.read_object(folder / generation.SETTINGS)
  found = template or _template(folder, settings)
  if found is None:
    return None
  marks = ''.join(glue_lib.THOUGHT)  # A template may write the first alone.
  has_thought = any(one in found for one in glue_lib.THOUGHT)
  controls = controls_lib.Controls(
    folder / TOKENIZER, found + marks if has_thought else found
  )
  variables: dict[str, Any] = {
    name: generation.name_of(settings[name])
    for name in _NAMES
    if settings.get(name)
  }
  now = now or datetime.datetime.now()
  ends = generation.read(folder, tokenizer).ends
  thought = None
  if controls.tokens.keys() >= set(glue_lib.THOUGHT):
    thought = chat.Thought(*(controls.tokens[one] for one in glue_lib.THOUGHT))

  def renderer_of(thinks: bool, now=now) -> rendering.Renderer:
    return rendering.Renderer(
      found, variables | {'enable_thinking': thinks}, now
    )

  def made(thinks: bool) -> tuple[chat.Format, list[str]]:
    # Reasoning without tokens of its own cannot be cut out again.
    keeps = keeps_thoughts or thought is None
    glue = glue_lib.find(renderer_of(thinks).render, keeps)
    bos = variables.get('bos_token', '')
    format = pieces.format_of(
      glue, controls, tokenizer, bos, ends, thought, keeps_thoughts
    )
    if not (thinks or format.opens_thought):
      format = dataclasses.replace(format, keeps_thoughts=False)
    notes = [*glue.adaptations]
    different = pieces.count_differences(format, glue, controls)
    if different:
      notes.append(f'{different} of {pieces.TRIED} chats have other tokens')
    return format, notes

  format, notes = made(False)
  plain = _rendered(renderer_of(False))
  if 'strftime_now' in found:  # The only clock that the sandbox has.
    later = renderer_of(False, now + datetime.timedelta(days=40))
    if plain != _rendered(later):
      notes.append(f'the clock stays at {now:%Y-%m-%d}')
  thinking = None
  if thought and plain != _rendered(renderer_of(True)):
    thinking, more = made(True)
    notes += [f'with reasoning, {one}' for one in more if one not in notes]
  return Chat(format, tuple(notes), thinking)


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
