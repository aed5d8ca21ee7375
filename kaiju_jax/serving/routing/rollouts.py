"""Rollouts of a router's replicas, by name or by build.

    rollouts = Rollouts(router, list_public)
    rollouts.add(replica)
    rollouts.start('replica 3', rollout.Plan())
    rollouts.start('b7c1f0', rollout.Plan(requests=50), replaces=True)
    rollouts.roll_back('b7c1f0')

A build is all replicas with its weights, calibration and head. Where a rollout
replaces the others, their shares end with its last step: what began on them
ends there. A rollback gives them back, before it takes the share of what it
rolls back, so that new conversations always have a replica.

A replica that begins cold would prefill its first sessions' characters again,
each while somebody waits. So the prefixes that the other replicas use most are
run on it while its share is 0. They are those of public characters alone: a
text of an owner is prefilled where that owner talks, and nowhere else.

All methods run in the server's event loop.
"""

import asyncio
import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import logging
import time
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling
from kaiju_jax.serving.http import metrics
from kaiju_jax.serving.replies import worker as worker_lib
from kaiju_jax.serving.routing import replica as replica_lib
from kaiju_jax.serving.routing import rollout as rollout_lib
from kaiju_jax.serving.routing import router as router_lib

_LOG = logging.getLogger(__name__)
# Our guesses: seconds between updates, prefixes of a warming, ended rollouts
# that are still listed, digits of a build that name it.
_POLL_S, _PREFIXES, _KEPT, _DIGITS = 1.0, 64, 8, 6


# Seconds until a replica is asked again that takes no more; our guess.
_PAUSE = 0.5


class Prefix(NamedTuple):
  """A public character's prefix."""

  salt: str  # Its cache salt, which holds no owner.
  tokens: np.ndarray  # int32 [n].


@dataclasses.dataclass(eq=False)
class _Running:
  """A rollout, with what it changes."""

  of: str  # The name or the build.
  names: list[str]
  rollout: rollout_lib.Rollout
  replaces: bool = False  # Whether the others close with its last step.
  # Whether it skips its steps where nothing is to be warmed, or no other
  # replica is left.
  is_urgent: bool = False
  # The shares that it has taken from others.
  closed: dict[str, float] = dataclasses.field(default_factory=dict)
  prefixes: int = 0  # How many were warmed.
  task: asyncio.Task | None = None  # Looks after it.


class Rollouts:
  """The rollouts of one router."""

  def __init__(
    self,
    router: router_lib.Router,
    list_public: Callable[[], Sequence[Prefix]],
    note: Callable[[Mapping[str, Any]], None] = lambda _: None,
    *,
    clock: Callable[[], float] = time.monotonic,
    poll_s: float = _POLL_S,
  ):
    """Begins without any.

    Args:
      list_public: returns the prefixes of public characters; may block.
      note: called with the state of a rollout that has gone a step.
      poll_s: seconds between two updates.
    """
    self._router = router
    self._list_public = list_public
    self._note = note
    self._clock = clock
    self._poll_s = poll_s
    self._rollouts: list[_Running] = []

  def add(self, replica: replica_lib.Replica) -> None:
    """Adds a replica that has come: warms and opens it if its build serves.

    One of another build waits without a share for an operator. Where no other
    replica takes new conversations, or their caches hold nothing yet, it is
    open at once.

    Raises:
      ValueError: another replica has its name.
    """
    open_ = [x for x in self._router.describe() if _is_open(x)]
    self._router.add(replica, 0.0 if open_ else 1.0)
    if any(x.build == replica.build for x in open_):
      self._start(
        _Running(
          replica.name,
          [replica.name],
          rollout_lib.Rollout(rollout_lib.Plan(), self._clock()),
          is_urgent=True,
        )
      )
    elif open_:
      _LOG.warning(
        'replica %s is of build %s, which does not serve: roll it out.',
        replica.name,
        replica.build[:12],
      )

  def start(
    self, of: str, plan: rollout_lib.Plan, replaces: bool = False
  ) -> dict[str, Any]:
    """Starts a rollout; returns its state.

    Args:
      of: a replica's name, or the first digits of a build.
      replaces: whether all other replicas close with its last step.

    Raises:
      ValueError: there is no such replica, a rollout of it runs, or no other
        replica would take new conversations meanwhile.
    """
    names = self.find(of)
    self._check_idle(names)
    self._check_open(names, {})
    rollout = rollout_lib.Rollout(plan, self._clock())
    return self._start(_Running(of, names, rollout, replaces))

  def _start(self, one: _Running) -> dict[str, Any]:
    self._set_shares(one.names, 0.0)
    ended = [x for x in self._rollouts if x.rollout.has_ended and not x.closed]
    for old in ended[:-_KEPT]:
      self._rollouts.remove(old)
    self._rollouts.append(one)
    one.task = asyncio.create_task(self._run(one))
    return _describe(one)

  def roll_back(self, of: str) -> list[str]:
    """Takes the share of replicas back at once; returns their names.

    What has begun on them ends there; `Router.drain_one` takes it off. What
    their rollout closed is open again.

    Raises:
      ValueError: there is no such replica, or no other one would take new
        conversations.
    """
    names = self.find(of)
    mine = [x for x in self._rollouts if {*x.names} & {*names}]
    again: dict[str, float] = {}
    for one in mine:
      again |= one.closed
    self._check_open(names, again)
    for one in mine:
      if not one.rollout.has_ended:
        one.rollout.stop('rolled back')
        one.task.cancel()
        self._set_shares(one.names, 0.0)
      one.closed = {}
    for name, share in again.items():
      self._set_shares([name], share)
    self._set_shares(names, 0.0)
    return names

  def set_share(self, of: str, share: float) -> list[str]:
    """Sets the share of replicas; returns their names.

    Raises:
      ValueError: there is no such replica, a rollout of it runs, the share is
        not 0…1, or no replica would take new conversations.
    """
    names = self.find(of)
    self._check_idle(names)
    if share == 0:
      self._check_open(names, {})
    for name in names:
      self._router.set_share(name, share)
    return names

  def close(self, name: str) -> list[str]:
    """Closes a replica to new conversations before it is drained.

    Raises:
      ValueError: there is no such replica, a name is a build's, a rollout of it
        runs, or no other one would take new conversations.
    """
    self._check_name(name)
    return self.set_share(name, 0.0)

  def remove(self, name: str) -> replica_lib.Replica:
    """Takes a lost or drained replica out; the caller stops it.

    Raises:
      ValueError: there is no such replica, or it serves.
    """
    self._check_name(name)
    (one,) = [x for x in self._router.describe() if x.name == name]
    if one.is_alive and not one.is_closing:
      raise ValueError(f'of={name!r}: it serves; drain it first.')
    return self._router.remove(name)

  def find(self, of: str) -> list[str]:
    """Returns the replica of a name, or all of a build.

    Raises:
      ValueError: there is none, or the digits name several builds.
    """
    known = self._router.describe()
    if any(one.name == of for one in known):
      return [of]
    builds = {x.build for x in known if x.build.startswith(of)}
    if len(of) < _DIGITS or len(builds) != 1:
      names = ', '.join(f'{one.name} ({one.build[:12]})' for one in known)
      raise ValueError(
        f'of={of!r}: must be a replica, or {_DIGITS} digits or more of a build:'
        f' {names or "none"}.'
      )
    return [one.name for one in known if one.build in builds]

  def describe(self) -> list[dict[str, Any]]:
    """Returns the states of rollouts, the latest last."""
    return [_describe(one) for one in self._rollouts]

  def stop(self) -> None:
    """Ends the tasks; shares stay."""
    for one in self._rollouts:
      one.task.cancel()

  async def _run(self, one: _Running) -> None:
    """Looks after a rollout until it ends."""
    warming_ = asyncio.create_task(self._warm(one))
    rollout, share = one.rollout, None
    self._note(_describe(one))
    try:
      while not rollout.has_ended:
        await asyncio.sleep(self._poll_s)
        is_warm = warming_.done()
        if is_warm and (error := warming_.exception()) is not None:
          raise error
        rollout.update(self._clock(), self._observe(one, is_warm))
        is_idle = is_warm and not one.prefixes
        may_finish = one.is_urgent and not rollout.has_ended
        if may_finish and (is_idle or not self._are_others_open(one.names)):
          rollout.finish()
        if rollout.share != share:
          share = rollout.share
          self._set_shares(one.names, share)
          if not rollout.has_ended:
            self._note(_describe(one))
      if rollout.state == rollout_lib.DONE and one.replaces:
        self._replace(one)
    except Exception as error:
      _LOG.exception('the rollout of %s failed', one.of)
      rollout.stop(f'it failed: {type(error).__name__}')
      self._set_shares(one.names, 0.0)
    finally:
      warming_.cancel()
      self._note(_describe(one))

  async def _warm(self, one: _Running) -> None:
    """Prefills on each of the replicas what the others use most."""
    public = await asyncio.to_thread(self._list_public)
    cached = await self._router.list_cached()
    others = [texts for name, texts in cached.items() if name not in one.names]
    ranked = rank(public, others, self._router.pseudonyms)[:_PREFIXES]
    for name in one.names:
      try:
        replica = self._router.find(name)
        one.prefixes += await warm(replica, ranked)
      except (worker_lib.Stopped, ValueError):
        return  # The next look finds that it is gone.

  def _observe(self, one: _Running, is_warm: bool) -> rollout_lib.Observation:
    known = {x.name: x for x in self._router.describe()}
    own = others = rollout_lib.RequestCounts()
    for name in known:
      if name in one.names:
        own += self._router.count_requests(name)
      else:
        others += self._router.count_requests(name)
    is_alive = all(
      name in known and known[name].is_alive and not known[name].is_closing
      for name in one.names
    )
    return rollout_lib.Observation(is_alive, is_warm, own, others)

  def _are_others_open(
    self, names: Sequence[str], shares: Mapping[str, float] = {}
  ) -> bool:
    return any(
      _is_open(x._replace(share=shares.get(x.name, x.share)))
      for x in self._router.describe()
      if x.name not in names
    )

  def _replace(self, one: _Running) -> None:
    """Closes the others to new conversations, and notes their shares."""
    for other in self._router.describe():
      if other.name not in one.names and other.share:
        one.closed[other.name] = other.share
        self._router.set_share(other.name, 0.0)

  def _set_shares(self, names: Sequence[str], share: float) -> None:
    """Sets shares of those replicas that are still there."""
    known = {x.name for x in self._router.describe()}
    for name in names:
      if name in known:
        self._router.set_share(name, share)

  def _check_name(self, name: str) -> None:
    if self.find(name) != [name]:
      raise ValueError(f'of={name!r}: must name a replica, one at a time.')

  def _check_idle(self, names: Sequence[str]) -> None:
    for one in self._rollouts:
      if not one.rollout.has_ended and {*one.names} & {*names}:
        raise ValueError(
          f'of={one.of!r}: a rollout of it runs; roll that back first.'
        )

  def _check_open(
    self, without: Sequence[str], shares: Mapping[str, float]
  ) -> None:
    """Refuses what would leave no replica for new conversations."""
    if not self._are_others_open(without, shares):
      raise ValueError(
        f'of={", ".join(without)}: no other replica would take new'
        ' conversations; open one first.'
      )


def _is_open(one: metrics.ReplicaReading) -> bool:
  """Returns whether a replica takes new conversations."""
  return one.is_alive and not one.is_closing and one.share > 0


def _describe(one: _Running) -> dict[str, Any]:
  return {
    'of': one.of,
    'replicas': one.names,
    'state': one.rollout.state,
    'share': one.rollout.share,
    'reason': one.rollout.reason,
    'prefixes': one.prefixes,
  }


def rank(
  prefixes: Iterable[Prefix],
  held: Iterable[Sequence[replica_lib.CachedText]],
  names: replica_lib.Pseudonyms,
) -> list[Prefix]:
  """Returns the prefixes that replicas use, the most used first.

  Args:
    prefixes: of public characters.
    held: the texts of each replica's cache; each counts for its prefix.
    names: of the fleet.
  """
  uses = collections.Counter(one.salt for texts in held for one in texts)
  found = [(uses[names.salt(one.salt)], one) for one in prefixes]
  found.sort(key=lambda pair: -pair[0])
  return [one for count, one in found if count]


async def warm(replica: replica_lib.Replica, prefixes: Iterable[Prefix]) -> int:
  """Prefills prefixes one after another; returns how many.

  What fills the cache too far is the replica's to evict, so give no more than
  fit, the most used first.

  Raises:
    Lost: the replica is gone.
  """
  count = 0
  for prefix in prefixes:
    request = request_lib.Request(
      prefix.tokens,
      1,
      sampling.Sampling(temperature=0),
      shared=len(prefix.tokens),
      cache_salt=prefix.salt,
    )
    while True:
      try:
        (stream,) = await replica.submit(request)
        break
      except request_lib.Busy:
        await asyncio.sleep(_PAUSE)
    async for _ in stream:
      pass
    count += 1
  return count
