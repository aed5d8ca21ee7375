"""Reads the chat format of a folder of Hugging Face files.

    chat_template.jinja      the template; otherwise in tokenizer_config.json
    tokenizer_config.json    names of the tokens that the template writes
    generation_config.json   the tokens that end a reply (`generation`)

The template becomes a `chat.Format` (see `glue`), whose prompts are the
template's own but for the adaptations, which `Chat.adaptations` lists.
"""

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

TEMPLATE, TOKENIZER = 'chat_template.jinja', 'tokenizer.json'
_NAMES = ('bos_token', 'eos_token', 'unk_token', 'pad_token')


class Chat(NamedTuple):
  """The chat format of a folder.

  Attributes:
    format: the format.
    adaptations: what differs from the folder's template, in words.
  """

  format: chat.Format
  adaptations: tuple[str, ...]


def read(
  folder: pathlib.Path,
  tokenizer: tokenizer_lib.Tokenizer,
  template: str | None = None,
  now: datetime.datetime | None = None,
) -> Chat | None:
  """Returns the chat format of a folder; None if it has no template.

  Args:
    folder: the folder.
    tokenizer: its tokenizer.
    template: a Jinja template instead of the folder's.
    now: the time that the template's clock shows; by default the present.

  Raises:
    ImportError: jinja2 is not installed.
    OSError: a file cannot be read.
    ValueError: a file is not as expected; or see `glue.find`.
  """
  settings = generation.read_object(folder / generation.SETTINGS)
  found = template or _template(folder, settings)
  if found is None:
    return None
  controls = controls_lib.Controls(folder / TOKENIZER, found)
  variables: dict[str, Any] = {
    name: generation.name_of(settings[name])
    for name in _NAMES
    if settings.get(name)
  }
  variables['enable_thinking'] = False
  now = now or datetime.datetime.now()
  renderer = rendering.Renderer(found, variables, now)
  glue = glue_lib.find(renderer.render)
  notes = list(glue.adaptations)
  if 'strftime_now' in found:  # The only clock that the sandbox has.
    later = now + datetime.timedelta(days=40)
    other = rendering.Renderer(found, variables, later)
    if _rendered(renderer) != _rendered(other):
      notes.append(f'the clock stays at {now:%Y-%m-%d}')
  made = pieces.format_of(
    glue,
    controls,
    tokenizer,
    variables.get('bos_token', ''),
    generation.read(folder, tokenizer).ends,
  )
  different = pieces.count_differences(made, glue, controls)
  if different:
    notes.append(f'{different} of {pieces.TRIED} chats have other tokens')
  return Chat(made, tuple(notes))


def _rendered(renderer: rendering.Renderer) -> list[str | rendering.Refusal]:
  user = (('user', 'a'),)
  return renderer.render(
    [rendering.Chat(user), rendering.Chat((('system', 'b'), *user))]
  )


def _template(folder: pathlib.Path, settings: dict[str, Any]) -> str | None:
  if (folder / TEMPLATE).is_file():
    return (folder / TEMPLATE).read_text()
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
