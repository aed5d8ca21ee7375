"""Makes a redis-py client of a store's address.

    redis://HOST:PORT/0                            one Redis
    redis+sentinel://HOST:PORT,HOST:PORT/NAME/0    the master of Sentinels

Sentinels are asked at each new connection, so that the client follows a
failover. Replication is asynchronous: what the former master had acknowledged
and not yet sent is lost with it (`min-replicas-to-write` bounds that). A Redis
Cluster is refused, because a store's transactions span keys of several slots.
"""

import urllib.parse

import redis
from redis import backoff
from redis import retry
from redis import sentinel as sentinel_lib

_SENTINEL = 'redis+sentinel'
_CLUSTERS = ('redis+cluster', 'rediss+cluster', 'redis-cluster')
_PORT = 26_379  # Sentinel's own default.
# Options that Sentinels do not share with the master.
_OF_THE_MASTER = ('db', 'username', 'password')


def connect(address: str, timeout: float) -> redis.Redis:
  """Returns a client, which has not connected yet.

  Args:
    address: redis://, rediss:// or unix://, as redis-py reads it, or
      redis+sentinel://.
    timeout: seconds for a connection, and for each answer.

  Raises:
    TypeError, ValueError: the address is not valid; says why.
  """
  # redis-py would repeat a command whose answer was lost (`redis_link.py`).
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
