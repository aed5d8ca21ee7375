"""The router: several replicas answer as one engine.

    router = Router(secret, Settings(max_wait_s=30))
    router.add(replica)
    (stream,) = await router.submit(request)

`policies.pick` chooses a replica by conversation, character and load. If it is
busy, the request goes to the next best; the client is refused only if all are.
If a stream's replica dies, the stream continues at another one (a failover,
`routed_stream.py`).

The affinity table says which replica served each conversation last. While
requests come, the router polls each replica's status (its load) at most once a
second, and its prefix cache every ten seconds; conversations found in the
caches enter the table, so that a restarted router knows them.

All methods but `read_engine` and `stop` run in the server's event loop.
"""

import asyncio
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Sequence
import contextlib
import dataclasses
import logging
from typing import Any

from kaiju_jax.decoding.engine import forgetting
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.serving.http import metrics
from kaiju_jax.serving.replies import token_stream
from kaiju_jax.serving.replies import worker as worker_lib
from kaiju_jax.serving.routing import policies
from kaiju_jax.serving.routing import replica as replica_lib
from kaiju_jax.serving.routing import replica_states
from kaiju_jax.serving.routing import rollout
from kaiju_jax.serving.routing import routed_stream

_LOG = logging.getLogger(__name__)
_DRAIN_POLL_S = 0.05  # Seconds between two checks whether streams have ended.


@dataclasses.dataclass(frozen=True)
class Settings:
  """The settings of a router; the numbers are our guesses.

  Raises:
    ValueError: a policy that does not exist.
  """

  policy: str = 'sticky'  # One of `policies.NAMES`.
  # Maximum number of conversations in the affinity table, 24 bytes each.
  sessions: int = 2**16
  # Address of a Redis in which routers share their affinity tables; '': none.
  table: str = ''
  # As in `replica.Engines`.
  max_wait_s: float | None = 30.0
  max_alternatives: int = 0
  # Refresh a replica's load after this many seconds.
  load_max_age_s: float = 1.0
  # Poll the replicas' prefix caches this often.
  cache_poll_s: float = 10.0
  # Give up waiting for a replica's status.
  status_timeout_s: float = 5.0
  # See `routed_stream.Failover`.
  max_losses: int = 2
  busy_timeout_s: float = 30.0
  # Whether no other router uses the replicas. If others do, `drain` ends this
  # router's streams alone.
  owns_replicas: bool = True

  def __post_init__(self) -> None:
    if self.policy not in policies.NAMES:
      raise ValueError(
        f'policy={self.policy!r}: must be one of {", ".join(policies.NAMES)}.'
      )


class Router:
  """Several replicas as one `replica.Engines`.

  Methods that take a replica's name raise ValueError where there is none.

  Args:
    secret: the fleet's key, under which the table's pseudonyms are HMACs.
  """

  def __init__(self, secret: bytes, settings: Settings = Settings()):
    self.failovers: int = 0  # How often a stream continued at another replica.
    self.max_wait_s: float | None = (
      settings.max_wait_s
    )  # See `replica.Engines`.
    self.max_alternatives: int = settings.max_alternatives
    self.pseudonyms: replica_lib.Pseudonyms = replica_lib.Pseudonyms(secret)
    self._settings = settings
    self._replicas = replica_states.ReplicaStates(
      self.pseudonyms, policies.NAMES.index(settings.policy), settings.sessions
    )
    self._shared_table = self._sharing = None
    if settings.table:
      from kaiju_jax.serving.routing import shared_table  # redis is an extra.

      self._shared_table = shared_table.SharedTable(
        self._replicas.affinity,
        settings.table,
        self.list_cached,
        prefix=f'kaiju:affinity:{self.pseudonyms.fleet}:',
      )
    self._streams: set[routed_stream.RoutedStream] = set()
    self._repeated_removals: set[asyncio.Task] = set()
    self._failover = routed_stream.Failover(
      self._resubmit,
      self._on_close,
      settings.max_losses,
      settings.busy_timeout_s,
    )
    self._is_draining = False
    self._loop: asyncio.AbstractEventLoop | None = None
    self._polling: asyncio.Task | None = None
    self._polled_at = self._caches_polled_at = float('-inf')

  def add(self, replica: replica_lib.Replica, share: float = 1.0) -> None:
    """Adds a replica; it replaces a dead one with the same name.

    Args:
      share: 0…1, the part of new conversations that it takes.

    Raises:
      ValueError: the share is wrong, or another replica has its name.
    """
    self._replicas.add(replica, share)
    self._polled_at = self._caches_polled_at = float('-inf')

  def remove(self, name: str) -> replica_lib.Replica:
    """Takes a replica out; its streams run until the caller stops it."""
    return self._replicas.remove(name)

  def set_share(self, name: str, share: float) -> None:
    """Sets the part of new conversations that a replica takes, 0…1."""
    self._replicas.set_share(name, share)

  async def drain_one(self, name: str, seconds: float) -> int:
    """Closes a replica for good, before it is removed.

    Running replies have some seconds to finish; the rest fail over.

    Returns:
      How many failed over.
    """
    state = self._replicas.find(name)
    state.is_closing = True
    with contextlib.suppress(worker_lib.Stopped):
      return await state.replica.drain(seconds)
    return 0

  def describe(self) -> list[metrics.ReplicaReading]:
    """Returns the replicas' states as last polled; `refresh` polls them."""
    return [
      metrics.ReplicaReading(
        x.replica.name,
        x.build,
        x.share,
        x.replica.is_alive,
        x.is_closing,
        x.load,
        x.running,
      )
      for x in self._replicas
    ]

  def find(self, name: str) -> replica_lib.Replica:
    """Returns a replica."""
    return self._replicas.find(name).replica

  def count_requests(self, name: str) -> rollout.RequestCounts:
    """Returns how many requests have ended at a replica, and how."""
    return self._replicas.find(name).ended

  async def list_cached(self) -> dict[str, Sequence[replica_lib.CachedText]]:
    """Returns the cached texts by replica, of those that answer in time."""
    alive = [x for _, x in self._alive()]

    async def fetch_cached(replica):
      with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(self._settings.status_timeout_s):
          return await replica.list_cached()

    found = await _gather([lambda x=x: fetch_cached(x) for x in alive])
    return {
      one.name: texts for one, texts in zip(alive, found) if texts is not None
    }

  def read_fleet(self) -> metrics.FleetReading:
    """Returns the router's own metrics: replicas, affinity table."""
    table = self._shared_table
    return metrics.FleetReading(
      self.describe(),
      len(self._replicas.affinity),
      self._replicas.affinity.moved,
      None if table is None else not table.is_away,
      0 if table is None else table.losses,
    )

  @property
  def is_alive(self) -> bool:
    """Whether any replica is open: alive, and not closing."""
    return any(state.is_open for state in self._replicas)

  @property
  def compilations(self) -> int:
    """The programs that replicas left to compile after their start."""
    return sum(status.compilations for status in self._statuses())

  @property
  def compiled(self) -> int:
    """How many of these programs have compiled."""
    return sum(status.compiled for status in self._statuses())

  async def begin(self) -> None:
    """Fills the affinity table from the caches, and begins to share it."""
    self._loop = asyncio.get_running_loop()
    await self.refresh(polls_caches=True)
    if self._shared_table is not None and self._sharing is None:
      await self._shared_table.exchange()
      self._sharing = asyncio.create_task(self._shared_table.run())

  async def submit(
    self, *requests: request_lib.Request
  ) -> Sequence[token_stream.TokenStream]:
    """Submits an answer's requests to one replica.

    Raises:
      TypeError, ValueError: names the field that is wrong.
      request.Busy: all replicas are busy (the shortest wait), or this drains.
      Lost: no replica is left.
    """
    self._loop = asyncio.get_running_loop()
    if self._loop.time() - self._polled_at > self._settings.load_max_age_s:
      self._poll_in_background()
    state, streams = await self._open(requests, None)
    found = [
      routed_stream.RoutedStream(self._failover, request, state, stream)
      for request, stream in zip(requests, streams)
    ]
    self._streams.update(found)
    return found

  async def forget(self, wanted: forgetting.Forget) -> None:
    """Drops texts from all caches and from the affinity table.

    Raises:
      Lost: no replica is left.
    """
    for owner, conversation in wanted.conversations:
      self._replicas.forget(owner, conversation)
    removed = set(wanted.conversations)
    for stream in self._streams:
      stream.is_removed |= stream.conversation in removed
    alive = self._alive()
    if not alive:
      raise replica_lib.Lost('no replica is left.')
    # A replica that dies meanwhile loses its cache, too.
    await _gather([lambda x=x: x.forget(wanted) for _, x in alive])

  async def drain(self, seconds: float) -> int:
    """Refuses requests; returns how many had to be ended after `seconds`."""
    self._is_draining = True
    if not self._settings.owns_replicas:
      return await self._drain_own_streams(seconds)
    drains = [lambda x=x: x.drain(seconds) for _, x in self._alive()]
    ended = await _gather(drains)
    return sum(count or 0 for count in ended)

  async def refresh(self, polls_caches: bool = False) -> None:
    """Polls the status of each replica; on request its prefix cache, too."""
    await _gather(
      [lambda x=x: self._poll(*x, polls_caches) for x in self._alive()]
    )

  def read_engine(self) -> metrics.Reading | None:
    """Returns the sum of the engines' metrics; None before any answered.

    Blocks for at most 2 · `status_timeout_s`, so call it outside the event
    loop. A replica that is late counts as last polled.
    """
    if self._loop is not None and self._loop.is_running():
      asked = asyncio.run_coroutine_threadsafe(self.refresh(), self._loop)
      with contextlib.suppress(TimeoutError):
        asked.result(2 * self._settings.status_timeout_s)
    found = [status.reading for status in self._statuses()]
    return metrics.add_up(found) if found else None

  def stop(self) -> None:
    """Stops all replicas (a `RemoteReplica`: its streams to this process)."""
    for state in self._replicas:
      state.replica.stop()

  def _alive(
    self,
  ) -> list[tuple[replica_states.ReplicaState, replica_lib.Replica]]:
    return [(x, x.replica) for x in self._replicas if x.replica.is_alive]

  def _statuses(self) -> list[replica_lib.Status]:
    return [x.status for x, _ in self._alive() if x.status is not None]

  async def _open(
    self,
    requests: Sequence[request_lib.Request],
    build: str | None,
    exclude: Sequence[replica_states.ReplicaState] = (),
  ) -> tuple[replica_states.ReplicaState, Sequence[token_stream.TokenStream]]:
    """Submits requests to the best replica that is not too busy.

    Args:
      build: only replicas of this build may take them; None: any.
    """
    if self._is_draining:
      raise request_lib.Busy('the server is being stopped.', None)
    tried = list(exclude)
    busy: list[request_lib.Busy] = []
    while state := self._replicas.pick(requests[0], build, tried):
      tried.append(state)
      # By the time it answers, another replica may have its index.
      replica = state.replica
      try:
        streams = await replica.submit(*requests)
      except request_lib.Busy as error:
        busy.append(error)
      except worker_lib.Stopped:
        _LOG.warning('replica %s is lost.', replica.name)
      else:
        self._replicas.note(requests[0], state)
        return state, streams
    if not busy:
      raise replica_lib.Lost('no replica is left.')
    raise min(busy, key=lambda x: (x.seconds is None, x.seconds))

  async def _resubmit(
    self,
    request: request_lib.Request,
    build: str | None,
    tried: Sequence[replica_states.ReplicaState],
  ) -> tuple[replica_states.ReplicaState, token_stream.TokenStream]:
    """Continues a text at another replica, for `routed_stream.Failover`."""
    state, (stream,) = await self._open([request], build, tried)
    self.failovers += 1
    return state, stream

  def _on_close(self, stream: routed_stream.RoutedStream) -> None:
    self._streams.discard(stream)
    if stream.is_removed and stream.failovers:
      # Its last replica may not know of the removal, and has cached the text.
      wanted = forgetting.Forget(conversations=(stream.conversation,))
      task = asyncio.create_task(self._forget_again(wanted))
      self._repeated_removals.add(task)
      task.add_done_callback(self._repeated_removals.discard)

  async def _forget_again(self, wanted: forgetting.Forget) -> None:
    with contextlib.suppress(worker_lib.Stopped):
      await self.forget(wanted)

  async def _drain_own_streams(self, seconds: float) -> int:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while self._streams and loop.time() < end:
      await asyncio.sleep(_DRAIN_POLL_S)
    left = list(self._streams)
    for stream in left:
      stream.cancel()
    return len(left)

  def _poll_in_background(self) -> None:
    """Starts a poll of all replicas, unless one is in flight."""
    if self._polling is not None and not self._polling.done():
      return
    now = asyncio.get_running_loop().time()
    self._polled_at = now
    polls_caches = now - self._caches_polled_at > self._settings.cache_poll_s
    if polls_caches:
      self._caches_polled_at = now
    self._polling = asyncio.create_task(self.refresh(polls_caches))

  async def _poll(
    self,
    state: replica_states.ReplicaState,
    replica: replica_lib.Replica,
    polls_cache: bool,
  ) -> None:
    charged = state.charged
    with contextlib.suppress(TimeoutError):
      async with asyncio.timeout(self._settings.status_timeout_s):
        state.update(await replica.status(), charged)
        if polls_cache:
          cached = await replica.list_cached()
          if state.replica is replica:
            self._replicas.learn(state, cached)


async def _gather(calls: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
  """Calls replicas at once; the value of one that dies is None."""

  async def caught(call):
    with contextlib.suppress(worker_lib.Stopped):
      return await call()
    return None

  return await asyncio.gather(*map(caught, calls))
