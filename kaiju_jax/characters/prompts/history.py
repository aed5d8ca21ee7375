"""Decides which messages of a conversation a prompt keeps, and where lore goes.

A history that no longer fits drops its older half at once, in whole exchanges.
The decisions of all turns are repeated from the messages alone, so that each
turn's prompt begins with the one before it and its reply (`prompt.py`).
"""

import bisect
from collections.abc import Sequence
import itertools
from typing import NamedTuple
from typing import Protocol

import numpy as np

from kaiju_jax.characters.prompts import lore as lore_lib
from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer as tokenizer_lib

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
  """A turn of a conversation, as this module reads it: `Turn`, or a message."""

  role: str  # 'system', 'user' or 'assistant'.
  text: str  # The message's text.
  # The tokens of the text, if a model drew them; None otherwise.
  tokens: Sequence[int] | None


class Turn(NamedTuple):
  """A plain `TurnLike`."""

  role: str
  text: str
  tokens: Sequence[int] | None = None


def count_least(message: TurnLike, tokenizer: tokenizer_lib.Tokenizer) -> int:
  """Returns a lower bound of a message's tokens, without encoding it."""
  if message.tokens is not None:
    return len(message.tokens)
  return -(-len(message.text.encode()) // tokenizer.longest)


class History:
  """The messages behind the opening system messages; decides which are kept."""

  def __init__(
    self,
    messages: Sequence[TurnLike],
    format: chat.Format,
    available: int,
    book: lore_lib.Book | None = None,
    seed: str = '',
  ):
    """Finds the lore of messages, and counts tokens.

    Args:
      messages: the conversation behind its opening system messages.
      format: the chat format.
      available: the most tokens of messages and lore.
      book: the character's lore; None for none.
      seed: see `lore.Book.find_all`.
    """
    self._messages = messages
    self._format = format
    self._rules = book.rules if book else {}
    self._standing = book.standing if book else ()
    self._available = available
    self._roles = [one.role for one in messages]
    self._ends = np.cumsum([0, *map(self._length, messages)]).tolist()
    self._found = book.find_all(messages, seed) if book else []
    self._turns = {
      number: Turn(book.rules[number].role, book.texts[number])
      for number in {*itertools.chain(self._standing, *self._found)}
    }
    self._lore = {
      number: self._length(turn)
      for number, turn in self._turns.items()
      if self._may_be_told(turn)
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
    begin = 0
    told, lore = self._start(begin)
    for n, role in enumerate(self._roles):
      size = self._ends[n] - self._ends[begin] + lore
      # Each reply had a prompt, for which messages were dropped in its turn.
      if role == 'assistant' and n and size > self._available:
        begin = self._halved(begin, n)
        told, lore = self._start(begin)
        lore += self._lore_size(begin, n, told)
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
    told: dict[int, int] = {}
    numbers = self._tell(self._standing, begin - 1, told)
    turns = [self._turns[number] for number in numbers]
    for n in range(begin, len(self._messages)):
      numbers = self._tell(self._found[n] if self._found else (), n, told)
      turns += [self._messages[n], *(self._turns[x] for x in numbers)]
    parts = []
    for one in turns:
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

  def _may_be_told(self, turn: Turn) -> bool:
    least = count_least(turn, self._format.tokenizer)
    return least <= self._available // _LORE_SHARE

  def _halved(self, begin: int, end: int) -> int:
    """Returns the index of the first kept message when the history is full."""
    # The kept exchanges fill half of the room at most; the last one alone may
    # fill all of it.
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
    told, lore = self._start(begin)
    lore += self._lore_size(begin, end, told)
    return self._ends[end] - self._ends[begin] + lore

  def _start(self, begin: int) -> tuple[dict[int, int], int]:
    """Returns what is told before message `begin`, and its tokens."""
    told: dict[int, int] = {}
    numbers = self._tell(self._standing, begin - 1, told)
    return told, sum(self._lore[number] for number in numbers)

  def _lore_size(self, begin: int, end: int, told: dict[int, int]) -> int:
    """Returns the number of tokens of messages' lore; adds it to `told`."""
    if not self._lore:
      return 0
    return sum(
      self._lore[number]
      for n in range(begin, end)
      if self._found[n]
      for number in self._tell(self._found[n], n, told)
    )

  def _tell(
    self, found: Sequence[int], n: int, told: dict[int, int]
  ) -> list[int]:
    """Returns the entries of `found` to insert after message `n`.

    It adds them to `told`, the message behind which each stands.
    """
    numbers: list[int] = []
    left = self._available // _LORE_SHARE
    for number in found:
      if len(numbers) == lore_lib.TOLD:
        break
      if number not in self._lore or not self._is_due(number, n, told):
        continue
      if self._lore[number] <= left:
        left -= self._lore[number]
        told[number] = n
        numbers.append(number)
    return numbers

  def _is_due(self, number: int, n: int, told: dict[int, int]) -> bool:
    """Returns whether an entry may be told behind message `n`."""
    if number not in told:
      return True
    depth = self._rules[number].depth
    # Texts that are told once do not move, so that the cache finds them. Those
    # of a depth are told again, and on average stand where they belong.
    return depth is not None and n - told[number] > 2 * depth
