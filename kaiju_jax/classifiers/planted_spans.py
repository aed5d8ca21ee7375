"""Made-up chats, in which planted marker words are labelled spans.

They train the head of a chat model. Markers and the words that look like them
are those of `planted.py`. Half of a chat's messages are dialogues as the chat
model knows them. The other half, which the language model does not learn, are
the texts of `planted.py`. Plain chats have none of these: they practise what
the chat model knew before.
"""

from collections.abc import Iterator
import re
from typing import Any

import numpy as np

from kaiju_jax.characters.cards import builtin
from kaiju_jax.characters.prompts import prompt
from kaiju_jax.classifiers import planted
from kaiju_jax.classifiers import rows as rows_lib
from kaiju_jax.data.dialogues import personas
from kaiju_jax.data.dialogues import talk
from kaiju_jax.tasks.dialogues import rows as dialogue_rows

# Bytes of a dialogue's own messages, without planted texts and with them, and
# its pairs of planted texts.
_ROOM_ALONE, _ROOM, _PAIRS = 900, 350, 4
# Seeds of texts that are certified are smaller (`planted.draw_certifiable`).
_SEED = 2**33
_FINDS = {
  name: re.compile(rf'(?<!\S)(?:{"|".join(sorted(words, reverse=True))})(?!\S)')
  for name, words in planted.MARKERS.items()
}


def find(text: str) -> list[dict[str, Any]]:
  """Returns the spans of a text's markers, as `data/spans.py` reads them."""
  return [
    {'start': one.start(), 'end': one.end(), 'dimension': name}
    for name, pattern in _FINDS.items()
    for one in pattern.finditer(text)
  ]


def chats(
  count: int, seed: int, plain: float = 0.0
) -> Iterator[dict[str, Any]]:
  """Yields chats with planted texts among a dialogue's exchanges.

  None of the planted texts is one of `planted.draw_certifiable(seed)`.

  Args:
    count: number of chats.
    seed: the seed of all draws, and of the texts that are left out.
    plain: the share of chats without planted texts.
  """
  held_out = {
    rows_lib.skeleton(row.text) for row in planted.draw_certifiable(seed).rows
  }
  for number in range(count):
    rng = np.random.default_rng((_SEED, seed, number))
    is_plain = np.random.default_rng((_SEED, seed, number, 1)).random() < plain
    yield {'messages': _draw_chat(rng, held_out, is_plain)}


def _draw_chat(
  rng: np.random.Generator, held_out: set[str], is_plain: bool
) -> list[dict[str, Any]]:
  persona = personas.draw(rng, mixed=rng.random() < 0.6)
  room = _ROOM_ALONE if is_plain else _ROOM
  greeted, exchanges = talk.exchanges(rng, persona, room)
  pairs = [_say(pair) for pair in exchanges]
  if is_plain:
    described = prompt.persona(dialogue_rows.fields_of(persona))
    messages = _say([('system', described), greeted])
    return [*messages, *(one for pair in pairs for one in pair)]
  for _ in range(_PAIRS):
    pair = [plant(rng, role, held_out) for role in (talk.USER, talk.ASSISTANT)]
    pairs.insert(rng.integers(len(pairs) + 1), pair)
  fields = dialogue_rows.fields_of(persona)
  if rng.random() < 0.5:
    fields = builtin.CHARACTERS[rng.integers(len(builtin.CHARACTERS))]
  described = {'role': 'system', 'content': prompt.persona(fields)}
  greeting = _say([greeted])
  place = rng.random()
  if place < 0.4:  # A text stands first in a fifth, nothing in another.
    greeting = [plant(rng, talk.ASSISTANT, held_out)] if place < 0.2 else []
  head = [described] if rng.random() < 0.9 else []
  return [*head, *greeting, *(one for pair in pairs for one in pair)]


def _say(messages: Any) -> list[dict[str, Any]]:
  return [{'role': role, 'content': text} for role, text in messages]


def plant(
  rng: np.random.Generator, role: str, held_out: set[str]
) -> dict[str, Any]:
  """Returns a message with a planted text, which no language model learns."""
  draw = rng.random()
  marker = ''
  if draw < 0.5:
    # The marker of two words is the hardest to recognize, and comes oftener.
    marker = ('vexil torm', 'quamlith', 'zorbifex', 'zorbifexes')[
      int(np.searchsorted((0.2, 0.33, 0.42), draw))
    ]
  while True:
    text = planted.draw_text(rng, marker)
    if rows_lib.skeleton(text) not in held_out:
      break
  message = {'role': role, 'content': text, 'spans': find(text)}
  return message | ({'weight': 0.0} if role == talk.ASSISTANT else {})
