"""Speculation by look-up: drafts from a sequence's own text, without a model.

Where the last tokens of a text stand earlier in it, what followed them there is
a draft of what follows now (Saxena 2023). One call appends the draft and draws
at each of its positions, with the settings and the noise of that position. The
draws count up to the first that differs from the draft, which counts too: they
are what steps would have drawn, one by one. The row then loses the rest of the
draft (`Decoder.cut`).

A draft takes longer than a step. So each sequence has an estimate of how often
drafted tokens are right, and calls are timed: a draft runs where a round then
gives more tokens per second. The estimate counts the tokens that the draft's
place has in common with the text's end, because the place would have predicted
them. Where not even the longest such match would pay, the sequence pauses,
twice as long each time. A round runs one draft at most, so that others wait for
one call more. The sources are silent: all of this is our guess.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
from typing import NamedTuple
import weakref

import numpy as np

from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.engine import compiled
from kaiju_jax.decoding.engine import flights as flights_lib
from kaiju_jax.decoding.engine import sequence as sequence_lib

# The tokens that must stand earlier in the text, those that are compared to
# choose among several such places, and how many of these are tried.
_LEAST, _MOST, _PLACES = 3, 16, 8
# What a verified token weighs once the next draft is verified.
_KEPT = 0.8
# Tokens of a pause: the first, and the longest.
_PAUSES = 8, 256
# What a call takes beside its tokens, counted in tokens, until it was timed.
_CALL = 64


# Tokens of the calls that verify drafts, at most.
SIZES = 16, 64


class Found(NamedTuple):
  """A place of a text whose last tokens are those of the text's end.

  Attributes:
    tokens_L: what followed there, int32 [n]; [0] if there is no such place.
    common: how many last tokens both have in common.
  """

  tokens_L: np.ndarray
  common: int


class Draft(NamedTuple):
  """Tokens int32 [n] that may follow a text, and the tokens of their call."""

  one: sequence_lib.Sequence
  tokens_L: np.ndarray
  size: int


@dataclasses.dataclass
class _Record:
  """The drafts of one sequence.

  Attributes:
    right, wrong: how many drafted tokens were, the latest at full weight.
    pause: tokens of the next pause.
    until: the length of the text at which the latest pause ends.
  """

  right: float = 3.0
  wrong: float = 1.0
  pause: int = _PAUSES[0]
  until: int = 0

  def expect(self, count: int, common: int) -> float:
    """Returns how many first tokens of a draft of `count` should be right.

    The draft's place has `common` tokens in common with the text's end; those
    that finding it did not need count as right ones.
    """
    right = self.right + common - _LEAST
    share = right / (right + self.wrong)
    return float(np.sum(share ** np.arange(1, count + 1)))

  def note(self, right: int, count: int) -> None:
    """Notes how many first tokens of a draft of `count` were right."""
    self.right = _KEPT * self.right + right
    self.wrong = _KEPT * self.wrong + (right < count)
    if right:
      self.pause = _PAUSES[0]

  def rest(self, length: int) -> None:
    """Begins a pause at a text's length; the next draft is a fresh trial."""
    self.until = length + self.pause
    self.pause = min(2 * self.pause, _PAUSES[1])
    self.right, self.wrong = 2.0, 1.0


class _Costs:
  """The least seconds of calls: ('step', rows) or ('draft', tokens)."""

  def __init__(self):
    self.timed: dict[tuple[str, int], float] = {}

  def note(self, kind: str, size: int, seconds: float) -> None:
    """Notes a call's seconds; the least count, because load only adds."""
    if seconds > 0:
      least = self.timed.get((kind, size), seconds)
      self.timed[kind, size] = min(least, seconds)

  def seconds(self, kind: str, size: int) -> float:
    """Returns a call's seconds; a guess by its tokens if it was not timed."""
    if not size:
      return 0.0
    if (kind, size) in self.timed:
      return self.timed[kind, size]
    tokens = sum(_CALL + size for _, size in self.timed)
    unit = sum(self.timed.values()) / tokens if tokens else 1.0
    return unit * (_CALL + size)


class Speculation:
  """The drafts of one engine; `requeue` takes a sequence's row away."""

  def __init__(
    self,
    decoder: decoder_lib.Decoder,
    rounds: compiled.Rounds,
    flights: flights_lib.Flights,
    requeue: Callable[[sequence_lib.Sequence], None],
  ):
    self._decoder = decoder
    self._rounds = rounds
    self._flights = flights
    self._requeue = requeue
    self._costs = _Costs()
    self._records: weakref.WeakKeyDictionary[sequence_lib.Sequence, _Record] = (
      weakref.WeakKeyDictionary()
    )

  def choose(
    self, going: Sequence[sequence_lib.Sequence]
  ) -> tuple[list[sequence_lib.Sequence], Draft | None]:
    """Returns the sequences that a step continues, and a draft of another.

    A sequence that has a draft is in neither if a token of it is to be read
    first.
    """
    best, most = None, 0.0
    for one in going if self._rounds.drafts else ():
      found = self._draft(one, len(going))
      if found is not None and found[0] > most:
        most, best = found
    if best is None:
      return list(going), None
    stepping = [one for one in going if one is not best.one]
    return stepping, None if best.one.flying else best

  def run(self, draft: Draft) -> None:
    """Dispatches the call that verifies a draft."""
    one, tokens_L, size = draft
    begin = self._decoder.length_of(one.row)
    with self._requeued_on_failure(one):
      packed = self._rounds.verify(one.row, tokens_L, size)

    def settle(drawn: int) -> None:
      with self._requeued_on_failure(one):
        self._decoder.cut(one.row, begin + drawn)
      self._records[one].note(drawn - 1, len(tokens_L))

    self._flights.add_draft(packed, one, settle)

  @contextlib.contextmanager
  def _requeued_on_failure(self, one: sequence_lib.Sequence) -> Iterator[None]:
    """Takes a sequence's row, which may hold wrong tokens, after an error."""
    try:
      yield
    except BaseException:
      self._requeue(one)
      raise

  def time(self, rows: int, draft: Draft | None, seconds: float) -> None:
    """Notes how long a round took: a step of `rows` rows, a draft, or both."""
    if draft is not None:
      seconds -= self._costs.seconds('step', rows)
      self._costs.note('draft', draft.size, seconds)
    elif rows:
      self._costs.note('step', rows, seconds)

  def seconds(self) -> list[tuple[str, int, float]]:
    """Returns the calls that were timed: kind, rows or tokens, and seconds."""
    return [(*call, x) for call, x in self._costs.timed.items()]

  def look_up(self, one: sequence_lib.Sequence) -> Found:
    """Returns tokens that may follow a sequence's text."""
    return find(one.whole_text())

  def _draft(
    self, one: sequence_lib.Sequence, rows: int
  ) -> tuple[float, Draft] | None:
    """Returns the tokens per second with a sequence's draft, if it pays."""
    record = self._records.setdefault(one, _Record())
    length = len(one.whole_text())
    if one.draws_left < 2 or length < record.until:
      return None
    tokens_L, common = self.look_up(one)
    tokens_L = tokens_L[: one.draws_left - 1]
    if not len(tokens_L):
      return None
    step = self._costs.seconds('step', rows)
    rate, size = self._rate(record, len(tokens_L), common, rows)
    if rate * step > rows:
      return rate, Draft(one, tokens_L[: size - 1], size)
    most, _ = self._rate(record, len(tokens_L), _MOST, rows)
    if most * step <= rows:
      record.rest(length)
    return None

  def _rate(
    self, record: _Record, count: int, common: int, rows: int
  ) -> tuple[float, int]:
    """Returns the best tokens per second with a draft, and its call's size."""
    rest = self._costs.seconds('step', rows - 1)

    def rate(size: int) -> float:
      tokens = rows + record.expect(min(size - 1, count), common)
      return tokens / (rest + self._costs.seconds('draft', size))

    size = max(self._rounds.drafts, key=rate)  # The smallest of equal ones.
    return rate(size), size


def list_sizes(
  decoder: decoder_lib.Decoder, chunk: int, isolates: bool
) -> list[int]:
  """Returns the tokens of an engine's calls that verify drafts, ascending.

  `chunk` and `isolates` are the engine's. Raises ValueError: no two sequences
  may share a call, or the decoder's rings have no room to drop a draft.
  """
  if isolates:
    raise ValueError(
      'isolates=True, speculates=True: a draft moves the last bits of logits.'
    )
  sizes = sorted({min(size, chunk) for size in SIZES})
  pools = decoder.network.pools.values()
  if any(pool.window is not None for pool in pools):
    sizes = [size for size in sizes if size <= decoder.extra + 1]
  if not sizes or sizes[0] < 2:
    raise ValueError(
      f'speculates=True: chunk={chunk} and extra={decoder.extra} slots of the'
      f' decoder leave no room for a draft; it takes extra={SIZES[-1] - 1}.'
    )
  return sizes


def find(text_L: np.ndarray) -> Found:
  """Returns what followed a text's last tokens earlier in it.

  Among the latest places it takes the one that has the most last tokens in
  common, the latest of equal ones. The end of the text is followed by what
  comes from there on, so that a text in a loop goes on in it.
  """
  count = len(text_L) - _LEAST
  if count < 1:
    return Found(text_L[:0], 0)
  is_there_L = text_L[:count] == text_L[count]
  for offset in range(1, _LEAST):
    is_there_L &= text_L[offset : count + offset] == text_L[count + offset]
  ends = np.flatnonzero(is_there_L)[: -_PLACES - 1 : -1] + _LEAST
  if not len(ends):
    return Found(text_L[:0], 0)
  common, end = max((_count_common(text_L, end), end) for end in ends.tolist())
  return Found(np.resize(text_L[end:], _CALL), common)


def _count_common(text_L: np.ndarray, end: int) -> int:
  """Returns how many last tokens before `end` are those of the whole text."""
  size = min(end, _MOST)
  differs = text_L[end - size : end] != text_L[len(text_L) - size :]
  return size - 1 - int(np.flatnonzero(differs)[-1]) if differs.any() else size
