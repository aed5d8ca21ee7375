"""Shares the router's table with other routers, through a Redis.

    shared = SharedTable(affinity, 'redis://HOST:PORT/0', router.list_cached)
    task = asyncio.create_task(shared.run())

Twice a second one batch writes this router's new uses and reads those of
others, so that no request waits for Redis. While Redis is unreachable, each
router continues with its own table, and writes all of it later. A table that is
lost (emptied, or on another server) is rebuilt from this router's memory and
from the replicas' caches; of several uses the latest counts.

In Redis, behind a prefix:

    generation    a random word; another one means: write and read everything
    s:REPLICA     a sorted set: a session's number, 8 bytes, by the
                  milliseconds of its last use there

`ZADD GT` keeps the latest use, whoever writes last; it needs Redis 6.2. Numbers
are parts of HMACs. So a reader of Redis learns how many sessions a replica has
and when each was used, but not whose they are. Sessions that were
deleted stay for as long as unused ones.
"""

import asyncio
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import logging
import secrets
import time
from typing import NamedTuple

import numpy as np
import redis

from kaiju_jax.serving.routing import affinity as affinity_lib
from kaiju_jax.serving.routing import replica as replica_lib
from kaiju_jax.serving.stores import characters
from kaiju_jax.serving.stores import redis_link

_LOG = logging.getLogger(__name__)
# Our guesses.
INTERVAL_S = 0.5  # Seconds.
_PIECE = 10_000  # Sessions of a command.
_SKEW = 5_000  # Milliseconds by which two routers' clocks may differ.
_TIDIES = 60.0  # Seconds between two removals of what is too old.


class _Read(NamedTuple):
  """The result of an exchange."""

  generation: str | None  # Of the table; None for a table that is lost.
  rows: list[affinity_lib.Rows]  # What any router noted.


class SharedTable:
  """Synchronizes a router's affinity table with one in Redis.

  Attributes:
    failures: how many exchanges failed.
    losses: how often the table in Redis was lost.
  """

  def __init__(
    self,
    affinity: affinity_lib.Affinity,
    address: str,
    list_cached: Callable[
      [], Awaitable[Mapping[str, Sequence[replica_lib.CachedText]]]
    ],
    *,
    prefix: str = 'kaiju:affinity:',
    interval_s: float = INTERVAL_S,
    timeout: float = redis_link.TIMEOUT,
  ):
    """Connects with the first exchange.

    Args:
      affinity: the router's table.
      address: redis://, rediss:// or unix://.
      list_cached: returns the texts in the caches of replicas, by their names.
      prefix: of all keys.
      interval_s: seconds between two exchanges.
      timeout: seconds for an answer of Redis.

    Raises:
      ValueError: the address is not valid.
    """
    self._affinity = affinity
    self._link = redis_link.Link(address, timeout, pause=interval_s)
    self._list_cached = list_cached
    self._prefix = prefix
    self._interval_s = interval_s
    self.is_away = False  # Whether the last exchange failed.
    self.failures: int = 0
    self.losses: int = 0
    self._generation: str | None = None
    # When it last exchanged, in milliseconds.
    self._exchanged_at = affinity.now()
    self._since: dict[str, int] = {}
    self._tidied = -_TIDIES

  async def run(self) -> None:
    """Exchanges until it is cancelled."""
    try:
      while True:
        await self.exchange()
        await asyncio.sleep(self._interval_s)
    finally:
      self._link.close()

  async def exchange(self) -> None:
    """Writes and reads once; only counts a failure."""
    noted, now, names = (
      self._affinity.take(),
      self._affinity.now(),
      self._affinity.names,
    )
    # Others have already read past the times of these uses.
    is_late = self.is_away or now - self._exchanged_at > _SKEW // 2
    try:
      read = await self._call(noted, names)
      word = read.generation
      is_known = word is not None and word == self._generation
      if is_late or not is_known:
        read = await self._begin(read.generation, is_late)
    except characters.Unavailable as error:
      self.failures += 1
      if not self.is_away:
        _LOG.warning('The table of sessions is not shared: %s', error)
      self.is_away = True
      return
    if self.is_away:
      _LOG.warning('The table of sessions is shared again.')
    self.is_away: bool = False
    self._generation, self._exchanged_at = read.generation, now
    self._since = dict.fromkeys(names, now - _SKEW)
    await self._merge(read.rows)

  async def _begin(self, found: str | None, is_late: bool) -> _Read:
    """Writes and reads everything: at first, after an outage or a loss."""
    if found is None:
      if self._generation is not None:
        self.losses += 1
        _LOG.warning('The shared table of sessions was lost: it is rebuilt.')
      held, now = await self._list_cached(), self._affinity.now() / 1000
      await self._merge(
        affinity_lib.rows_of_cached(name, texts, now)
        for name, texts in held.items()
      )
    # A new word has others write and read everything, too.
    word = secrets.token_hex(8) if found is None or is_late else None
    self._since = {}
    return await self._call(
      self._affinity.list_all(), self._affinity.names, word, found is None
    )

  async def _merge(self, rows: Iterable[affinity_lib.Rows]) -> None:
    """Merges rows in pieces, between which requests are answered."""
    for piece in _pieces(rows):
      self._affinity.merge([piece])
      await asyncio.sleep(0)

  async def _call(
    self,
    rows: Sequence[affinity_lib.Rows],
    names: Sequence[str],
    word: str | None = None,
    if_none: bool = False,
  ) -> _Read:
    """Writes rows, and reads those since the last exchange, in a thread."""
    oldest, since = self._affinity.oldest, dict(self._since)
    is_due = time.monotonic() - self._tidied >= _TIDIES
    if is_due:
      self._tidied = time.monotonic()
      self._affinity.expire()

    def work(server: redis.Redis) -> _Read:
      if word is not None:
        server.set(self._prefix + 'generation', word, nx=if_none)
      generation = server.get(self._prefix + 'generation')
      for one in _pieces(rows):
        self._write(server, one)
      if is_due:
        for name in names:
          self._tidy(server, name, oldest)
      read = [self._read(server, x, since.get(x, oldest)) for x in names]
      return _Read(generation and generation.decode(), read)

    return await asyncio.to_thread(self._link.run, work)

  def _write(self, server: redis.Redis, rows: affinity_lib.Rows) -> None:
    members = rows.sessions.astype('>i8').tobytes()
    scores = {
      members[8 * n : 8 * n + 8]: score
      for n, score in enumerate(rows.times.tolist())
    }
    if scores:
      server.zadd(self._key(rows.name), scores, gt=True)

  def _read(
    self, server: redis.Redis, name: str, since: int
  ) -> affinity_lib.Rows:
    """Returns a replica's sessions since a time, the latest first."""
    members, times = [], []
    most = len(self._affinity.table)
    for begin in range(0, most, _PIECE):
      found = server.zrevrangebyscore(
        self._key(name), '+inf', since, begin, _PIECE, withscores=True
      )
      # Whoever can write to Redis could store what is no session.
      kept = [(x, y) for x, y in found if len(x) == 8 and y < 2**62]
      members += [member for member, _ in kept]
      times += [int(score) for _, score in kept]
      if len(found) < _PIECE:
        break
    sessions = np.frombuffer(b''.join(members), '>i8').astype(np.int64)
    return affinity_lib.Rows(name, sessions, np.array(times, np.int64))

  def _tidy(self, server: redis.Redis, name: str, oldest: int) -> None:
    """Removes what is too old or too much; a table that nobody uses ends."""
    key = self._key(name)
    server.zremrangebyscore(key, '-inf', f'({oldest}')
    server.zremrangebyrank(key, 0, -len(self._affinity.table) - 1)
    server.pexpire(key, 2 * (self._affinity.now() - oldest))

  def _key(self, name: str) -> str:
    return f'{self._prefix}s:{name}'


def _pieces(rows: Iterable[affinity_lib.Rows]) -> Iterator[affinity_lib.Rows]:
  for one in rows:
    for n in range(0, len(one.sessions), _PIECE):
      part = slice(n, n + _PIECE)
      yield affinity_lib.Rows(one.name, one.sessions[part], one.times[part])
