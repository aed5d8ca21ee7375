"""kill −9 in the middle of a publication leaves the old version or the new."""

import random
import subprocess
import sys
import time

import pytest

from kaiju_jax.serving.stores import sqlite_store
from tests.serving import publisher
from tests.serving import redis_server

pytestmark = pytest.mark.slow

ROUNDS = 20


def start(kind, place, character, *where):
  return subprocess.Popen(
    [
      *(sys.executable, '-m', 'tests.serving.publisher'),
      *(kind, place, character, *map(str, where)),
    ],
    stdout=subprocess.PIPE,
    text=True,
  )


@pytest.fixture(params=redis_server.STORES)
def place(request, tmp_path):
  """Returns (kind, place, a function that opens the store there)."""
  if request.param == 'sqlite':
    path = str(tmp_path / 'store.sqlite')
    return 'sqlite', path, lambda: sqlite_store.SqliteStore(path)
  from kaiju_jax.serving.stores import redis_store

  address = request.getfixturevalue('redis_alone').address
  return 'redis', address, lambda: redis_store.RedisStore(address)


def begin(opened):
  """Returns a character with one version."""
  store = opened()
  version = store.publish('ann', *publisher.content(1), 'bytes')
  store.close()
  return version.character


def test_a_kill_at_any_moment(place):
  kind, at, opened = place
  character, last, rng = begin(opened), 1, random.Random(0)
  for _ in range(ROUNDS):
    process = start(kind, at, character)
    # The first is published: a kill before it would test nothing.
    acknowledged = [process.stdout.readline()]
    time.sleep(rng.uniform(0, 0.03))
    process.kill()
    acknowledged += process.stdout.read().splitlines(keepends=True)
    # A line that was cut off is not an acknowledgement.
    said = max(int(one) for one in acknowledged if one.endswith('\n'))
    store = opened()
    last = publisher.check(store, 'ann', character, last, said)
    store.close()
  assert last > ROUNDS


def test_a_kill_at_every_step(place):
  kind, at, opened = place
  character, last = begin(opened), 1
  outcomes = []
  for where in ('before',) if kind == 'sqlite' else ('before', 'half', 'after'):
    for step in range(1, 40):
      said, _ = start(kind, at, character, where, step).communicate()
      store = opened()
      now = publisher.check(store, 'ann', character, last, last + bool(said))
      store.close()
      outcomes.append((bool(said), now - last))
      last = now
      if said:
        break
    else:
      raise AssertionError('it never published without being killed')
  assert (False, 0) in outcomes
  # The last word of a client may be its EXEC.
  assert kind == 'sqlite' or (False, 1) in outcomes
