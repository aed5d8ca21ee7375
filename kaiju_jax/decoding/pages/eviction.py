"""Eviction: picks the points that the prefix tree drops when a pool is full.

The tree reports events of its points to a `Policy`, and has it pick one point
after another until there is room. `Learned`, the engine's, draws 16 points at
random and picks the one of least value for its cost:

    value = rate of resumption × tokens behind the longest point that it extends
    cost  = fraction of both pools that its pages fill, shared pages in parts

The rates are learned from the time since each owner last asked: `Returns`
counts how many owners returned at each age of absence, and how long all were
away. Before any data it assumes 1 / age. An owner is expected at the point
where its conversation ended or, once that point is evicted, at the one that it
extended. A point at which no owner is expected has 15 % of an owner's rate, for
swipes and edits. A shared prefix also has the rate at which conversations begin
there. The sources are silent: all of this is our guess.
"""

import bisect
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Iterable
import dataclasses
import enum
import math
import random
import time
from typing import Protocol

from kaiju_jax.decoding.pages import nodes
from kaiju_jax.decoding.pages import pages as pages_lib

# Where ages begin: 8 seconds to 3 days in steps of √2, so that a pause for
# thought and a night's sleep fall into different ones.
_EDGES = (0.0, *(8 * 2 ** (step / 2) for step in range(31)))
# Returns between two computations of the rates.
_EVERY = 64
# The fraction of requests that are swipes or edits, which resume a point before
# the conversation's last; our guess.
_ASIDE = 0.15
# Seconds added to a prefix's age, so that a new one counts one use an hour.
_HOUR = 3600.0
# How many owners one point remembers; the latest are kept.
_OWNERS = 64
# How many points are drawn for an eviction; ranking one walks up its text.
_DRAWN = 16


class Event(enum.Enum):
  """An event of a point.

  Attributes:
    RECORDED: an owner's conversation ends there; its first event.
    RESUMED: a request of an owner resumes it.
    DROPPED: it left the tree; its last event.
  """

  RECORDED = enum.auto()
  RESUMED = enum.auto()
  DROPPED = enum.auto()


class Policy(Protocol):
  """Decides which points of one prefix tree are evicted."""

  def note(self, event: Event, point: nodes.Point, owner: bytes = b'') -> None:
    """Notes an event, caused by a request of `owner`."""

  def pick(self, points: Iterable[nodes.Point]) -> nodes.Point:
    """Returns the point to evict, which the tree drops at once.

    `points` are all of the tree's, at least one, the least recently used first.
    A request that resumes a point uses those that it extends, too.
    """


class LeastRecentlyUsed:
  """The plain policy, which is the measure of others."""

  def note(self, event: Event, point: nodes.Point, owner: bytes = b'') -> None:
    """Ignores the event: the tree itself keeps the order of use."""

  def pick(self, points: Iterable[nodes.Point]) -> nodes.Point:
    return next(iter(points))


class Learned:
  """Picks the point of least value for its cost among some drawn at random."""

  def __init__(
    self,
    pages: pages_lib.Pages,
    page: int,
    clock: Callable[[], float] = time.monotonic,
  ):
    """Starts without points.

    Args:
      pages: the tree's pages.
      page: S, tokens of a page.
      clock: returns seconds since a fixed moment.
    """
    self._pages = pages
    self._page = page
    self._demand = Demand(clock)
    self._uses: dict[nodes.Point, Use] = {}
    self._set = RandomSet()

  def note(self, event: Event, point: nodes.Point, owner: bytes = b'') -> None:
    if event is Event.DROPPED:
      del self._uses[point]
      self._set.remove(point)
      return
    if point not in self._uses:
      is_prefix = point.length <= point.shared
      self._uses[point] = self._demand.begin_use(is_prefix)
      self._set.add(point)
    if event is Event.RESUMED:
      self._demand.resume(self._uses[point], owner)
      self._demand.learn(self._uses.values())
    else:
      above = (self._uses[other] for other in nodes.ancestors(point))
      self._demand.move_owner(self._uses[point], owner, above)

  def pick(self, points: Iterable[nodes.Point]) -> nodes.Point:
    """Returns the point to evict.

    Its owners are then expected at the point that it went on from.
    """
    few = len(self._uses) <= _DRAWN
    point = min(points if few else self._set.draw(_DRAWN), key=self._worth)
    above = next(nodes.ancestors(point), None)
    heir = None if above is None else self._uses[above]
    self._demand.inherit(self._uses[point], heir)
    return point

  def _worth(self, point: nodes.Point) -> float:
    """Returns the tokens per second that a point alone saves, over its cost."""
    above = next(nodes.ancestors(point), None)
    saved = point.length - (0 if above is None else above.length)
    cost = nodes.share_of_pools(point, self._page, self._pages)
    return self._demand.rate(self._uses[point]) * saved / max(cost, 1e-9)


class Returns:
  """Statistics of how long owners stay away before they return."""

  def __init__(self):
    """Starts as if one owner had returned in the middle of each age."""
    self._returns = [1.0] * len(_EDGES)
    self._seconds = [(_EDGES[i] + _end(i)) / 2 for i in range(len(_EDGES))]
    self._unread = 0
    self._rates = _best_rates(self._returns, self._seconds)

  def note_return(self, age: float) -> None:
    """Counts a return after `age` seconds."""
    self.add_absence(self._seconds, age)
    self._returns[_index(age)] += 1
    self._unread += 1

  def note_loss(self, age: float) -> None:
    """Counts an owner that was away for `age` seconds and is forgotten."""
    self.add_absence(self._seconds, age)

  @property
  def is_stale(self) -> bool:
    """Whether enough owners have returned that `read` should run."""
    return self._unread >= _EVERY

  def read(self, ages: Iterable[float]) -> None:
    """Computes the rates anew; `ages` are those of all present absences."""
    seconds = list(self._seconds)
    for age in ages:
      self.add_absence(seconds, age)
    self._rates = _best_rates(self._returns, seconds)
    self._unread = 0

  def rate(self, age: float) -> float:
    """Returns the returns per second to expect of an owner away for `age`.

    It is the highest rate over all times to wait from now (Gittins' index): if
    owners away for ten minutes seldom return within the hour but often after
    two hours, it is that of waiting two hours.
    """
    return self._rates[_index(age)]

  @staticmethod
  def add_absence(seconds: list[float], age: float) -> None:
    """Adds the seconds that an absence of `age` spent at each age."""
    for i in range(_index(age) + 1):
      seconds[i] += min(age, _end(i, math.inf)) - _EDGES[i]


def _index(age: float) -> int:
  return max(0, bisect.bisect_right(_EDGES, age) - 1)


def _end(index: int, last: float | None = None) -> float:
  """Returns where an age ends; for the last, `last` or twice its beginning."""
  if index + 1 < len(_EDGES):
    return _EDGES[index + 1]
  return 2 * _EDGES[index] if last is None else last


def _best_rates(returns: list[float], seconds: list[float]) -> list[float]:
  """Returns for each age the most returns per second waited from it on."""
  hazards = [count / time for count, time in zip(returns, seconds)]
  rates = []
  for first in range(len(_EDGES)):
    away, back, waited, best = 1.0, 0.0, 0.0, 0.0
    for i in range(first, len(_EDGES)):
      left = away * math.exp(-hazards[i] * (_end(i) - _EDGES[i]))
      back += away - left
      waited += (away - left) / hazards[i]
      best, away = max(best, back / waited), left
    rates.append(best)
  return rates


@dataclasses.dataclass(eq=False, slots=True)
class Use:
  """The demand for one point: which owners are expected to resume it.

  Attributes:
    is_prefix: whether conversations of several owners begin here.
    made: the clock's seconds at which the point was recorded.
    used: the seconds at which it, or a point that extends it, was last
      recorded.
    owners: the owners whose conversations end here, with the seconds at which
      each last asked.
    begun: the number of conversations that began here.
  """

  is_prefix: bool
  made: float
  used: float
  owners: dict[bytes, float] = dataclasses.field(default_factory=dict)
  begun: int = 0


class Demand:
  """The expected rates of resumption of a tree's points."""

  def __init__(self, clock: Callable[[], float]):
    """Starts without owners; `clock` returns seconds since a fixed moment."""
    self._clock = clock
    self.returns = Returns()

  def begin_use(self, is_prefix: bool) -> Use:
    """Returns the demand for a new point."""
    now = self._clock()
    return Use(is_prefix, now, now, begun=int(is_prefix))

  def resume(self, use: Use, owner: bytes) -> None:
    """Counts that a request of an owner resumes a point."""
    now = self._clock()
    if owner in use.owners:
      self.returns.note_return(now - use.owners[owner])
    elif use.is_prefix:
      use.begun += 1
    else:
      self.returns.note_return(now - use.used)
    self._add(use, owner, now)

  def move_owner(self, use: Use, owner: bytes, above: Iterable[Use]) -> None:
    """Moves an owner from the points `above` to where its conversation ends."""
    now = self._clock()
    for other in above:
      other.owners.pop(owner, None)
      other.used = now
    use.used = now
    self._add(use, owner, now)

  def inherit(self, use: Use, heir: Use | None) -> None:
    """Moves an evicted point's owners to `heir`; forgets them without one."""
    now = self._clock()
    for owner, last in use.owners.items():
      if heir is None:
        self.returns.note_loss(now - last)
      elif last > heir.owners.get(owner, -math.inf):
        self._add(heir, owner, last)

  def rate(self, use: Use) -> float:
    """Returns how many requests per second are expected to resume a point."""
    now = self._clock()
    rate = sum(self.returns.rate(now - last) for last in use.owners.values())
    if use.is_prefix:
      return rate + use.begun / (now - use.made + _HOUR)
    return rate or _ASIDE * self.returns.rate(now - use.used)

  def learn(self, uses: Iterable[Use]) -> None:
    """Updates the rates from all points' `uses`, after enough returns."""
    if self.returns.is_stale:
      now = self._clock()
      self.returns.read(
        now - last for use in uses for last in use.owners.values()
      )

  def _add(self, use: Use, owner: bytes, last: float) -> None:
    use.owners[owner] = last
    if len(use.owners) > _OWNERS:
      oldest = min(use.owners, key=use.owners.get)
      self.returns.note_loss(self._clock() - use.owners.pop(oldest))


class RandomSet:
  """A set that draws random elements, the same in every run."""

  def __init__(self):
    self._all: list[Hashable] = []
    self._places: dict[Hashable, int] = {}
    self._random = random.Random(0)

  def add(self, one: Hashable) -> None:
    self._places[one] = len(self._all)
    self._all.append(one)

  def remove(self, one: Hashable) -> None:
    place, last = self._places.pop(one), self._all.pop()
    if last is not one:
      self._all[place] = last
      self._places[last] = place

  def draw(self, count: int) -> list:
    """Returns `count` different elements."""
    return self._random.sample(self._all, count)
