"""Keeps characters and conversations in Redis, for servers that share them.

    store = redis_store.RedisStore('redis://host:6379/0')

Each write is one transaction (WATCH, MULTI, EXEC; no scripts), repeated after a
conflict with another. While Redis is unreachable, this process serves the
sessions that it lately used, and their versions, from memory; all other reads
and every write raise `Unavailable` within seconds. The store recovers by
itself.

An acknowledged write is as durable as Redis is configured: `appendonly yes`
with `appendfsync always` loses nothing, with `everysec` up to a second; a
server without `appendonly` loses all since its last snapshot. The store needs
Redis 6.2 or newer.
"""

from collections.abc import Callable
import logging
import random
import time
from typing import TypeVar

import redis

from kaiju_jax.serving.stores import character_rules as rules
from kaiju_jax.serving.stores import characters
from kaiju_jax.serving.stores import conversing
from kaiju_jax.serving.stores import records
from kaiju_jax.serving.stores import redis_link
from kaiju_jax.serving.stores import redis_recent
from kaiju_jax.serving.stores import redis_records

T = TypeVar('T')

SCHEMA = 2
_PROBE = 60  # Seconds until a probe is forgotten.
TRIES = 32  # Of one transaction (our guess).
_LOG = logging.getLogger(__name__)


class RedisStore(conversing.Store):
  """`conversing.Store` in Redis.

  Args:
    address, timeout, pause: as in `redis_link.Link`.
    prefix: the prefix of every key; stores with different ones share a server.

  Raises:
    ValueError: the address is not valid, the server evicts keys or is part of
      a cluster, or the store has a newer schema.
    characters.Unavailable: the server cannot be reached, or refuses.
  """

  def __init__(
    self,
    address: str,
    limits: rules.Limits | None = None,
    clock: Callable[[], float] = time.time,
    prefix: str = 'kaiju:',
    recent: redis_recent.Recent | None = None,
    timeout: float = redis_link.TIMEOUT,
    pause: float = redis_link.PAUSE,
  ):
    super().__init__(limits, clock)
    self._prefix = prefix
    self._recent = recent or redis_recent.Recent()
    self._link = redis_link.Link(address, timeout, pause)
    try:
      self._link.recognize(self._recognize)
    except BaseException:
      self._link.close()
      raise

  def close(self) -> None:
    self._link.close()

  def check(self) -> None:
    # A server that is full, or a replica, refuses it as it does any write.
    self._link.run(
      lambda server: server.set(f'{self._prefix}probe', 1, ex=_PROBE)
    )
    self._link.faults.end()

  def _read(self, work: Callable[[records.Reads], T]) -> T:
    try:
      return self._link.run(
        lambda server: work(
          redis_records.RedisReads(server, self._prefix, self._recent)
        )
      )
    except characters.Unavailable as error:
      try:
        return work(redis_records.MemoryReads(self._recent, error))
      except LookupError:
        # Another owner's session must look like one that is not remembered.
        raise error from None

  def _write(self, work: Callable[[records.Writes], T]) -> T:
    for attempt in range(TRIES):
      try:
        result = self._link.run(lambda server: self._once(server, work))
        self._link.faults.end()
        return result
      except redis.WatchError:
        time.sleep(random.uniform(0, min(2**attempt, 32)) / 1000)
    raise characters.Conflict(
      f'others changed the same {TRIES} times meanwhile; nothing was stored.'
      ' Try again.'
    )

  def _once(
    self, server: redis.Redis, work: Callable[[records.Writes], T]
  ) -> T:
    with self._link.pipeline(server) as pipeline:
      writes = redis_records.RedisWrites(pipeline, self._prefix, self._recent)
      result = work(writes)
      writes.commit()
      return result

  def _recognize(self, server: redis.Redis) -> None:
    """Rejects a server, or a store in it, that would lose or misread data."""
    name = self._link.name
    if server.info('cluster').get('cluster_enabled'):
      raise ValueError(f'store {name}: {redis_link.describe_cluster()}.')
    memory = server.info('memory')
    policy = memory.get('maxmemory_policy', '')
    if memory.get('maxmemory') and policy.startswith('allkeys'):
      raise ValueError(
        f'store {name}: the server deletes keys when its memory is full'
        f' (maxmemory-policy {policy}); must be noeviction.'
      )
    if not server.info('persistence').get('aof_enabled'):
      _LOG.warning(
        '%s keeps no log (appendonly no): a restart loses what was said since'
        ' its last snapshot.',
        name,
      )
    schema = self._migrate(server)
    if schema > SCHEMA:
      raise ValueError(
        f'store {name}: written by a newer kaiju_jax (schema {schema}; this'
        f' one knows {SCHEMA}). Update kaiju_jax, or use another prefix than'
        f' {self._prefix!r}.'
      )

  def _migrate(self, server: redis.Redis) -> int:
    """Returns a store's schema; gives a new or an older store ours."""
    key = f'{self._prefix}schema'
    while True:
      with self._link.pipeline(server) as pipeline:
        pipeline.watch(key)
        schema = int(pipeline.get(key) or 0)
        if schema >= SCHEMA:
          return schema
        # Only here: a full server, or a replica, can be opened and read.
        pipeline.multi()
        pipeline.set(key, SCHEMA)
        try:
          pipeline.execute()
        except redis.WatchError:
          continue  # Another server has written it, perhaps a newer one.
        return SCHEMA
