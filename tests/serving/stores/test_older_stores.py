"""Stores that the code before has written are migrated, once."""

import concurrent.futures
import sqlite3

import pytest

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.serving.stores import characters
from kaiju_jax.serving.stores import sqlite_file
from kaiju_jax.serving.stores import sqlite_store
from tests.serving import older_stores
from tests.serving import redis_server

FIELDS = card_fields.Fields('Ann', greeting='Hello.')
DRAWN = characters.Drawn('a1', '0.1', 2**32 - 1, 0.7, 5, 0.9, 0.1, 1.1, True)


def check_older(stores, reasoning='Hm.'):
  """Uses a store that the code before has written, from two servers."""
  session = older_stores.SESSION
  for store in stores:
    *_, reply = store.messages('ann', session)
    assert (reply.text, reply.tokens) == ('Me.', (5, 6))
    assert (reply.reasoning, reply.drawn) == (reasoning, None)
    assert store.version(older_stores.CHARACTER, 1).fields == FIELDS
  one, other = stores
  assert one.rate('ann', session, 2, 'good') is None
  assert other.ratings('ann', session) == {2: 'good'}
  said = other.append(
    *('ann', session, 2, 'assistant', 'I.', [7]),
    finish='stop',
    reasoning='So.',
    drawn=DRAWN,
  )
  assert one.messages('ann', session)[-1] == said
  assert other.agree('ann', True) and one.agreement('ann')


@pytest.mark.parametrize('schema', [1, 2])
def test_an_older_file_is_migrated_once(tmp_path, schema):
  path = tmp_path / 'a.sqlite'
  older_stores.write_sqlite(path)
  if schema == 1:
    with sqlite_file.connect(str(path)) as older:
      older.execute('ALTER TABLE messages DROP COLUMN reasoning')
      older.execute('PRAGMA user_version=1')
  with concurrent.futures.ThreadPoolExecutor(4) as threads:
    made = list(threads.map(sqlite_store.SqliteStore, [path] * 4))
  check_older(made[:2], 'Hm.' if schema == 2 else None)
  for store in made:
    store.close()
  connection = sqlite3.connect(path)

  def layout(connection):
    return {
      table: [
        row[1:] for row in connection.execute(f'PRAGMA table_info({table})')
      ]
      for (table,) in connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table'"
      )
    }

  fresh = tmp_path / 'b.sqlite'
  sqlite_store.SqliteStore(fresh).close()
  found, wanted = layout(connection), layout(sqlite3.connect(fresh))
  # The column that was added stands last.
  assert {x: sorted(y) for x, y in found.items()} == {
    x: sorted(y) for x, y in wanted.items()
  }
  assert not connection.execute('PRAGMA foreign_key_check').fetchall()


def test_an_older_server_that_still_runs_does_no_harm(tmp_path):
  path = tmp_path / 'a.sqlite'
  older_stores.write_sqlite(path)
  store = sqlite_store.SqliteStore(path)
  store.rate('ann', older_stores.SESSION, 2, 'good')
  # Its check of readiness writes its own number, and it knows no ratings.
  older = sqlite_file.connect(str(path))
  older.execute('PRAGMA user_version=2')
  again = sqlite_store.SqliteStore(path)
  assert again.ratings('ann', older_stores.SESSION) == {2: 'good'}
  older.execute('BEGIN IMMEDIATE')
  for table, column in ('messages', 'session'), ('sessions', 'id'):
    older.execute(
      f'DELETE FROM {table} WHERE {column} = ?', (older_stores.SESSION,)
    )
  older.execute('COMMIT')
  (left,) = older.execute('SELECT count(*) FROM ratings').fetchone()
  assert left == 0
  # Nor does a check here undo what a newer server has made.
  older.execute('PRAGMA user_version=7')
  store.check()
  assert older.execute('PRAGMA user_version').fetchone() == (7,)
  for one in store, again, older:
    one.close()


@pytest.mark.slow
@redis_server.needs_server
def test_an_older_redis_is_migrated_once(shared_redis):
  from kaiju_jax.serving.stores import redis_store

  client, prefix = shared_redis.client(), 'older:'
  older_stores.write_redis(client, prefix)
  with concurrent.futures.ThreadPoolExecutor(4) as threads:
    made = list(
      threads.map(
        lambda _: redis_store.RedisStore(shared_redis.address, prefix=prefix),
        range(4),
      )
    )
  check_older(made[:2])
  assert client.get(f'{prefix}schema') == b'%d' % redis_store.SCHEMA
  # A newer server that starts in between keeps its number.
  pipeline, number = made[0]._link.pipeline, redis_store.SCHEMA + 1
  client.set(f'{prefix}schema', 1)

  def late(server):
    found = pipeline(server)
    execute = found.execute

    def execute_late():
      client.set(f'{prefix}schema', number)
      return execute()

    found.execute = execute_late
    return found

  made[0]._link.pipeline = late
  with pytest.raises(ValueError, match=f'newer kaiju_jax .schema {number}'):
    made[0]._link.recognize(made[0]._recognize)
  assert client.get(f'{prefix}schema') == b'%d' % number
  for store in made:
    store.close()
