"""Reading pace: streams that are ahead of their readers let others run first.

A stream is ahead if a reader of `Pace.high` tokens per second, who began with
its first token, has not read to its end. It may then sit out a round of the
engine. In every second it still draws about `Pace.low` tokens. `schedule.plan`
decides whether a round is one in which another gains by it.

The sources name a reading pace and no mechanism: this one is our guess.
"""

from collections.abc import Iterable
import dataclasses
from typing import NamedTuple
import weakref

from kaiju_jax.decoding.engine import phases
from kaiju_jax.decoding.engine import sequence as sequence_lib

# Seconds that a stream may make up after a stall, so that rounds, which come
# at their own times, do not make it slower than its pace.
CREDIT = 0.25


class Pace(NamedTuple):
  """Tokens per second: a stream above `high` may wait, one below `low` not."""

  low: float
  high: float


def parse(text: str, name: str = 'pace') -> Pace:
  """Returns the pace of 'LOW:HIGH'; raises ValueError for any other text."""
  low, _, high = text.partition(':')
  try:
    pace = Pace(float(low), float(high))
  except ValueError:
    pace = Pace(0.0, 0.0)
  if not 0 < pace.low <= pace.high < float('inf'):
    raise ValueError(
      f'{name}={text}: must be LOW:HIGH, two numbers of tokens per second with'
      ' 0 < LOW <= HIGH, such as 8:30.'
    )
  return pace


@dataclasses.dataclass
class _Reader:
  """The reader of one stream; times are in seconds of the engine's clock.

  At `high` tokens per second it has read all when it is `due`; at `low` the
  next token comes at `least`. `drawn` tokens are noted.
  """

  due: float
  least: float
  drawn: int = 0

  def note(self, drawn: int, pace: Pace, now: float) -> None:
    """Notes how many tokens the stream has by now."""
    if drawn > self.drawn:
      stalled = now - CREDIT
      self.due = max(self.due, stalled) + (drawn - self.drawn) / pace.high
      self.least = min(max(self.least, stalled), now) + 1 / pace.low
      self.drawn = drawn


class Pacing:
  """The readers of one engine's streams."""

  def __init__(self, pace: Pace):
    self._pace = pace
    self._readers: weakref.WeakKeyDictionary[sequence_lib.Sequence, _Reader] = (
      weakref.WeakKeyDictionary()
    )

  def find_early(
    self, running: Iterable[sequence_lib.Sequence], now: float
  ) -> frozenset[int]:
    """Returns the numbers of the sequences that may sit out a round at `now`.

    A second call with the same sequences and time returns the same.
    """
    early = []
    for one in running:
      if one.phase is phases.Phase.DRAWING:
        reader = self._readers.setdefault(one, _Reader(now, now))
        reader.note(one.length - one.given + one.flying, self._pace, now)
        if now < min(reader.due, reader.least):
          early.append(one.number)
    return frozenset(early)
