"""A character and a conversation as tokens, so that a cache finds them again.

    bos  system: the character  |  system: the user's name  messages …  opening
    └──────── shared ──────────┘   of one user

The first part, the *prefix*, is the same for everybody, byte for byte. In it
`{{user}}` is a constant; the user's own name stands behind it. What follows
only grows: the next turn's prompt begins with this turn's prompt and its reply,
so that only what is new runs.

A history that does not fit any more drops its older half at once, in whole
exchanges. To drop one exchange per turn would shift all text behind the prefix
in every turn, and the cache would serve nothing. Which messages are dropped
depends on the messages alone: it is found by going through the turns as they
came, so that nothing needs to be remembered between requests.

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

PREFIX = 16_384  # Tokens.
USER = macros.USER
_INSTRUCTION = 'You are {{char}}. You talk with {{user}}.'
_START = re.compile(r'\s*<START>\s*', re.IGNORECASE)
_ORIGINAL = re.compile(r'\{\{\s*original\s*\}\}', re.IGNORECASE)
_LORE_SHARE = 8  # Lore behind a message has 1/8 of the history's room.


class TooLong(ValueError):
  """What cannot fit, however much of the history is dropped.

  Attributes:
    tokens: what must fit.
    room: what it must fit into.
  """

  def __init__(self, message: str, tokens: int, room: int):
    super().__init__(message)
    self.tokens = tokens
    self.room = room


class Message(Protocol):
  """What is read of a message.

  Attributes:
    role: 'system', 'user' or 'assistant'.
    text: what was said.
    tokens: the text's, where a model drew them; None otherwise.
  """

  role: str
  text: str
  tokens: Sequence[int] | None


class Turn(NamedTuple):
  """A message that no store holds; see `Message`."""

  role: str
  text: str
  tokens: Sequence[int] | None = None


class Prompt(NamedTuple):
  """What a model is given.

  Attributes:
    tokens: int32 [L], up to where the reply begins.
    shared: how many of the first tokens are the prefix.
    dropped: how many of the oldest messages were left out.
  """

  tokens: np.ndarray
  shared: int
  dropped: int


Encoded = encoded.Encoded
Format = chat.Format | Encoded


def least(message: Message, tokenizer: tokenizer_lib.Tokenizer) -> int:
  """Returns how many tokens a message has at least, without encoding it."""
  if message.tokens is not None:
    return len(message.tokens)
  return -(-len(message.text.encode()) // tokenizer.longest)


def persona(fields: card_fields.Fields, most: int = 2**20) -> str:
  """Returns the text of a character's system message.

  It has, as far as there are any: instructions, description, personality,
  scenario, constant lore, example conversations, final instructions. Nothing
  else of the fields changes it.

  Args:
    fields: checked ones.
    most: bytes of the text, at most.

  Raises:
    macros.TooLarge: it has more, with its macros expanded.
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
    part = macros.stable(part, char, most).strip()
    if part:
      expanded.append(part)
      most -= len(part.encode())
  return '\n\n'.join(expanded)


def prefix(
  fields: card_fields.Fields, format: Format, most: int = PREFIX
) -> np.ndarray:
  """Returns the tokens that open all conversations with a character, int32 [L].

  Equal fields have equal tokens, and so have fields that differ in what never
  reaches a prompt.

  Args:
    fields: checked ones.
    format: of the model's tokenizer.
    most: tokens at most.

  Raises:
    TooLong: the character has more tokens.
    macros.TooLarge: it must have more, by its bytes.
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
  return np.array([format.tokenizer.bos_id], np.int32)


def greeting(
  fields: card_fields.Fields,
  index: int = 0,
  user_name: str = '',
  random: random_lib.Random | None = None,
  now: datetime.datetime | None = None,
) -> str:
  """Returns what a character says first, to be stored as it is.

  Args:
    fields: of the character.
    index: 0 for the greeting, then the alternate ones.
    user_name: what `{{user}}` stands for; '' for a constant.
    random, now: see `macros.expand`.

  Raises:
    IndexError: no such greeting.
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
  messages: Sequence[Message],
  format: Format,
  room: int,
  user_name: str = '',
  book: lore_lib.Book | None = None,
) -> Prompt:
  """Returns the prompt of the reply to a conversation's last message.

  Args:
    prefix_L: of the character, or `open_prefix`.
    messages: the whole conversation, oldest first, those that no longer fit
      too. System messages that open it are always kept.
    format: of the model's tokenizer; an `Encoded` saves time.
    room: tokens that the prompt may have. It should be the same in all turns
      of a conversation: what is dropped depends on it.
    user_name: what the user is called; '' for no word about it.
    book: the character's lore.

  Raises:
    TooLong: the last exchange alone does not fit, or not even the prefix.
    TypeError, ValueError: an unknown role, a text with surrogates, or a user's
      name that is no short line.
  """
  first = next(
    (n for n, one in enumerate(messages) if one.role != 'system'),
    len(messages),
  )
  head = [prefix_L]
  if user_name:
    head.append(
      format.message('system', f"{USER}'s name is {_line(user_name)}.")
    )
  opening_L = format.opening('assistant')
  # Counted before they are encoded, and after.
  _refuse_full(
    room,
    [*map(len, head), *(least(x, format.tokenizer) for x in messages[:first])],
  )
  head += (format.message('system', one.text) for one in messages[:first])
  available = _refuse_full(room, [*map(len, head), len(opening_L)])
  history = _History(messages[first:], format, book, available)
  begin = history.begin()
  parts = (*head, *history.parts(begin), opening_L)
  return Prompt(
    np.concatenate(parts).astype(np.int32, copy=False), len(prefix_L), begin
  )


class _History:
  """The messages behind the head, and how many of the oldest are dropped."""

  def __init__(
    self,
    messages: Sequence[Message],
    format: Format,
    book: lore_lib.Book | None,
    available: int,
  ):
    self._messages = messages
    self._format = format
    self._available = available
    self._roles = [one.role for one in messages]
    self._ends = np.cumsum([0, *map(self._length, messages)]).tolist()
    self._found = (
      [book.find_entries(one.text) for one in messages] if book else []
    )
    self._lore = {
      number: format.message('system', book.texts[number])
      for number in set(itertools.chain.from_iterable(self._found))
      if self._may_be_told(book.texts[number])
    }
    # Where exchanges begin: the user speaks, or a system message before that.
    self._exchanges = [
      n
      for n, role in enumerate(self._roles)
      if n == 0
      or role == 'system'
      or (role == 'user' and self._roles[n - 1] != 'system')
    ]

  def begin(self) -> int:
    """Returns the first message that is kept.

    Raises:
      TooLong: the last exchange does not fit.
    """
    begin, told, lore = 0, set(), 0
    for n, role in enumerate(self._roles):
      size = self._ends[n] - self._ends[begin] + lore
      # There was a prompt before each reply.
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

  def parts(self, begin: int) -> list[np.ndarray]:
    """Returns the kept messages, each followed by the lore that it told."""
    told: set[int] = set()
    parts = []
    for n in range(begin, len(self._messages)):
      parts.append(self._piece(self._messages[n]))
      parts += (self._lore[number] for number in self._tell(n, told))
    return parts

  def _piece(self, message: Message) -> np.ndarray:
    if message.tokens is None:
      return self._format.message(message.role, message.text)
    return self._format.encode_drawn(message.role, message.tokens)

  def _length(self, message: Message) -> int:
    """Returns a message's tokens; at least so many of one that cannot fit.

    How many more than fit it has changes nothing, so that it is never encoded.
    """
    length = least(message, self._format.tokenizer)
    if length > self._available:
      return length
    if message.tokens is None:
      return self._format.length(message.role, message.text)
    return len(self._piece(message))

  def _may_be_told(self, text: str) -> bool:
    entry = Turn('system', text)
    return (
      least(entry, self._format.tokenizer) <= self._available // _LORE_SHARE
    )

  def _halved(self, begin: int, end: int) -> int:
    """Returns where what is kept begins, once the history is full.

    It fills half of the room at most. The last exchange may fill all of it;
    where it does not fit, nothing is kept, which is `end`.
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
    """Returns the tokens of messages that are kept, with their lore."""
    lore = self._lore_size(begin, end, set())
    return self._ends[end] - self._ends[begin] + lore

  def _lore_size(self, begin: int, end: int, told: set[int]) -> int:
    """Returns the tokens of messages' lore, which adds to `told`."""
    if not self._lore:
      return 0
    return sum(
      len(self._lore[number])
      for n in range(begin, end)
      if self._found[n]
      for number in self._tell(n, told)
    )

  def _tell(self, n: int, told: set[int]) -> list[int]:
    """Returns the entries behind a message, and adds them to `told`."""
    if not self._lore:
      return []
    numbers: list[int] = []
    left = self._available // _LORE_SHARE
    for number in self._found[n]:
      if len(numbers) == lore_lib.TOLD:
        break
      if number in told or number not in self._lore:
        continue
      if len(self._lore[number]) <= left:
        left -= len(self._lore[number])
        told.add(number)
        numbers.append(number)
    return numbers


def _refuse_full(room: int, lengths: Sequence[int]) -> int:
  """Returns what is left of the room; refuses what does not fit."""
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
