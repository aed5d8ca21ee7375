"""Generates frozen traffic of conversations with characters, without a model.

A fixed number of conversations is alive at a time. Each is with a character
that is drawn by Zipf's law. It lasts for a geometric number of requests; then
another begins. A turn's prompt is the character's prefix, the history, and a
new message. A *swipe* requests another answer to the same prompt; the history
keeps the last one. An *edit* replaces the second half of the last message. A
history that outgrows its room drops its oldest half at once.

Source 003 gives the tiers, with 10,000 requests each, and prefixes of 4 to 16
thousand tokens. All else is our guess, and is a field here for other traces.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import heapq
from typing import Any
from typing import NamedTuple

import numpy as np

_VOCABULARY = 2**15
# Fewest and most tokens of a prefix per tier: our guess within source 003's.
TIERS = {
  'public': (4_096, 8_192),
  'official': (8_192, 16_384),
  'mature': (4_096, 16_384),
}


class Piece(NamedTuple):
  """A run of tokens that appears in prompts as a whole."""

  number: int  # No other piece has it.
  tokens: np.ndarray  # int32 [n].


class Request(NamedTuple):
  """One request."""

  seconds: float  # When the request comes, from the beginning of the trace.
  character: int  # Number of the character.
  session: int  # Number of the conversation.
  kind: str  # 'turn', 'swipe', 'edit' or 'fork'.
  # The pieces of its prompt; the first is the character's prefix.
  prompt: tuple[Piece, ...]
  answer: Piece  # The tokens that the model would generate.
  # Who owns the conversation; None for somebody of its own.
  person: int | None = None

  @property
  def owner(self) -> bytes:
    """Returns the owner of the text behind the prefix, as the tree has it."""
    number = self.session if self.person is None else self.person
    return number.to_bytes(8, 'little')

  @property
  def shared(self) -> int:
    """Returns the number of tokens of the prefix, which all users share."""
    return len(self.prompt[0].tokens)

  @property
  def length(self) -> int:
    """Returns the number of the prompt's tokens."""
    return sum(len(piece.tokens) for piece in self.prompt)

  def tokens(self) -> np.ndarray:
    """Returns the prompt's tokens."""
    return np.concatenate([piece.tokens for piece in self.prompt])


@dataclasses.dataclass(frozen=True)
class Traffic:
  """The parameters of a trace."""

  seed: int = 0
  requests: int = 10_000  # Number of requests.
  characters: int = 300
  zipf: float = 1.0  # Exponent of the law by which characters are drawn.
  # Fewest and most tokens of a prefix; log-uniform between them.
  prefix: tuple[int, int] = (4_096, 16_384)
  live: int = 40  # Conversations that are alive at a time.
  # Mean requests of a conversation; swipes and edits count.
  turns: float = 90.0
  swipes: float = 0.15  # Fraction of the requests that ask for another answer.
  # Fraction that replace the second half of the last message.
  edits: float = 0.01
  pauses: float = 0.03  # Fraction that are followed by a pause of hours.
  # Shortest and longest pause, in hours.
  hours: tuple[float, float] = (1.0, 8.0)
  think: float = 45.0  # Median seconds between two requests of a conversation.
  message: int = 25  # Median tokens of a message.
  answer: int = 120  # Median tokens of an answer.
  longest: int = 512  # Most tokens of a message or an answer.
  context: int = 32_768  # Most tokens of a prompt and its answer together.

  def __post_init__(self) -> None:
    """Refuses parameters that make no trace.

    Raises:
      ValueError: names the field, its value and what would be right.
    """
    check(self, ('swipes', 'edits', 'pauses'))
    if self.turns < 1:
      raise ValueError(f'turns={self.turns}: must be at least 1, on average.')


def check(drawn: Any, fractions: Sequence[str]) -> None:
  """Refuses parameters that make no trace, in fields that all traffic has.

  Args:
    drawn: the parameters of a trace.
    fractions: the names of its fields that are fractions below 1.

  Raises:
    ValueError: names the field, its value and what would be right.
  """
  for name in ('requests', 'characters', 'live', 'message', 'answer'):
    if getattr(drawn, name) < 1:
      raise ValueError(f'{name}={getattr(drawn, name)}: must be at least 1.')
  for name in fractions:
    if not 0 <= getattr(drawn, name) < 1:
      raise ValueError(
        f'{name}={getattr(drawn, name)}: must be a fraction below 1.'
      )
  low, high = drawn.prefix
  if not 1 <= low <= high:
    raise ValueError(f'prefix={drawn.prefix}: must be rising, from 1 on.')
  if drawn.context < high + 4 * drawn.longest:
    raise ValueError(
      f'context={drawn.context}: must hold a prefix of {high} tokens and'
      f' {4 * drawn.longest} more.'
    )


def draw_piece(seed: int, number: int, size: int) -> Piece:
  """Draws a piece; the same seed, number and size give the same tokens."""
  rng = np.random.default_rng((seed, 1, number))
  return Piece(number, rng.integers(_VOCABULARY, size=size, dtype=np.int32))


def trace(traffic: Traffic) -> Iterator[Request]:
  """Yields the requests, in the order in which they come."""
  rng = np.random.default_rng((traffic.seed, 0))
  pieces = _Pieces(traffic.seed)
  characters = _Characters(traffic, pieces)
  numbers = iter(range(traffic.requests + traffic.live))

  def begun() -> '_Session':
    return _Session(next(numbers), characters.draw(rng), traffic, pieces)

  # (when its next request comes, a number that breaks ties, the conversation).
  waiting = [
    (rng.uniform(0, traffic.think), place, begun())
    for place in range(traffic.live)
  ]
  heapq.heapify(waiting)
  for _ in range(traffic.requests):
    seconds, place, session = heapq.heappop(waiting)
    yield session.request(rng, seconds)
    seconds += traffic.think * rng.lognormal(0, 0.8)
    if rng.random() < traffic.pauses:
      seconds += 3600 * rng.uniform(*traffic.hours)
    if rng.random() < 1 / traffic.turns:
      session = begun()
    heapq.heappush(waiting, (seconds, place, session))


class _Pieces:
  """Numbers the pieces that it draws."""

  def __init__(self, seed: int):
    self._seed = seed
    self._next = 0

  def draw(self, size: int) -> Piece:
    number, self._next = self._next, self._next + 1
    return draw_piece(self._seed, number, size)


class _Characters:
  """The characters' prefixes, drawn by Zipf's law."""

  def __init__(self, traffic: Traffic, pieces: _Pieces):
    rank = np.arange(1, traffic.characters + 1)
    weight = rank**-traffic.zipf
    self._ends = np.cumsum(weight / weight.sum())
    rng = np.random.default_rng((traffic.seed, 2))
    low, high = np.log(traffic.prefix)
    sizes = np.exp(rng.uniform(low, high, traffic.characters)).astype(int)
    self._prefixes = [pieces.draw(max(1, int(size))) for size in sizes]

  def draw(self, rng: np.random.Generator) -> tuple[int, Piece]:
    place = int(np.searchsorted(self._ends, rng.random()))
    number = min(place, len(self._prefixes) - 1)
    return number, self._prefixes[number]


class _Session:
  """One conversation: its history, and its next request."""

  def __init__(self, number, character, traffic: Traffic, pieces: _Pieces):
    self._number = number
    self._character, self._prefix = character
    self._traffic = traffic
    self._pieces = pieces
    self._history: list[Piece] = []
    self._message: list[Piece] = []
    self._answer: Piece | None = None

  def request(self, rng: np.random.Generator, seconds: float) -> Request:
    kind, drawn = 'turn', rng.random()
    if self._answer is not None and drawn < self._traffic.swipes:
      kind = 'swipe'
    elif self._answer is not None and (
      drawn < self._traffic.swipes + self._traffic.edits
    ):
      kind = 'edit'
      self._message = [self._message[0], self._half(rng)]
    else:
      self._turn(rng)
    self._answer = self._pieces.draw(self._size(rng, self._traffic.answer))
    prompt = (self._prefix, *self._history, *self._message)
    return Request(
      seconds, self._character, self._number, kind, prompt, self._answer
    )

  def _turn(self, rng) -> None:
    if self._answer is not None:
      self._history += [*self._message, self._answer]
    self._message = [self._half(rng), self._half(rng)]
    full = self._traffic.context - len(self._prefix.tokens)
    full -= 2 * self._traffic.longest
    if _size(self._history) > full:
      while _size(self._history) > full // 2:
        self._history.pop(0)

  def _half(self, rng) -> Piece:
    """Draws half of a message; an edit keeps the first half."""
    return self._pieces.draw(
      max(1, self._size(rng, self._traffic.message) // 2)
    )

  def _size(self, rng, median: int) -> int:
    size = median * rng.lognormal(0, 0.7)
    return int(np.clip(size, 1, self._traffic.longest))


def _size(pieces: list[Piece]) -> int:
  return sum(len(piece.tokens) for piece in pieces)
