"""A real Redis that goes away and comes back, refuses, or loses an answer."""

import gc
import itertools
import re
import threading
import time
import types

import pytest
import redis

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.serving.stores import characters
from kaiju_jax.serving.stores import redis_link
from kaiju_jax.serving.stores import redis_records
from kaiju_jax.serving.stores import redis_store
from tests.serving import cutting_proxy
from tests.serving import redis_server

needs_server = [pytest.mark.slow, redis_server.needs_server]
FIELDS = card_fields.Fields('Ann', greeting='Hello.')
TIMEOUT, PAUSE = 0.5, 0.5
SLACK = 5  # Seconds that a busy machine may take beside.


def opened(address, **named):
  return redis_store.RedisStore(address, timeout=TIMEOUT, pause=PAUSE, **named)


def begin(store, messages=3):
  """Returns a session with some messages."""
  version = store.publish('ann', FIELDS, [1, 2], 'bytes')
  session = store.open_session('ann', version.character)
  for number in range(messages):
    store.append('ann', session.id, number, 'user', f'said {number}')
  return store.session('ann', session.id)


def seconds(call, error=characters.Unavailable, match=None):
  start = time.monotonic()
  with pytest.raises(error, match=match):
    call()
  return time.monotonic() - start


def writes(store, session, tag='x'):
  return [
    lambda: store.append('ann', session.id, 0, 'user', tag),
    lambda: store.set_head('ann', session.id, 0),
    lambda: store.rename('ann', session.id, tag),
    lambda: store.publish('ann', FIELDS, [3], 'bytes', session.character),
    lambda: store.rollback('ann', session.character, 1),
    lambda: store.open_session('ann', session.character),
    lambda: store.remove_session('ann', session.id),
    lambda: store.remove('ann', session.character),
  ]


@pytest.mark.parametrize(
  'way', [pytest.param(one, marks=needs_server) for one in ('kill', 'pause')]
)
def test_sessions_go_on_while_redis_is_away(redis_alone, way):
  store = opened(redis_alone.address)
  session = begin(store)
  messages = store.messages('ann', session.id)
  version = store.version(session.character, 1)
  # What was written last is remembered without having been read.
  messages += (store.append('ann', session.id, 3, 'assistant', 'answer'),)
  store.rename('ann', session.id, 'Title')
  # Another server's session, which this one has never read.
  elsewhere = begin(opened(redis_alone.address))
  getattr(redis_alone, way)()
  for write in writes(store, session):
    # One server, named, and that it will be tried again.
    assert seconds(write, match='unix://.*s: the store is away') < (
      2 * TIMEOUT + SLACK
    )
    # What is remembered is read at once.
    held = store.session('ann', session.id)
    assert (held.head, held.count, held.title) == (4, 5, 'Title')
    assert store.messages('ann', session.id) == messages
    assert store.version(session.character, 1) == version
  for read in (
    store.check,
    lambda: store.characters('ann'),
    lambda: store.live('ann', session.character),
    lambda: store.sessions('ann'),
    lambda: store.count_sessions('ann'),
  ):
    assert seconds(read) < 2 * TIMEOUT + SLACK
  # Nobody learns from the error whether there is such a session.
  told = set()
  for owner, one in (
    ('bob', session.id),
    ('ann', elsewhere.id),
    ('ann', 'a' * 24),
  ):
    with pytest.raises(characters.Unavailable) as error:
      store.session(owner, one)
    told.add(re.sub(r'is in \S+ s|\(.*\)', '', str(error.value)))
  assert len(told) <= 2  # The one that tries, and the others.
  {'kill': redis_alone.start, 'pause': redis_alone.go_on}[way]()
  back = time.monotonic()
  while True:
    try:
      held = store.append('ann', session.id, 3, 'user', 'again')
      break
    except characters.Unavailable:
      assert time.monotonic() - back < TIMEOUT + PAUSE + SLACK
      time.sleep(0.05)
  found = store.messages('ann', session.id)
  assert found[:5] == messages
  assert found[held.id] == held
  # What timed out may have been stored, once; a dead server stored nothing.
  assert [one.text for one in found[5:-1]] in ([], ['x'])[
    : 1 + (way == 'pause')
  ]


@pytest.mark.slow
@redis_server.needs_server
def test_who_waits_for_a_silent_server_is_one_at_a_time(
  redis_alone, monkeypatch
):
  store = opened(redis_alone.address)
  session = begin(store)
  redis_alone.pause()
  seconds(lambda: store.append('ann', session.id, 0, 'user', 'x'))
  begun, tries, waited = time.monotonic(), [], []
  refuse_away = redis_link.Link._refuse_away

  def note_try(link):
    refuse_away(link)
    tries.append(time.monotonic())

  monkeypatch.setattr(redis_link.Link, '_refuse_away', note_try)

  def ask():
    for _ in range(20):
      waited.append(seconds(lambda: store.characters('ann')))
      time.sleep(0.05)

  threads = [threading.Thread(target=ask) for _ in range(8)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  redis_alone.go_on()
  assert len(waited) == 160
  # The others were told at once. Each try takes a timeout and a pause.
  assert tries
  for first, second in itertools.pairwise(tries):
    assert second - first >= PAUSE
  assert len(tries) <= 1 + (time.monotonic() - begun) / (TIMEOUT + PAUSE)


@pytest.mark.slow
@redis_server.needs_server
def test_nothing_acknowledged_is_lost_or_doubled(redis_alone):
  store = opened(redis_alone.address)
  sessions = [begin(store) for _ in range(3)]
  acknowledged = [[] for _ in sessions]
  slowest, refused, is_done = [0.0], [0], threading.Event()

  def write(number):
    turn = 0
    while not is_done.is_set():
      turn += 1
      start = time.monotonic()
      try:
        acknowledged[number].append(
          store.append(
            'ann', sessions[number].id, 0, 'user', f'{number} {turn}'
          )
        )
      except characters.Unavailable:
        refused[0] += 1
        time.sleep(0.02)
      slowest[0] = max(slowest[0], time.monotonic() - start)

  threads = [threading.Thread(target=write, args=(n,)) for n in range(3)]
  for thread in threads:
    thread.start()
  counts = []
  for _ in range(2):
    time.sleep(0.5)
    redis_alone.kill()
    time.sleep(0.7)
    redis_alone.start()
    time.sleep(PAUSE + TIMEOUT + 0.5)
    redis_alone.pause()
    time.sleep(1.2)
    redis_alone.go_on()
    time.sleep(PAUSE + TIMEOUT + 0.5)
    counts.append(sum(map(len, acknowledged)))
  is_done.set()
  for thread in threads:
    thread.join()
  assert refused[0]
  assert 0 < counts[0] < counts[1]
  assert slowest[0] < 3 * TIMEOUT + SLACK
  fresh = opened(redis_alone.address)
  for session, expected in zip(sessions, acknowledged):
    for one in store, fresh:
      found = one.messages('ann', session.id)
      assert [found[message.id] for message in expected] == expected
      texts = [message.text for message in found]
      assert len(set(texts)) == len(texts)
      assert [message.id for message in found] == list(range(len(found)))


@pytest.mark.slow
@redis_server.needs_server
@pytest.mark.parametrize('word', [b'EXEC', b'GET'])
def test_a_lost_answer_is_no_second_message(redis_alone, word):
  proxy = cutting_proxy.Proxy(redis_alone.socket)
  store = opened(proxy.address)
  session = begin(store)
  head = store.session('ann', session.id).head
  proxy.word = word

  def append():
    return store.append('ann', session.id, head, 'user', 'once', if_head=head)

  assert seconds(append, match='may have been stored') < TIMEOUT + SLACK
  assert proxy.cuts == 1
  time.sleep(PAUSE + 0.1)
  if word == b'EXEC':
    # It was; who repeats it with what was expected learns so.
    seconds(append, characters.Conflict)
  else:
    append()
  texts = [
    one.text for one in opened(redis_alone.address).messages('ann', session.id)
  ]
  assert texts.count('once') == 1
  proxy.close()


@pytest.mark.slow
@redis_server.needs_server
@pytest.mark.parametrize('word', [b'EXEC', b'GET'])
def test_a_broken_connection_is_left_alone(redis_alone, word):
  """redis-py would connect again, and wait again, to say UNWATCH."""
  proxy = cutting_proxy.Proxy(redis_alone.socket)
  store = opened(proxy.address)
  session = begin(store)
  proxy.word = word
  before = proxy.accepted
  seconds(lambda: store.append('ann', session.id, 0, 'user', 'x'))
  gc.collect()
  assert proxy.accepted == before == 1
  # Silent rather than broken.
  time.sleep(PAUSE)
  store.session('ann', session.id)
  proxy.is_silent = True
  before = proxy.accepted
  spent = seconds(lambda: store.append('ann', session.id, 0, 'user', 'x'))
  gc.collect()
  assert proxy.accepted == before == 2
  assert spent < TIMEOUT + SLACK
  proxy.is_silent = False
  proxy.close()


@pytest.mark.slow
@redis_server.needs_server
def test_a_listing_shows_nothing_that_has_become_private(shared_redis):
  store = opened(shared_redis.address, prefix='listing:')
  character = store.publish('ann', FIELDS, [1], 'bytes').character
  # As if another server changed it between the list and its entry.
  with shared_redis.client() as client:
    client.zadd('listing:public', {character: 1.0, 'gone': 2.0})
    client.zadd('listing:sessions:bob', {'gone': 3.0})
  assert store.characters('bob') == store.sessions('bob') == ()
  assert len(store.characters('ann')) == 1


@pytest.mark.slow
@redis_server.needs_server
def test_endless_contention_is_a_conflict(shared_redis, monkeypatch):
  store = opened(shared_redis.address, prefix='contention:')
  session = begin(store)
  commit = redis_records.RedisWrites.commit
  tries = []

  def commit_behind_another(writes):
    tries.append(1)
    with shared_redis.client() as client:
      key = f'contention:session:{session.id}'
      client.set(key, client.get(key))
    commit(writes)

  monkeypatch.setattr(
    redis_records.RedisWrites, 'commit', commit_behind_another
  )
  spent = seconds(
    lambda: store.append('ann', session.id, 0, 'user', 'x'),
    characters.Conflict,
    'nothing was stored',
  )
  assert len(tries) == redis_store.TRIES
  assert spent < 20
  monkeypatch.undo()
  assert len(store.messages('ann', session.id)) == session.count


@pytest.mark.slow
@redis_server.needs_server
def test_a_server_that_refuses_is_still_read(start_redis):
  server = start_redis(False, '--maxmemory-policy', 'noeviction')
  store = opened(server.address)
  session = begin(store)
  server.client().config_set('maxmemory', 1)
  for index in 0, 1, 2, 3, 5:
    write = writes(store, session)[index]
    assert seconds(write, match=r'the store refuses \(.*memory') < SLACK
  # Not from memory: it is there.
  assert opened(server.address).session('ann', session.id) == session
  assert store.characters('ann')
  server.client().config_set('maxmemory', 0)
  assert store.append('ann', session.id, 0, 'user', 'x').id == session.count
  server.client().replicaof('127.0.0.1', 1)
  seconds(writes(store, session)[0], match='read only')


@pytest.mark.slow
@redis_server.needs_server
def test_a_server_that_would_lose_data_is_refused(start_redis, caplog):
  server = start_redis(
    False, '--maxmemory', '100mb', '--maxmemory-policy', 'allkeys-lru'
  )
  with pytest.raises(ValueError, match=r'allkeys-lru.*noeviction'):
    opened(server.address)
  server.client().config_set('maxmemory-policy', 'volatile-lru')
  opened(server.address).close()
  assert 'appendonly no' in caplog.text
  server.client().set('kaiju:schema', redis_store.SCHEMA + 1)
  with pytest.raises(ValueError, match=r'newer kaiju_jax \(schema 3'):
    opened(server.address)
  opened(server.address, prefix='other:').close()


def test_an_address_that_answers_nobody_is_named(tmp_path, caplog):
  address = f'unix://user:secret@{tmp_path}/none?password=secret'
  with pytest.raises(
    characters.Unavailable, match='the store is away'
  ) as error:
    opened(address)
  assert f'unix://{tmp_path}/none' in str(error.value)
  assert 'secret' not in str(error.value)
  # Whoever opens it says so; a line of the log would say it twice.
  assert not caplog.records


@pytest.mark.parametrize('address', ['http://host', 'redis:/x', 'nonsense', ''])
def test_what_is_no_address_is_refused(address):
  with pytest.raises(ValueError, match='redis://') as error:
    opened(address)
  assert 'store ' in str(error.value)


def test_the_socket_is_given_up_in_time(tmp_path, monkeypatch):
  """One call in each pause and timeout tries; the others fail at once."""
  now = [100.0]
  clock = types.SimpleNamespace(monotonic=lambda: now[0])
  monkeypatch.setattr(redis_link, 'time', clock)
  link = redis_link.Link(f'unix://{tmp_path}/none', timeout=2, pause=3)
  tries = []

  def work(_):
    tries.append(now[0])
    raise redis.TimeoutError('silent')

  for when in (100, 102.9, 103, 105, 106.5, 109):
    now[0] = when
    with pytest.raises(characters.Unavailable):
      link.run(work)
  assert tries == [100, 103, 106.5]
  # While one tries, the others do not.
  now[0] = 109.5

  def work_and_ask(_):
    with pytest.raises(characters.Unavailable, match=r'next try is in 5\.0 s'):
      link.run(work)
    return 'back'

  assert link.run(work_and_ask) == 'back'
  assert link.run(lambda _: 'back') == 'back'
  assert len(tries) == 3
  # What is missing was answered.
  now[0] = 200
  with pytest.raises(characters.Unavailable):
    link.run(work)
  now[0] = 203

  def work_missing(_):
    raise characters.Missing('x')

  with pytest.raises(characters.Missing):
    link.run(work_missing)
  assert link.run(lambda _: 'back') == 'back'
  link.close()
