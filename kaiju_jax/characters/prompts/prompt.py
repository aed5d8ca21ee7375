"""Turns a character and a conversation into tokens that the cache finds again.

    bos  system: the character  |  system: the user's name  messages …  opening
    └──────── shared ──────────┘   of one user

The first part, the *prefix*, has the same tokens for all users. In it
`{{user}}` is a constant; the user's own name stands behind it. The rest only
grows: the next turn's prompt begins with this turn's prompt and its reply, so
that only the new tokens run.

A history that no longer fits drops its older half at once, in whole exchanges
(a user's message and its replies). If it dropped one exchange per turn, all
text behind the prefix would shift in every turn, and the cache would find none
of it. `history.py` repeats the decisions of all turns from the messages alone.

Our guess: the sources say that prompts are built to be cached, not how.
"""

from collections.abc import Sequence
import re
from typing import NamedTuple

import numpy as np

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.characters.cards import lore_rules
from kaiju_jax.characters.prompts import encoded
from kaiju_jax.characters.prompts import history as history_lib
from kaiju_jax.characters.prompts import lore as lore_lib
from kaiju_jax.characters.prompts import macros
from kaiju_jax.data import chat

PREFIX = 16_384  # The most tokens of a prefix.
USER = macros.USER
_INSTRUCTION = 'You are {{char}}. You talk with {{user}}.'
_START = re.compile(r'\s*<START>\s*', re.IGNORECASE)
_ORIGINAL = re.compile(r'\{\{\s*original\s*\}\}', re.IGNORECASE)


class Prompt(NamedTuple):
  """The prompt of a reply."""

  tokens: np.ndarray  # int32 [L]; the next token is the reply's first.
  shared: int  # The number of first tokens that are the prefix.
  dropped: int  # The number of oldest messages that were left out.
  place: str = ''  # The place behind which the reply stands; see `chat.Format`.


Encoded = encoded.Encoded
TooLong = history_lib.TooLong
Turn = history_lib.Turn
TurnLike = history_lib.TurnLike
count_least = history_lib.count_least


def persona(fields: card_fields.Fields, most: int = 2**20) -> str:
  """Returns the text of a character's system message.

  It consists of the instructions, description, personality, scenario, constant
  lore, example conversations and final instructions that are not empty. No
  other field changes it.

  Args:
    fields: checked fields.
    most: the most bytes of the text, macros expanded.

  Raises:
    macros.TooLarge: the text has more.
  """
  char = card_fields.display_name(fields)
  # The texts of constant lore by their position.
  lore: dict[str, list[str]] = {name: [] for name in lore_rules.POSITIONS}
  for one in sorted(fields.lore, key=lambda one: one.order):
    rule = lore_rules.read(one)[0]
    if rule.is_enabled and rule.is_in_prefix:
      lore[rule.position].append(rule.text)
  instruction = _ORIGINAL.sub(_INSTRUCTION, fields.system_prompt).strip()
  examples = _START.sub('\n\n', fields.examples).strip()
  parts = [
    instruction or _INSTRUCTION,
    *lore['before_desc'],
    fields.description,
    *lore['after_desc'],
    _add_heading('Personality: ', fields.personality),
    *lore['personality'],
    _add_heading('Scenario: ', fields.scenario),
    *lore['scenario'],
    *lore['after_char'],
    _add_heading('How {{char}} talks:\n\n', examples),
    _ORIGINAL.sub('', fields.post_history),
  ]
  expanded = []
  for part in parts:
    part = macros.expand_stable(part, char, most).strip()
    if part:
      expanded.append(part)
      most -= len(part.encode())
  return '\n\n'.join(expanded)


def prefix(
  fields: card_fields.Fields, format: chat.Format, most: int = PREFIX
) -> np.ndarray:
  """Returns the tokens that open all conversations with a character, int32 [L].

  Fields that differ only in what no prompt contains, such as tags, have equal
  tokens.

  Args:
    fields: checked fields.
    format: the chat format of the model's tokenizer.
    most: the most tokens.

  Raises:
    TooLong: the character has more tokens.
    macros.TooLarge: its text has too many bytes for `most` tokens.
  """
  text = persona(fields, most * format.tokenizer.longest)
  prefix_L = np.concatenate(
    [open_prefix(format), format.message('system', text)]
  )
  if len(prefix_L) > most:
    raise TooLong(
      f'the character has {len(prefix_L):,} tokens: at most {most:,}.',
      len(prefix_L),
      most,
    )
  return prefix_L


def open_prefix(format: chat.Format) -> np.ndarray:
  """Returns the prefix of a conversation without a character."""
  return format.head_L.copy()


def conversation(
  prefix_L: np.ndarray,
  messages: Sequence[TurnLike],
  format: chat.Format,
  room: int,
  user_name: str = '',
  book: lore_lib.Book | None = None,
  seed: str = '',
) -> Prompt:
  """Returns the prompt of the reply to a conversation's last message.

  Args:
    prefix_L: the character's prefix, int32 [L], or `open_prefix`'s.
    messages: the whole conversation, oldest first, also the messages that no
      longer fit. System messages at its beginning are always kept.
    format: the chat format of the model's tokenizer; an `Encoded` saves time.
    room: the most tokens of the prompt. It should be equal in all turns of a
      conversation, because it decides which messages are dropped.
    user_name: the user's name; '' for a prompt without it.
    book: the character's lore; None for none.
    seed: names the conversation, for lore that has a probability: equal in all
      its turns.

  Raises:
    TooLong: the prefix does not fit, or the last exchange does not fit beside
      it.
    TypeError, ValueError: an unknown role, a text with surrogates, or a user's
      name that is not one short line.
  """
  first = next(
    (n for n, one in enumerate(messages) if one.role != 'system'),
    len(messages),
  )
  head = [prefix_L]
  # A character's prefix ends behind its system message.
  has_character = len(prefix_L) > len(format.head_L)
  after = format.advance('system') if has_character else ''
  if user_name:
    head.append(
      format.message('system', f"{USER}'s name is {_line(user_name)}.", after)
    )
    after = format.advance('system', after)
  # Counted before they are encoded, by a lower bound, and after.
  _refuse_full(
    room,
    [
      *map(len, head),
      *(count_least(x, format.tokenizer) for x in messages[:first]),
    ],
  )
  for one in messages[:first]:
    head.append(format.message('system', one.text, after))
    after = format.advance('system', after, one.text)
  opening = max(
    len(format.opening('assistant', one)) for one in format.places('assistant')
  )
  available = _refuse_full(room, [*map(len, head), opening])
  history = history_lib.History(messages[first:], format, available, book, seed)
  begin = history.begin()
  parts, place = history.parts(begin, after)
  tokens_L = np.concatenate(
    [*head, *parts, format.opening('assistant', place)], dtype=np.int32
  )
  return Prompt(tokens_L, len(prefix_L), begin, place)


def _refuse_full(room: int, lengths: Sequence[int]) -> int:
  """Returns the rest of the room; raises TooLong if the parts do not fit."""
  taken = sum(lengths)
  if taken > room:
    raise TooLong(
      f'the character and the system messages have {taken:,} tokens, and the'
      f' prompt has room for {room:,}.',
      taken,
      room,
    )
  return room - taken


def _add_heading(heading: str, text: str) -> str:
  return heading + text.strip() if text.strip() else ''


def _line(name: str) -> str:
  line = card_fields.line(chat.strip(name))
  if not line or len(line) > card_fields.NAME:
    raise ValueError(
      f'user_name={card_fields.abbreviate(name)}: must be 1…{card_fields.NAME}'
      ' characters.'
    )
  return line
