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
of it. `_History` repeats the decisions of all turns from the messages alone.

Our guess: the sources say that prompts are built to be cached, not how.
"""

import bisect
from collections.abc import Sequence
import datetime
import itertools
import random as random_lib
import re
from typing import NamedTuple
from typing import Protocol

import numpy as np

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.characters.prompts import encoded
from kaiju_jax.characters.prompts import lore as lore_lib
from kaiju_jax.characters.prompts import macros
from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer as tokenizer_lib

PREFIX = 16_384  # The most tokens of a prefix.
USER = macros.USER
_INSTRUCTION = 'You are {{char}}. You talk with {{user}}.'
_START = re.compile(r'\s*<START>\s*', re.IGNORECASE)
_ORIGINAL = re.compile(r'\{\{\s*original\s*\}\}', re.IGNORECASE)
_LORE_SHARE = 8  # Lore after one message may take 1/8 of the history's room.


class TooLong(ValueError):
  """A text that cannot fit, however much of the history is dropped.

  Attributes:
    tokens: the tokens that must fit.
    room: the tokens that may.
  """

  def __init__(self, message: str, tokens: int, room: int):
    super().__init__(message)
    self.tokens = tokens
    self.room = room


class TurnLike(Protocol):
  """A turn of a conversation, as this module reads it: `Turn`, or a message.

  Attributes:
    role: 'system', 'user' or 'assistant'.
    text: the message's text.
    tokens: the tokens of the text, if a model drew them; None otherwise.
  """

  role: str
  text: str
  tokens: Sequence[int] | None


class Turn(NamedTuple):
  """A plain `TurnLike`."""

  role: str
  text: str
  tokens: Sequence[int] | None = None


class Prompt(NamedTuple):
  """The prompt of a reply.

  Attributes:
    tokens: int32 [L]; the next token is the reply's first.
    shared: the number of first tokens that are the prefix.
    dropped: the number of oldest messages that were left out.
    place: the place behind which the reply stands; see `chat.Format`.
  """

  tokens: np.ndarray
  shared: int
  dropped: int
  place: str = ''


Encoded = encoded.Encoded
Format = chat.Format | Encoded


def count_least(message: TurnLike, tokenizer: tokenizer_lib.Tokenizer) -> int:
  """Returns a lower bound of a message's tokens, without encoding it."""
  if message.tokens is not None:
    return len(message.tokens)
  return -(-len(message.text.encode()) // tokenizer.longest)


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
  constant = sorted(
    (one for one in fields.lore if one.is_constant and one.is_enabled),
    key=lambda one: one.order,
  )
  instruction = _ORIGINAL.sub(_INSTRUCTION, fields.system_prompt).strip()
  examples = _START.sub('\n\n', fields.examples).strip()
  parts = [
    instruction or _INSTRUCTION,
    fields.description,
    _add_heading('Personality: ', fields.personality),
    _add_heading('Scenario: ', fields.scenario),
    *(one.content for one in constant),
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
  fields: card_fields.Fields, format: Format, most: int = PREFIX
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


def open_prefix(format: Format) -> np.ndarray:
  """Returns the prefix of a conversation without a character."""
  return format.head_L.copy()


def greeting(
  fields: card_fields.Fields,
  index: int = 0,
  user_name: str = '',
  random: random_lib.Random | None = None,
  now: datetime.datetime | None = None,
) -> str:
  """Returns a character's greeting with its macros expanded.

  Args:
    fields: the character's.
    index: 0 for the greeting, then the alternate ones.
    user_name: replaces `{{user}}`; '' for the constant `USER`.
    random, now: see `macros.expand`.

  Raises:
    IndexError: there is no such greeting.
    macros.TooLarge: see `macros.expand`.
  """
  greetings = (fields.greeting, *fields.alternate_greetings)
  if not 0 <= index < len(greetings):
    raise IndexError(f'greeting={index}: must be 0…{len(greetings) - 1}.')
  return macros.expand(
    greetings[index],
    card_fields.display_name(fields),
    user_name or USER,
    random,
    now,
  )


def conversation(
  prefix_L: np.ndarray,
  messages: Sequence[TurnLike],
  format: Format,
  room: int,
  user_name: str = '',
  book: lore_lib.Book | None = None,
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
  history = _History(messages[first:], format, book, available)
  begin = history.begin()
  parts, place = history.parts(begin, after)
  tokens_L = np.concatenate(
    [*head, *parts, format.opening('assistant', place)], dtype=np.int32
  )
  return Prompt(tokens_L, len(prefix_L), begin, place)


class _History:
  """The messages behind the opening system messages; decides which are kept."""

  def __init__(
    self,
    messages: Sequence[TurnLike],
    format: Format,
    book: lore_lib.Book | None,
    available: int,
  ):
    self._messages = messages
    self._format = format
    self._book = book
    self._available = available
    self._roles = [one.role for one in messages]
    self._ends = np.cumsum([0, *map(self._length, messages)]).tolist()
    self._found = (
      [book.find_entries(one.text) for one in messages] if book else []
    )
    self._lore = {
      number: format.length('system', book.texts[number])
      for number in set(itertools.chain.from_iterable(self._found))
      if self._may_be_told(book.texts[number])
    }
    # The messages at which exchanges begin: a user's, or a system message
    # before it.
    self._exchanges = [
      n
      for n, role in enumerate(self._roles)
      if n == 0
      or role == 'system'
      or (role == 'user' and self._roles[n - 1] != 'system')
    ]

  def begin(self) -> int:
    """Returns the index of the first message that is kept.

    Raises:
      TooLong: the last exchange does not fit.
    """
    begin, told, lore = 0, set(), 0
    for n, role in enumerate(self._roles):
      size = self._ends[n] - self._ends[begin] + lore
      # Each reply had a prompt, for which messages were dropped in its turn.
      if role == 'assistant' and n and size > self._available:
        begin, told = self._halved(begin, n), set()
        lore = self._lore_size(begin, n, told)
      lore += self._lore_size(n, n + 1, told)
    size = self._ends[-1] - self._ends[begin] + lore
    if size > self._available:
      begin = self._halved(begin, len(self._roles))
      if begin == len(self._roles):
        last = self._exchanges[-1]
        tokens = self._size(last, begin)
        raise TooLong(
          f'the last message has {tokens:,} tokens, and there is room for'
          f' {self._available:,} beside the character.',
          tokens,
          self._available,
        )
    return begin

  def parts(self, begin: int, after: str) -> tuple[list[np.ndarray], str]:
    """Returns the tokens from message `begin` on, with lore, and the place."""
    told: set[int] = set()
    parts = []
    for n in range(begin, len(self._messages)):
      lore = (Turn('system', self._book.texts[k]) for k in self._tell(n, told))
      for one in self._messages[n], *lore:
        parts.append(self._piece(one, after))
        after = self._format.advance(one.role, after, one.text)
    return parts, after

  def _piece(self, message: TurnLike, after: str) -> np.ndarray:
    if message.tokens is None:
      return self._format.message(message.role, message.text, after)
    return self._format.encode_drawn(message.role, message.tokens, after)

  def _length(self, message: TurnLike) -> int:
    """Returns a message's tokens; a lower bound for one that cannot fit.

    So such a message is never encoded: its exact number changes nothing.
    """
    length = count_least(message, self._format.tokenizer)
    if length > self._available:
      return length
    if message.tokens is None:
      return self._format.length(message.role, message.text)
    return self._format.length_drawn(message.role, message.tokens)

  def _may_be_told(self, text: str) -> bool:
    entry = Turn('system', text)
    return (
      count_least(entry, self._format.tokenizer)
      <= self._available // _LORE_SHARE
    )

  def _halved(self, begin: int, end: int) -> int:
    """Returns the index of the first kept message when the history is full.

    The kept exchanges fill half of the room at most. The last one alone may
    fill all of it; if it does not fit, nothing is kept, and `end` is returned.
    """
    first = bisect.bisect_left(self._exchanges, begin)
    kept = self._exchanges[first : bisect.bisect_left(self._exchanges, end)]
    index = bisect.bisect_left(
      range(len(kept)),
      True,
      key=lambda index: self._size(kept[index], end) <= self._available // 2,
    )
    if index < len(kept):
      return kept[index]
    if kept and self._size(kept[-1], end) <= self._available:
      return kept[-1]
    return end

  def _size(self, begin: int, end: int) -> int:
    """Returns the number of tokens of messages and their lore."""
    lore = self._lore_size(begin, end, set())
    return self._ends[end] - self._ends[begin] + lore

  def _lore_size(self, begin: int, end: int, told: set[int]) -> int:
    """Returns the number of tokens of messages' lore; adds it to `told`."""
    if not self._lore:
      return 0
    return sum(
      self._lore[number]
      for n in range(begin, end)
      if self._found[n]
      for number in self._tell(n, told)
    )

  def _tell(self, n: int, told: set[int]) -> list[int]:
    """Returns the lore entries to insert after a message; adds to `told`."""
    if not self._lore:
      return []
    numbers: list[int] = []
    left = self._available // _LORE_SHARE
    for number in self._found[n]:
      if len(numbers) == lore_lib.TOLD:
        break
      if number in told or number not in self._lore:
        continue
      if self._lore[number] <= left:
        left -= self._lore[number]
        told.add(number)
        numbers.append(number)
    return numbers


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
