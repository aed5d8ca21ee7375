"""The router: several replicas answer as one engine.

    router = Router(secret, Settings(wait=30))
    router.add(replica)
    (stream,) = await router.submit(request)

`policies.pick` chooses a replica by conversation, character and load; where it
is busy another one takes the request, and the client is refused only where all
are busy. A stream whose replica is lost goes on at another one
(`routed_stream.py`). Loads come from the replicas, once a second while requests
come, and from what was submitted since. The conversations in the replicas'
caches fill the table, so that a new router knows them.

All methods but `reading` and `stop` run in the server's event loop.
"""

import asyncio
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Sequence
import contextlib
import dataclasses
import logging
from typing import Any
from typing import NamedTuple

from kaiju_jax.decoding.engine import forgetting
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.serving.http import metrics
from kaiju_jax.serving.replies import token_stream
from kaiju_jax.serving.replies import worker as worker_lib
from kaiju_jax.serving.routing import forgotten as forgotten_lib
from kaiju_jax.serving.routing import names as names_lib
from kaiju_jax.serving.routing import places as places_lib
from kaiju_jax.serving.routing import policies
from kaiju_jax.serving.routing import replica as replica_lib
from kaiju_jax.serving.routing import rollout
from kaiju_jax.serving.routing import routed_stream

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Settings:
  """The settings of a router; the numbers are our guesses.

  Raises:
    ValueError: a policy that does not exist.
  """

  policy: str = 'sticky'  # One of `policies.NAMES`.
  # Conversations that the table knows at most, 24 bytes each.
  sessions: int = 2**16
  # Address of a Redis in which routers share their tables; '' for none.
  table: str = ''
  # wait, alternatives: as in `engines.Engines`, of all replicas.
  wait: float | None = 30.0
  alternatives: int = 0
  every: float = 1.0  # Seconds for which a replica's load is believed.
  # Seconds between two looks at the texts in the replicas' caches.
  learns: float = 10.0
  late: float = 5.0  # Seconds after which an account is not waited for.
  losses: int = 2  # losses, patience: see `routed_stream.Moving`.
  patience: float = 30.0

  def __post_init__(self):
    if self.policy not in policies.NAMES:
      raise ValueError(
        f'policy={self.policy!r}: must be one of {", ".join(policies.NAMES)}.'
      )


class Described(NamedTuple):
  """A replica as operators see it; fields as in `places.Place`."""

  name: str
  build: str
  share: float
  is_alive: bool
  is_closing: bool
  load: float
  running: int


class Router:
  """An `engines.Engines` over replicas.

  Args:
    secret: the fleet's, of which the pseudonyms in the table are made.
    settings: the router's.
  """

  def __init__(self, secret: bytes, settings: Settings = Settings()):
    self.moves = 0  # How often a text went on at another replica.
    self.names = names_lib.Names(secret)  # The fleet's pseudonyms.
    self._settings = settings
    self._places = places_lib.Places(
      self.names, policies.NAMES.index(settings.policy), settings.sessions
    )
    self._shared = self._sharing = None
    if settings.table:
      from kaiju_jax.serving.routing import shared_table  # redis is an extra.

      self._shared = shared_table.SharedTable(
        self._places.affinity,
        settings.table,
        self.list_held,
        prefix=f'kaiju:affinity:{self.names.fleet}:',
      )
    self._streams: set[routed_stream.RoutedStream] = set()
    self._forgotten = forgotten_lib.Forgotten(self.forget)
    self._moving = routed_stream.Moving(
      self._move, self._close, settings.losses, settings.patience
    )
    self._is_draining = False
    self._loop: asyncio.AbstractEventLoop | None = None
    self._asking: asyncio.Task | None = None
    self._asked = self._learned = float('-inf')

  def add(self, replica: replica_lib.Replica, share: float = 1.0) -> None:
    """Adds a replica, in the place of a dead one of its name if there is one.

    Args:
      replica: the replica.
      share: 0…1, to which part of new conversations it is open.

    Raises:
      ValueError: the share is wrong, or another replica has its name.
    """
    self._places.add(replica, share)
    self._asked = self._learned = float('-inf')

  def remove(self, name: str) -> replica_lib.Replica:
    """Removes a replica, which the caller may stop, and returns it.

    Its streams go on until it stops. Raises ValueError: see `places.find`.
    """
    return self._places.remove(name)

  def set_share(self, name: str, share: float) -> None:
    """Sets to which part of new conversations a replica is open, 0…1.

    Those that began with it stay. Raises ValueError: see `places.set_share`.
    """
    self._places.set_share(name, share)

  async def drain_one(self, name: str, seconds: float) -> int:
    """Takes all conversations off a replica, for good.

    Replies have some seconds to finish; the others go on elsewhere.

    Returns:
      How many did not finish.

    Raises:
      ValueError: see `places.find`.
    """
    place = self._places.find(name)
    place.is_closing = True
    with contextlib.suppress(worker_lib.Stopped):
      return await place.replica.drain(seconds)
    return 0

  def describe(self) -> list[Described]:
    """Returns the replicas as they are known here; `refresh` asks them."""
    return [
      Described(
        x.replica.name,
        x.build,
        x.share,
        x.replica.is_alive,
        x.is_closing,
        x.load,
        x.running,
      )
      for x in self._places
    ]

  def find(self, name: str) -> replica_lib.Replica:
    """Returns a replica; raises ValueError: see `places.find`."""
    return self._places.find(name).replica

  def tally(self, name: str) -> rollout.Tally:
    """Returns the requests that have ended at a replica.

    Raises:
      ValueError: see `places.find`.
    """
    return self._places.find(name).tally

  async def list_held(self) -> dict[str, Sequence[replica_lib.Held]]:
    """Returns the texts in the caches of the replicas that answer in time."""
    alive = [x for _, x in self._alive()]

    async def ask(replica):
      with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(self._settings.late):
          return await replica.list_held()

    found = await _gather([lambda x=x: ask(x) for x in alive])
    return {
      one.name: texts for one, texts in zip(alive, found) if texts is not None
    }

  def read_fleet(self) -> metrics.FleetReading:
    """Returns what metrics tell of the replicas and of the table."""
    return metrics.FleetReading(
      [
        metrics.ReplicaReading(
          x.name, x.build[:12], x.is_alive, x.share, x.load, x.running
        )
        for x in self.describe()
      ],
      len(self._places.affinity),
      self._places.affinity.moved,
      None if self._shared is None else not self._shared.is_away,
      0 if self._shared is None else self._shared.losses,
    )

  @property
  def is_alive(self) -> bool:
    """Whether a replica takes requests."""
    return any(place.is_open for place in self._places)

  @property
  def wait(self) -> float | None:
    """See `engines.Engines`."""
    return self._settings.wait

  @property
  def alternatives(self) -> int:
    """See `engines.Engines`."""
    return self._settings.alternatives

  @property
  def compilations(self) -> int:
    """How many compilations all replicas left for later."""
    return sum(state.compilations for state in self._states())

  @property
  def ready(self) -> int:
    """How many of them are done."""
    return sum(state.ready for state in self._states())

  async def begin(self) -> None:
    """Learns what caches hold, and shares the table from now on."""
    self._loop = asyncio.get_running_loop()
    await self.refresh(learns=True)
    if self._shared is not None and self._sharing is None:
      await self._shared.exchange()
      self._sharing = asyncio.create_task(self._shared.run())

  async def submit(
    self, *requests: request_lib.Request, before: int = 0
  ) -> Sequence[token_stream.TokenStream]:
    """Submits an answer's requests to one replica; see `engines.Engines`.

    Raises:
      TypeError, ValueError: names the field that is wrong.
      request.Busy: all replicas are busy; with the least wait.
      Lost: no replica is left.
    """
    self._loop = asyncio.get_running_loop()
    if self._loop.time() - self._asked > self._settings.every:
      self._ask_soon()
    place, streams = await self._open(requests, before, None)
    found = [
      routed_stream.RoutedStream(self._moving, request, before, place, stream)
      for request, stream in zip(requests, streams)
    ]
    self._streams.update(found)
    return found

  async def forget(self, wanted: forgetting.Forget) -> None:
    """Drops texts from all caches, and from the table.

    Raises:
      Lost: no replica is left.
    """
    for owner, conversation in wanted.conversations:
      self._places.forget(owner, conversation)
    self._forgotten.note(wanted, self._streams)
    alive = self._alive()
    if not alive:
      raise replica_lib.Lost('no replica is left.')
    # One that is lost meanwhile has lost its cache, too.
    await _gather([lambda x=x: x.forget(wanted) for _, x in alive])

  async def drain(self, seconds: float) -> int:
    """Refuses requests; returns how many had to be ended after `seconds`."""
    self._is_draining = True
    drains = [lambda x=x: x.drain(seconds) for _, x in self._alive()]
    ended = await _gather(drains)
    return sum(count or 0 for count in ended)

  async def refresh(self, learns: bool = False) -> None:
    """Asks all replicas for their loads.

    Args:
      learns: whether to ask for the texts in their caches as well.
    """
    await _gather([lambda x=x: self._ask(*x, learns) for x in self._alive()])

  def reading(self) -> metrics.Reading | None:
    """Returns the sum of the replicas' readings; None where there is none.

    It blocks, outside the event loop, until they have answered. The wait is the
    least of them.
    """
    if self._loop is not None and self._loop.is_running():
      asked = asyncio.run_coroutine_threadsafe(self.refresh(), self._loop)
      with contextlib.suppress(TimeoutError):
        asked.result(2 * self._settings.late)
    found = [state.reading for state in self._states()]
    return _sum(found) if found else None

  def stop(self) -> None:
    """Stops all replicas, which ends their streams."""
    for place in self._places:
      place.replica.stop()

  def _alive(self) -> list[tuple[places_lib.Place, replica_lib.Replica]]:
    return [(x, x.replica) for x in self._places if x.replica.is_alive]

  def _states(self) -> list[replica_lib.State]:
    return [x.state for x, _ in self._alive() if x.state is not None]

  async def _open(
    self,
    requests: Sequence[request_lib.Request],
    before: int,
    build: str | None,
    without: Sequence[places_lib.Place] = (),
  ) -> tuple[places_lib.Place, Sequence[token_stream.TokenStream]]:
    """Submits requests to the best replica that takes them."""
    if self._is_draining:
      raise request_lib.Busy('the server is being stopped.', None)
    tried = list(without)
    busy: list[request_lib.Busy] = []
    while place := self._places.pick(requests[0], build, tried):
      tried.append(place)
      # Another one may have its place by the time that it answers.
      replica = place.replica
      try:
        streams = await replica.submit(*requests, before=before)
      except request_lib.Busy as error:
        busy.append(error)
      except worker_lib.Stopped:
        _LOG.warning('replica %s is lost.', replica.name)
      else:
        self._places.note(requests[0], place)
        return place, streams
    if not busy:
      raise replica_lib.Lost('no replica is left.')
    raise min(busy, key=lambda x: (x.seconds is None, x.seconds))

  async def _move(
    self,
    request: request_lib.Request,
    before: int,
    build: str | None,
    had: Sequence[places_lib.Place],
  ) -> tuple[places_lib.Place, token_stream.TokenStream]:
    """Submits a text whose replica is lost to another one, as `_open`."""
    place, (stream,) = await self._open([request], before, build, had)
    self.moves += 1
    return place, stream

  def _close(self, stream: routed_stream.RoutedStream) -> None:
    self._streams.discard(stream)
    self._forgotten.settle(stream)

  def _ask_soon(self) -> None:
    """Asks for loads beside the requests, unless that is going on."""
    if self._asking is not None and not self._asking.done():
      return
    now = asyncio.get_running_loop().time()
    self._asked = now
    learns = now - self._learned > self._settings.learns
    if learns:
      self._learned = now
    self._asking = asyncio.create_task(self.refresh(learns))

  async def _ask(
    self, place: places_lib.Place, replica: replica_lib.Replica, learns: bool
  ) -> None:
    charged = place.charged
    with contextlib.suppress(TimeoutError):
      async with asyncio.timeout(self._settings.late):
        place.take_state(await replica.state(), charged)
        if learns:
          held = await replica.list_held()
          if place.replica is replica:
            self._places.learn(place, held)


async def _gather(calls: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
  """Returns the values of calls to replicas; None for one that is lost."""

  async def caught(call):
    with contextlib.suppress(worker_lib.Stopped):
      return await call()
    return None

  return await asyncio.gather(*map(caught, calls))


def _sum(found: Sequence[metrics.Reading]) -> metrics.Reading:
  pages: dict[tuple[str, str], int] = {}
  for one in found:
    for key, count in one.pages.items():
      pages[key] = pages.get(key, 0) + count
  return metrics.Reading(
    pages,
    sum(one.points for one in found),
    sum(one.evictions for one in found),
    sum(one.waiting for one in found),
    sum(one.running for one in found),
    min(one.wait for one in found),
  )
