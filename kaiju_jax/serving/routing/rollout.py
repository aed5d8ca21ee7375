"""Brings a replica into the fleet by steps: warm, 10 %, 50 %, all of its share.

    rollout = Rollout(Plan(), now)
    rollout.update(now, Observation(is_alive, is_warm, own, others))
    rollout.share, rollout.state, rollout.reason

It begins with a share of 0, while public prefixes are prefilled (source 003's
shadow-warm). Each step is held for a time, and ends in the next one if the
replica lives and neither fails nor refuses more than the others do; otherwise
the share is 0 again, at once, with the reason. A share is that of the sessions
which may begin on the replica: those that have begun there stay, whatever the
share, until it is lost or drained.

Source 003 has the shares; times, tests and counts are our guess.
"""

import dataclasses
from typing import NamedTuple

import scipy.special

WARMING, OPENING, DONE, STOPPED = 'warming', 'opening', 'done', 'stopped'


@dataclasses.dataclass(frozen=True)
class Plan:
  """The steps of a rollout."""

  shares: tuple[float, ...] = (0.1, 0.5, 1.0)  # The shares, ascending to 1.
  hold: float = 60.0  # Seconds of each.
  warm_timeout_s: float = 300.0  # After which a cold replica is given up.
  # Fewest requests of the replica by which a step is judged: 0 where it is of
  # the others' build and only has to live.
  requests: int = 0
  patience: float = 3600.0  # Seconds after which a step with fewer is given up.
  # That a step of a replica no worse than the others is stopped.
  chance: float = 0.01
  at_once: float = 1e-5  # The same, of each update within a step.

  def __post_init__(self) -> None:
    """Raises ValueError: names the field, its value and what is right."""
    ascending = sorted({*self.shares})
    if list(self.shares) != ascending or ascending[-1:] != [1.0]:
      raise ValueError(f'shares={self.shares}: must ascend, and end in 1.')
    if ascending[0] <= 0:
      raise ValueError(f'shares={self.shares}: must be above 0.')
    for name in 'hold', 'warm_timeout_s', 'patience', 'requests':
      value = getattr(self, name)
      if not value >= 0:
        raise ValueError(f'{name}={value}: must be 0 or more.')


class RequestCounts(NamedTuple):
  """The requests of one replica or several, since they came."""

  requests: int = 0  # Those that have ended.
  failures: int = 0  # Those of them that ended in an error.
  refusals: int = 0  # Those of them that safety ended.

  def __add__(self, other: 'RequestCounts') -> 'RequestCounts':
    return RequestCounts(*(a + b for a, b in zip(self, other)))

  def __sub__(self, other: 'RequestCounts') -> 'RequestCounts':
    return RequestCounts(*(a - b for a, b in zip(self, other)))


class Observation(NamedTuple):
  """A replica beside the others, at one time."""

  is_alive: bool  # Whether the replica answers.
  is_warm: bool  # Whether its prefixes have been prefilled.
  own: RequestCounts
  others: RequestCounts  # Those of the replicas that serve beside it.


def chance_of(own: RequestCounts, others: RequestCounts, field: str) -> float:
  """Returns how likely so many of a kind are if both have the same rate.

  Given all of the kind, each falls on a side in proportion to its requests:
  exact for rates, and too high for proportions, so that none is stopped for
  chance. 1 where the others have no request.
  """
  hits = getattr(own, field)
  total = hits + getattr(others, field)
  if not hits or not others.requests:
    return 1.0
  part = own.requests / (own.requests + others.requests)
  return float(scipy.special.bdtrc(hits - 1, total, part))


class Rollout:
  """One rollout; pure but for its own state."""

  def __init__(self, plan: Plan, now: float):
    """Begins to warm, with a share of 0."""
    self.plan = plan
    # 'warming', 'opening', 'done' or 'stopped'. Of the replica, from now on.
    # Why it was stopped; '' otherwise.
    self.state: str = WARMING
    self.share: float = 0.0
    self.reason: str = ''
    self._step = -1
    self._since = now
    self._before: tuple[RequestCounts, RequestCounts] | None = None

  @property
  def has_ended(self) -> bool:
    """Whether updates change nothing any more."""
    return self.state in (DONE, STOPPED)

  def stop(self, reason: str) -> None:
    """Takes the share back, at once, whatever the state."""
    self.state, self.share, self.reason = STOPPED, 0.0, reason

  def finish(self) -> None:
    """Opens the replica at once, with its whole share."""
    self.state, self.share = DONE, 1.0

  def update(self, now: float, observed: Observation) -> None:
    """Goes a step on, or back, where it is time to."""
    if self.has_ended:
      return
    if not observed.is_alive:
      self.stop('the replica is gone')
    elif self.state == WARMING:
      if observed.is_warm:
        self._open(now, observed)
      elif now - self._since >= self.plan.warm_timeout_s:
        self.stop(f'not warm within {self.plan.warm_timeout_s:g} s')
    else:
      self._judge(now, observed)

  def _judge(self, now: float, observed: Observation) -> None:
    own, others = (
      one - before
      for one, before in zip((observed.own, observed.others), self._before)
    )
    waited = now - self._since
    is_time = waited >= self.plan.hold and own.requests >= self.plan.requests
    fault = _fault(own, others, self.plan.chance if is_time else 0.0)
    fault = fault or _fault(own, others, self.plan.at_once)
    if fault:
      self.stop(f'at a share of {self.share:g}: {fault}')
    elif is_time:
      self._open(now, observed)
    elif waited >= max(self.plan.patience, self.plan.hold):
      self.stop(
        f'at a share of {self.share:g}: {own.requests} requests within'
        f' {waited:.0f} s, too few to judge it by'
      )

  def _open(self, now: float, observed: Observation) -> None:
    """Begins the next step, in which only its own requests count."""
    self._step += 1
    self._since, self._before = now, (observed.own, observed.others)
    if self._step == len(self.plan.shares):
      self.state = DONE
    else:
      self.state, self.share = OPENING, self.plan.shares[self._step]


def _fault(own: RequestCounts, others: RequestCounts, chance: float) -> str:
  """Returns what is worse than among the others, by a test; '' for nothing."""
  for field in 'failures', 'refusals':
    hits = getattr(own, field)
    if chance_of(own, others, field) < chance:
      return (
        f'{hits} {field} in {own.requests} requests;'
        f' others: {getattr(others, field)} in {others.requests}'
      )
  # Without others to compare with, most must not fail.
  is_most = own.failures >= 5 and own.failures > own.requests / 2
  if is_most and not others.requests:
    return f'{own.failures} failures in {own.requests} requests'
  return ''
