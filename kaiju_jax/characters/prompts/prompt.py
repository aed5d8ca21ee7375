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

from kaiju_jax.characters import recent
from kaiju_jax.characters.cards import card_fields
from kaiju_jax.characters.prompts import lore as lore_lib
from kaiju_jax.characters.prompts import macros
from kaiju_jax.data import chat

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


class Encoded:
  """A format that remembers the tokens of recent messages; thread-safe.

  A conversation is encoded anew in every turn, and only its end is new. One
  object serves all conversations.
  """

  def __init__(self, format: chat.Format, most: int = 2**22):
    """Begins empty.

    Args:
      format: encodes what is not remembered.
      most: how many tokens are remembered, 4 bytes each.
    """
    self.tokenizer = format.tokenizer
    self.stop_tokens = format.stop_tokens
    self.opening = format.opening
    self._format = format
    self._recent = recent.Recent(most, len)

  def message(self, role: str, text: str) -> np.ndarray:
    """Returns what `chat.Format.message` does; not to be written to."""
    return self._remember(
      lambda: self._format.message(role, text), recent.key(role, text)
    )

  def drawn(self, role: str, tokens: Sequence[int]) -> np.ndarray:
    """Returns what `chat.Format.drawn` does; not to be written to."""
    tokens_L = np.asarray(tokens, np.int32)
    return self._remember(
      lambda: self._format.drawn(role, tokens_L),
      recent.key(role, 'drawn', tokens_L.tobytes()),
    )

  def _remember(self, encode, key: bytes) -> np.ndarray:
    tokens_L = self._recent.get(key)
    if tokens_L is None:
      tokens_L = encode()
      tokens_L.setflags(write=False)
      self._recent.put(key, tokens_L)
    return tokens_L


Format = chat.Format | Encoded


def persona(fields: card_fields.Fields) -> str:
  """Returns the text of a character's system message.

  It has, as far as there are any: instructions, description, personality,
  scenario, constant lore, example conversations, final instructions. Nothing
  else of the fields changes it.
  """
  char = card_fields.called(fields)
  constant = sorted(
    (one for one in fields.lore if one.is_constant and one.is_enabled),
    key=lambda one: one.order,
  )
  instruction = _ORIGINAL.sub(_INSTRUCTION, fields.system_prompt).strip()
  examples = _START.sub('\n\n', fields.examples).strip()
  parts = [
    instruction or _INSTRUCTION,
    fields.description,
    _headed('Personality: ', fields.personality),
    _headed('Scenario: ', fields.scenario),
    *(one.content for one in constant),
    _headed('How {{char}} talks:\n\n', examples),
    _ORIGINAL.sub('', fields.post_history),
  ]
  parts = (macros.stable(part, char).strip() for part in parts)
  return '\n\n'.join(part for part in parts if part)


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
  """
  prefix_L = np.concatenate(
    [opened(format), format.message('system', persona(fields))]
  )
  if len(prefix_L) > most:
    raise TooLong(
      f'the character has {len(prefix_L):,} tokens: at most {most:,}.',
      len(prefix_L),
      most,
    )
  return prefix_L


def opened(format: Format) -> np.ndarray:
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
    greetings[index], card_fields.called(fields), user_name or USER, random, now
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
    prefix_L: of the character, or `opened`.
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
  head += (format.message('system', one.text) for one in messages[:first])
  opening_L = format.opening('assistant')
  available = room - sum(map(len, head)) - len(opening_L)
  if available < 0:
    raise TooLong(
      f'the character and the system messages have {room - available:,} tokens,'
      f' and the prompt has room for {room:,}.',
      room - available,
      room,
    )
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
    self._roles = [one.role for one in messages]
    self._pieces = [
      format.message(one.role, one.text)
      if one.tokens is None
      else format.drawn(one.role, one.tokens)
      for one in messages
    ]
    self._ends = np.cumsum([0, *map(len, self._pieces)]).tolist()
    self._available = available
    self._found = [book.found(one.text) for one in messages] if book else []
    self._lore = {
      number: format.message('system', book.texts[number])
      for number in set(itertools.chain.from_iterable(self._found))
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
    for n in range(begin, len(self._pieces)):
      parts.append(self._pieces[n])
      parts += (self._lore[number] for number in self._tell(n, told))
    return parts

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
      if number not in told and len(self._lore[number]) <= left:
        left -= len(self._lore[number])
        told.add(number)
        numbers.append(number)
    return numbers


def _headed(heading: str, text: str) -> str:
  return heading + text.strip() if text.strip() else ''


def _line(name: str) -> str:
  line = card_fields.line(chat.strip(name))
  if not line or len(line) > card_fields.NAME:
    raise ValueError(
      f'user_name={card_fields.shown(name)}: must be 1…{card_fields.NAME}'
      ' characters.'
    )
  return line
