"""Eviction: picks the points that the prefix tree drops when a pool is full.

The tree reports events of its points to a `Policy`, and has it pick one point
after another until there is room. `LeastWorth`, the engine's, draws 16 points
at random and picks the one of least worth:

    worth = requests/s × tokens behind the longest point that it extends
            / fraction of all pools that its pages fill, shared pages in parts

    requests/s of any point    1 / 2 (seconds since it was used, at least 8)
    of a prefix, beside that   conversations begun / (seconds it exists + 3600)

A request uses the point that it resumes and all that this one extends. Uses
over age and size, ranked among a few drawn points, is hyperbolic caching
(Blankstein et al., 2017). The sources are silent: all of this is our guess.
"""

from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Iterable
import dataclasses
import enum
import random
import time
from typing import Any
from typing import NamedTuple
from typing import Protocol

from kaiju_jax.decoding.pages import nodes
from kaiju_jax.decoding.pages import pages as pages_lib

# The least seconds since a use: below them nobody is sooner back than others.
_SECONDS = 8.0
# Seconds added to a prefix's age, so that a new one counts one use an hour.
_HOUR = 3600.0
# How many points are drawn for an eviction; ranking one walks up its text.
_DRAWN = 16


class Event(enum.Enum):
  """An event of a point.

  Attributes:
    RECORDED: a conversation ends there; its first event.
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


class Demand(NamedTuple):
  """The demand for a point, without a clock.

  Attributes:
    age: seconds since it was recorded.
    idle: seconds since it, or a point that extends it, was used last.
    begun: for a shared prefix, how many conversations began there.
  """

  age: float
  idle: float
  begun: int


@dataclasses.dataclass(eq=False, slots=True)
class _Use:
  """The demand for one point, with the clock's seconds of its first and last
  use.
  """

  made: float
  used: float
  begun: int = 0


class LeastWorth:
  """Picks the point of least worth among some drawn at random."""

  def __init__(
    self,
    pages: pages_lib.Pages,
    clock: Callable[[], float] = time.monotonic,
  ):
    """Starts without points; the `clock` returns seconds."""
    self._pages = pages
    self._clock = clock
    self._uses: dict[nodes.Point, _Use] = {}
    self._set = RandomSet()

  def note(self, event: Event, point: nodes.Point, owner: bytes = b'') -> None:
    if event is Event.DROPPED:
      del self._uses[point]
      self._set.remove(point)
      return
    now = self._clock()
    if point not in self._uses:
      self._uses[point] = _Use(now, now)
      self._set.add(point)
    self._uses[point].begun += point.length <= point.shared
    for used in (point, *nodes.ancestors(point)):
      self._uses[used].used = now

  def pick(self, points: Iterable[nodes.Point]) -> nodes.Point:
    few = len(self._uses) <= _DRAWN
    return min(points if few else self._set.draw(_DRAWN), key=self.worth)

  def demand(self, point: nodes.Point) -> Demand:
    """Returns the demand for a point up to now."""
    now, use = self._clock(), self._uses[point]
    return Demand(now - use.made, now - use.used, use.begun)

  def set_demand(self, point: nodes.Point, demand: Demand) -> None:
    """Takes over the demand for a point that another process recorded."""
    now = self._clock()
    self._uses[point] = _Use(now - demand.age, now - demand.idle, demand.begun)

  def worth(self, point: nodes.Point) -> float:
    """Returns the tokens per second that a point alone saves, over its cost."""
    now, use = self._clock(), self._uses[point]
    rate = 0.5 / max(now - use.used, _SECONDS)
    rate += use.begun / (now - use.made + _HOUR)
    above = next(nodes.ancestors(point), None)
    saved = point.length - (0 if above is None else above.length)
    cost = nodes.share_of_pools(point, self._pages)
    return rate * saved / max(cost, 1e-9)


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

  def draw(self, count: int) -> list[Any]:
    """Returns `count` different elements."""
    return self._random.sample(self._all, count)
