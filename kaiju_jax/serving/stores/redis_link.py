"""Connects to a Redis server that may be unreachable for a while.

No call blocks for long. A call gives up a socket that is silent for `timeout`
seconds. For `pause` seconds after that, all calls fail at once; then one call
tries again. So threads do not queue up behind a dead server, and its return is
noticed within `pause` seconds.

    redis://HOST:PORT/0                            one Redis
    redis+sentinel://HOST:PORT,HOST:PORT/NAME/0    the master of Sentinels

Sentinels are asked at each new connection, so that the client follows a
failover. Replication is asynchronous: what the former master had acknowledged
and not yet sent is lost with it (`min-replicas-to-write` bounds that). A Redis
Cluster is refused, because a store's transactions span keys of several slots.

Nothing is retried here. By default redis-py repeats a command whose answer was
lost, and reports a connection that broke in EXEC as a lost race; a message
might then be stored twice.
"""

from collections.abc import Callable
import sys
import threading
import time
from typing import TypeVar
import urllib.parse

import redis
from redis import backoff
from redis import retry
from redis import sentinel as sentinel_lib

from kaiju_jax.serving.stores import characters
from kaiju_jax.serving.stores import faults

T = TypeVar('T')

TIMEOUT = 1.0  # Seconds (our guess; a local answer takes a millisecond).
PAUSE = 1.0  # Seconds (our guess).


class Link:
  """A Redis, from any thread.

  Args:
    address: redis://, rediss:// or unix://, as redis-py reads it, or
      redis+sentinel://; else a ValueError.
    timeout: seconds for the connection, and for each answer.
    pause: seconds between two tries of a server that is away.
  """

  def __init__(
    self, address: str, timeout: float = TIMEOUT, pause: float = PAUSE
  ):
    # The address without its password, for logs.
    self.name: str = _without_password(address)
    self._timeout, self._pause = timeout, pause
    self._guard = threading.Lock()
    self._away_until = 0.0
    self._is_open = True
    self._is_recognized = False
    # The log of its faults; a successful write ends them.
    self.faults: faults.Faults = faults.Faults()
    try:
      self._redis = connect(address, timeout)
    except (ValueError, TypeError) as error:
      raise ValueError(f'store {self.name}: {error}.') from error

  def recognize(self, work: Callable[[redis.Redis], None]) -> None:
    """Runs `work`, which checks the server, before anything else runs.

    Raises as `run`, without a line in the log: the caller reports it.
    """
    self.run(work)
    self._is_recognized = True

  def run(self, work: Callable[[redis.Redis], T]) -> T:
    """Returns `work(server)`; `Unavailable` if it is away, or refuses."""
    self._refuse_away()
    is_away = False
    try:
      return work(self._redis)
    except redis.WatchError:
      raise
    except (redis.ConnectionError, redis.TimeoutError) as error:
      is_away = True
      raise self._noted(
        'away',
        'the store is away, and is tried again by itself; a write of which this'
        ' is the answer may have been stored',
        str(error),
      ) from error
    except redis.RedisError as error:
      # Out of memory, a replica, a disk that is full: reads may go on.
      raise self._noted('refuses', 'the store refuses', str(error)) from error
    finally:
      if is_away or self._away_until:
        with self._guard:
          until = time.monotonic() + self._pause if is_away else 0.0
          self._away_until = until

  def pipeline(self, server: redis.Redis) -> redis.client.Pipeline:
    """Returns a transaction of a server that `run` gave."""
    return _Pipeline(
      server.connection_pool, server.response_callbacks, True, None
    )

  def close(self) -> None:
    """Closes all connections; later calls raise `Unavailable`."""
    self._is_open = False
    self._redis.close()
    self._redis.connection_pool.disconnect()
    close_sentinels(self._redis)

  def _refuse_away(self) -> None:
    if not self._is_open:
      raise characters.Unavailable(self.name, 'the store is closed')
    if not self._away_until:
      return
    now = time.monotonic()
    with self._guard:
      if now >= self._away_until > 0:
        # This call tries; the others fail until it has an answer.
        self._away_until = now + self._pause + self._timeout
        return
      wait = self._away_until - now
    if wait > 0:
      raise self._noted(
        'away',
        f'the store is away; the next try is in {wait:.1f} s; nothing was'
        ' stored',
      )

  def _noted(
    self, kind: str, fault: str, detail: str = ''
  ) -> characters.Unavailable:
    error = characters.Unavailable(self.name, fault, detail)
    if self._is_recognized:
      self.faults.note(kind, str(error))
    return error


class _Pipeline(redis.client.Pipeline):
  """A transaction that leaves a broken connection alone.

  redis-py would connect again to send UNWATCH to an unreachable server: in
  `execute`, at the end of the `with`, and at garbage collection.
  """

  def reset(self) -> None:
    # The error on whose way out this runs has closed the connection.
    if isinstance(
      sys.exc_info()[1], (redis.ConnectionError, redis.TimeoutError)
    ):
      self.watching = False
    super().reset()


def _without_password(address: str) -> str:
  """Returns an address without its password."""
  try:
    parts = urllib.parse.urlsplit(address)
  except ValueError:
    return 'redis'
  host = parts.netloc.rpartition('@')[2]
  return f'{parts.scheme}://{host}{parts.path}'


_SENTINEL = 'redis+sentinel'
_CLUSTERS = ('redis+cluster', 'rediss+cluster', 'redis-cluster')
_PORT = 26_379  # Sentinel's own default.
# Options that Sentinels do not share with the master.
_OF_THE_MASTER = ('db', 'username', 'password')


def connect(address: str, timeout: float) -> redis.Redis:
  """Returns a client, which has not connected yet.

  Raises:
    TypeError, ValueError: the address is not valid; says why.
  """
  options = {
    'socket_timeout': timeout,
    'socket_connect_timeout': timeout,
    'retry': retry.Retry(backoff.NoBackoff(), 0, supported_errors=()),
    'protocol': 2,
  }
  scheme = address.partition('://')[0]
  if scheme in _CLUSTERS:
    raise ValueError(describe_cluster())
  if scheme != _SENTINEL:
    return redis.Redis.from_url(address, **options)
  parts = urllib.parse.urlsplit(address)
  name, _, database = parts.path.strip('/').partition('/')
  credentials, _, hosts = parts.netloc.rpartition('@')
  username, _, password = credentials.partition(':')
  sentinels = [_sentinel(one) for one in hosts.split(',')]
  if not name or not (database or '0').isdecimal() or parts.query:
    raise ValueError(
      'must be redis+sentinel://HOST:PORT,HOST:PORT/NAME/DATABASE, whose NAME'
      ' is that of the master'
    )
  options |= {
    'db': int(database or 0),
    'username': urllib.parse.unquote(username) or None,
    'password': urllib.parse.unquote(password) or None,
  }
  watch = {x: y for x, y in options.items() if x not in _OF_THE_MASTER}
  manager = sentinel_lib.Sentinel(sentinels, sentinel_kwargs=watch, **options)
  return manager.master_for(name)


def close_sentinels(client: redis.Redis) -> None:
  """Closes the connections to Sentinels of a client from `connect`."""
  manager = getattr(client.connection_pool, 'sentinel_manager', None)
  for one in manager.sentinels if manager else ():
    one.close()
    one.connection_pool.disconnect()


def describe_cluster() -> str:
  """Returns the refusal of a Redis Cluster."""
  return (
    'a Redis Cluster, whose transactions end at a slot; must be one Redis, or'
    ' one behind Sentinel (redis+sentinel://HOST:PORT/NAME/0)'
  )


def _sentinel(text: str) -> tuple[str, int]:
  """Returns a Sentinel's host and port."""
  try:
    parts = urllib.parse.urlsplit(f'//{text}')
    host, port = parts.hostname, parts.port or _PORT
  except ValueError as error:
    raise ValueError(f'{text!r} is no HOST:PORT ({error})') from error
  if not host:
    raise ValueError(f'{text!r} is no HOST:PORT')
  return host, port
