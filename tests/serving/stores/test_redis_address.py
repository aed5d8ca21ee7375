"""Addresses of stores: one Redis, Sentinels and their failover, no cluster."""

import pathlib
import socket
import subprocess
import time

import pytest
import redis

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.serving.stores import characters
from kaiju_jax.serving.stores import redis_link
from kaiju_jax.serving.stores import redis_store
from tests.serving import redis_server

FIELDS = card_fields.Fields('Ann', greeting='Hello.')
NAME = 'chats'


@pytest.mark.parametrize(
  'address, sentinels, database, credentials',
  [
    ('redis+sentinel://a:1/chats', [('a', 1)], 0, (None, None)),
    ('redis+sentinel://a,[::1]:2/chats/3', [('a', 26379), ('::1', 2)], 3, ...),
    ('redis+sentinel://me:p%40ss@a:1/chats', [('a', 1)], 0, ('me', 'p@ss')),
  ],
)
def test_an_address_names_sentinels(address, sentinels, database, credentials):
  pool = redis_link.connect(address, 1.0).connection_pool
  assert pool.service_name == NAME
  found = [
    (one.connection_pool.connection_kwargs)
    for one in pool.sentinel_manager.sentinels
  ]
  assert [(one['host'], one['port']) for one in found] == sentinels
  # The master's password is no business of the Sentinels.
  assert not any(one.get('password') for one in found)
  options = pool.connection_kwargs
  assert options['db'] == database
  if credentials is not ...:
    assert (options['username'], options['password']) == credentials


@pytest.mark.parametrize(
  'address, fault',
  [
    ('redis+sentinel://a:1', 'NAME'),
    ('redis+sentinel://a:1/chats/first', 'DATABASE'),
    ('redis+sentinel://a:port/chats', "'a:port' is no HOST:PORT"),
    ('redis+sentinel://a,,b/chats', "'' is no HOST:PORT"),
    ('redis+cluster://secret@a:1', 'a Redis Cluster'),
  ],
)
def test_what_names_no_master_is_refused(address, fault):
  with pytest.raises(ValueError, match=fault) as error:
    redis_store.RedisStore(address)
  assert 'store ' in str(error.value)
  assert 'secret' not in str(error.value)


@pytest.mark.slow
@redis_server.needs_server
def test_a_cluster_is_refused_by_name(start_redis):
  server = start_redis(False, '--cluster-enabled', 'yes')
  with pytest.raises(ValueError, match=r'a Redis Cluster.*must be one Redis'):
    redis_store.RedisStore(server.address)


class _Processes:
  """A master, a replica and a Sentinel on loopback."""

  def __init__(self, folder: pathlib.Path):
    self._folder = folder
    self.started = []
    self.ports = _free_ports(3)

  def start(self, number: int, *options: str, is_sentinel: bool = False):
    place = self._folder / str(number)
    place.mkdir()
    file = place / 'redis.conf'
    lines = ['bind 127.0.0.1', f'port {self.ports[number]}', f'dir {place}']
    file.write_text('\n'.join([*lines, 'loglevel warning', *options]))
    kind = ['--sentinel'] if is_sentinel else []
    self.started.append(
      subprocess.Popen(
        [redis_server.PROGRAM, file, *kind], stdout=subprocess.DEVNULL
      )
    )
    _wait(lambda: self.client(number).ping())

  def client(self, number: int) -> redis.Redis:
    return redis.Redis('127.0.0.1', self.ports[number], socket_timeout=5)


def _free_ports(count: int) -> list[int]:
  sockets = [socket.create_server(('127.0.0.1', 0)) for _ in range(count)]
  ports = [one.getsockname()[1] for one in sockets]
  for one in sockets:
    one.close()
  return ports


def _wait(is_done, seconds: float = 60.0):
  end = time.monotonic() + seconds
  while True:
    try:
      if is_done():
        return
    except redis.RedisError:
      pass
    assert time.monotonic() < end
    time.sleep(0.05)


@pytest.fixture
def processes(tmp_path):
  made = _Processes(tmp_path)
  yield made
  for one in made.started:
    one.kill()
    one.wait()


@pytest.mark.slow
@redis_server.needs_server
def test_a_store_follows_its_master(processes):
  """The master dies: the store fails for a while, and loses nothing."""
  kept = ('appendonly yes', 'appendfsync always', 'save ""')
  master, replica, sentinel = processes.ports
  processes.start(0, *kept)
  processes.start(1, *kept, f'replicaof 127.0.0.1 {master}')
  processes.start(
    2,
    f'sentinel monitor {NAME} 127.0.0.1 {master} 1',
    f'sentinel down-after-milliseconds {NAME} 500',
    f'sentinel failover-timeout {NAME} 5000',
    is_sentinel=True,
  )
  watch = processes.client(2)
  _wait(lambda: watch.sentinel_slaves(NAME)[0]['master-link-status'] == 'ok')
  store = redis_store.RedisStore(
    f'redis+sentinel://127.0.0.1:{sentinel}/{NAME}/1', timeout=1.0, pause=0.1
  )
  version = store.publish('ann', FIELDS, [1, 2], 'bytes')
  session = store.open_session('ann', version.character)
  said = [f'said {number}' for number in range(20)]
  for number, text in enumerate(said):
    store.append('ann', session.id, number, 'user', text)
  processes.client(0).wait(1, 5000)
  processes.started[0].kill()
  with pytest.raises(characters.Unavailable):
    store.append('ann', session.id, len(said), 'user', 'lost')

  def append():
    try:
      store.append('ann', session.id, len(said), 'user', 'later')
      return True
    except characters.Unavailable:
      return False

  _wait(append)
  assert watch.sentinel_get_master_addr_by_name(NAME)[1] == replica
  found = [one.text for one in store.messages('ann', session.id)]
  assert found[1:] == [*said, 'later']
  store.close()
