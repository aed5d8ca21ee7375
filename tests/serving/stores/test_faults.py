"""A store that fails says so: in the log, with counts, and to probes."""

import logging
import resource
import urllib.error

import numpy as np
import pytest

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.serving.routes import store as store_lib
from kaiju_jax.serving.stores import character_rules as rules
from kaiju_jax.serving.stores import characters
from kaiju_jax.serving.stores import faults
from kaiju_jax.serving.stores import sqlite_store
from tests.serving import redis_server
from tests.serving import running


@pytest.fixture
def disk(tmp_path):
  """Returns a function that fills the disk: no file grows any more."""
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

  def fill(is_full=True, room=0):
    (log,) = tmp_path.glob('*.sqlite-wal')
    limit = log.stat().st_size + room if is_full else soft
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))

  yield fill
  resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def told(caplog):
  return [
    one.getMessage() for one in caplog.records if one.levelname == 'WARNING'
  ]


def test_faults_are_counted_and_do_not_flood(caplog):
  now = [0.0]
  found = faults.Faults(lambda: now[0])
  found.end()
  for second in range(30):
    now[0] = float(second)
    for _ in range(50):
      found.note('away', 'redis://host: the store is away.')
  found.note('full', 'redis://host: the store refuses.')
  assert told(caplog) == [
    'redis://host: the store is away.',
    'redis://host: the store is away. (499 more before.)',
    'redis://host: the store is away. (499 more before.)',
    'redis://host: the store refuses.',
  ]
  caplog.clear()
  for _ in range(3):
    found.end()
  assert told(caplog) == ['The store answers again, after 1501 faults.']
  found.note('away', 'once more')
  assert told(caplog)[1:] == ['once more']


def test_a_check_writes_and_a_read_that_works_ends_no_fault(
  tmp_path, caplog, disk
):
  store = sqlite_store.SqliteStore(tmp_path / 'a.sqlite')
  store.check()
  disk()
  for _ in range(20):
    with pytest.raises(characters.Unavailable) as caught:
      store.check()
    assert store.characters('ann') == ()
  assert str(tmp_path) not in caught.value.fault
  disk(is_full=False)
  (message,) = told(caplog)
  assert str(tmp_path) in message and caught.value.fault in message
  store.check()
  assert 'after 20 faults' in told(caplog)[1]
  store.close()


def test_readiness_is_to_be_able_to_store(tmp_path, monkeypatch, disk, caplog):
  with running.server(tmp_path) as server:
    checks = []
    check = server.store.check

    def counted():
      checks.append(None)
      check()

    monkeypatch.setattr(server.store, 'check', counted)
    for _ in range(20):
      assert server.get('/readyz') == b'ready\n'
    assert len(checks) < 10  # Nobody has the disk written by asking.
    monkeypatch.setattr(store_lib, '_CHECKED', 0.0)
    caplog.set_level(logging.WARNING)
    disk()
    with pytest.raises(urllib.error.HTTPError) as caught:
      server.get('/readyz')
    disk(is_full=False)
    said = caught.value.read().decode()
    assert caught.value.code == 503 and 'store' in said
    assert str(tmp_path) not in said and 'sqlite' not in said
    assert server.get('/readyz') == b'ready\n'
    assert len(told(caplog)) == 2


def test_ready_is_to_have_room_for_a_turn(tmp_path, disk):
  """However little room is left: where a check passes, so do large turns."""
  store = sqlite_store.SqliteStore(tmp_path / 'a.sqlite')
  made = store.publish(
    'ann', card_fields.Fields(name='A'), np.arange(9), 'digest'
  )
  session = store.open_session('ann', made.character, 0, lambda fields: ['Hm?'])
  limits, checks = rules.Limits(), []

  def say(role):
    store.append(
      *('ann', session.id, None, role, 'x' * limits.text),
      tokens=np.arange(limits.tokens),
    )

  for room in (0, 2**12, 2**13, 2**16, 2**19, 2**20, 2**23):
    files = sorted(tmp_path.iterdir())
    disk(room=room)
    try:
      store.check()
      checks.append(True)
    except characters.Unavailable as error:
      checks.append(False)
      assert 'disk is full' in error.fault
    if checks[-1]:
      say('user')
      say('assistant')
    disk(is_full=False)
    assert sorted(tmp_path.iterdir()) == files  # A check leaves nothing.
  assert checks[:3] == [False] * 3 and checks[-1]
  store.close()


@pytest.mark.slow
@redis_server.needs_server
def test_a_redis_that_is_full_or_dead_is_not_ready(redis_alone, caplog):
  import redis

  from kaiju_jax.serving.stores import redis_store

  store = redis_store.RedisStore(redis_alone.address, pause=0.05)
  store.check()
  with redis.Redis.from_url(redis_alone.address) as direct:
    direct.config_set('maxmemory', '1')
    for _ in range(20):
      with pytest.raises(characters.Unavailable, match='refuses'):
        store.check()
      assert store.characters('ann') == ()
    direct.config_set('maxmemory', '0')
    store.check()
  redis_alone.kill()
  for _ in range(20):
    with pytest.raises(characters.Unavailable, match='away') as caught:
      store.check()
    assert 'redis' not in caught.value.fault
  messages = told(caplog)
  assert len(messages) == 3 and 'after 20 faults' in messages[1]
  assert all('unix://' in messages[n] for n in (0, 2))
  store.close()
