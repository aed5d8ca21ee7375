"""How often a point is asked for: what a tree evicts by, learned as it serves.

Each point is worth its rate, how often somebody is expected to resume it, times
the tokens that it alone saves, beyond the point that it goes on from. It costs
the part of both pools that its pages fill; a page that several points need is
charged to them in equal parts. What is worth least for its cost goes first
(`prefix_tree.py`).

Rates come from the time since each owner last asked. `Returns` counts, per age,
how many came back and how long all were away, and begins with the rate that
knows nothing, 1 / age. An owner counts where its conversation ended, and once
that point is evicted, at the point that it went on from. A shared prefix has,
besides, the rate at which owners have begun behind it.

The sources are silent: all of this is our guess.
"""

import bisect
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Iterable
import dataclasses
import math
import random

# Ages from 8 seconds to 3 days, in steps of √2: a pause for thought and a
# night's sleep lie in different ones.
_EDGES = (0.0, *(8 * 2 ** (step / 2) for step in range(31)))
# Returns between two tables of rates.
_EVERY = 64
# A conversation's points before its last one are for swipes and edits: the part
# of the requests that these are, our guess.
_ASIDE = 0.15
# Seconds after which one beginning behind a prefix counts as one an hour.
_HOUR = 3600.0
# Owners that are known at one point; the latest are kept.
_OWNERS = 64


class Returns:
  """After which times owners come back: what waiting for one is worth."""

  def __init__(self):
    """Has seen nobody yet: as if one had returned in the middle of each age."""
    self._returns = [1.0] * len(_EDGES)
    self._seconds = [(_EDGES[i] + _end(i)) / 2 for i in range(len(_EDGES))]
    self._unread = 0
    self._rates = _best_rates(self._returns, self._seconds)

  def saw(self, age: float) -> None:
    """Counts a return after `age` seconds."""
    self.away(self._seconds, age)
    self._returns[_index(age)] += 1
    self._unread += 1

  def gave_up(self, age: float) -> None:
    """Counts an owner who was away for `age` seconds and is forgotten."""
    self.away(self._seconds, age)

  @property
  def is_stale(self) -> bool:
    """Returns whether `read` should be called."""
    return self._unread >= _EVERY

  def read(self, ages: Iterable[float]) -> None:
    """Makes the rates anew.

    Args:
      ages: of all who are away now.
    """
    seconds = list(self._seconds)
    for age in ages:
      self.away(seconds, age)
    self._rates = _best_rates(self._returns, seconds)
    self._unread = 0

  def rate(self, age: float) -> float:
    """Returns how many returns per second waiting for an owner is worth.

    Of all times to wait, the one with the most returns per second waited
    (Gittins' index): who never comes back between ten minutes and an hour, but
    often after two hours, is worth the wait for these at ten minutes.
    """
    return self._rates[_index(age)]

  @staticmethod
  def away(seconds: list[float], age: float) -> None:
    """Adds the seconds that an absence of `age` spent at each age."""
    for i in range(_index(age) + 1):
      seconds[i] += min(age, _end(i, math.inf)) - _EDGES[i]


def _index(age: float) -> int:
  return max(0, bisect.bisect_right(_EDGES, age) - 1)


def _end(index: int, last: float | None = None) -> float:
  """Returns where an age ends; of the last, twice its beginning or `last`."""
  if index + 1 < len(_EDGES):
    return _EDGES[index + 1]
  return 2 * _EDGES[index] if last is None else last


def _best_rates(returns: list[float], seconds: list[float]) -> list[float]:
  """Returns, from each age on, the most returns per second waited."""
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
  """Who is expected at a point.

  Attributes:
    is_prefix: whether conversations of several owners begin here.
    made: when it was recorded, in seconds of the clock.
    used: when it was last resumed, or went on from.
    owners: when each last asked whose conversation ends here, as far as there
      are points of it.
    begun: how many conversations began here.
  """

  is_prefix: bool
  made: float
  used: float
  owners: dict[bytes, float] = dataclasses.field(default_factory=dict)
  begun: int = 0


class Demand:
  """The rates of a tree's points.

  Attributes:
    returns: what was learned of absences.
  """

  def __init__(self, clock: Callable[[], float]):
    """Knows nobody.

    Args:
      clock: seconds, from any moment on.
    """
    self._clock = clock
    self.returns = Returns()

  def begin_use(self, is_prefix: bool) -> Use:
    """Returns the use of a new point."""
    now = self._clock()
    return Use(is_prefix, now, now, begun=int(is_prefix))

  def resume(self, use: Use, owner: bytes) -> None:
    """Notes that a request goes on from a point."""
    now = self._clock()
    if owner in use.owners:
      self.returns.saw(now - use.owners[owner])
    elif use.is_prefix:
      use.begun += 1
    else:
      self.returns.saw(now - use.used)
    self._add(use, owner, now)

  def leave(self, use: Use, owner: bytes, above: Iterable[Use]) -> None:
    """Notes that an owner's conversation now ends at a point.

    Args:
      use: of the point.
      owner: whose request it is.
      above: of the points that it goes on from.
    """
    now = self._clock()
    for other in above:
      other.owners.pop(owner, None)
      other.used = now
    use.used = now
    self._add(use, owner, now)

  def inherit(self, use: Use, heir: Use | None) -> None:
    """Leaves an evicted point's owners to the point that it went on from."""
    now = self._clock()
    for owner, asked in use.owners.items():
      if heir is None:
        self.returns.gave_up(now - asked)
      elif asked > heir.owners.get(owner, -math.inf):
        self._add(heir, owner, asked)

  def rate(self, use: Use) -> float:
    """Returns how many requests per second are expected at a point."""
    now = self._clock()
    rate = sum(self.returns.rate(now - asked) for asked in use.owners.values())
    if use.is_prefix:
      return rate + use.begun / (now - use.made + _HOUR)
    return rate or _ASIDE * self.returns.rate(now - use.used)

  def learn(self, uses: Iterable[Use]) -> None:
    """Brings the rates up to date, now and then.

    Args:
      uses: of all points.
    """
    if self.returns.is_stale:
      now = self._clock()
      self.returns.read(
        now - asked for use in uses for asked in use.owners.values()
      )

  def _add(self, use: Use, owner: bytes, asked: float) -> None:
    use.owners[owner] = asked
    if len(use.owners) > _OWNERS:
      oldest = min(use.owners, key=use.owners.get)
      self.returns.gave_up(self._clock() - use.owners.pop(oldest))


class Drawn:
  """Some of many things, drawn at random: the same ones in every run."""

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

  def some(self, count: int) -> list:
    """Returns `count` different ones."""
    return self._random.sample(self._all, count)
