"""A store's file: what it is, who may open it, and what is wrong with it."""

import os
import sqlite3
import stat
import subprocess
import sys
import threading

import pytest

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.serving.stores import characters
from kaiju_jax.serving.stores import sqlite_file
from kaiju_jax.serving.stores import sqlite_store

FIELDS = card_fields.Fields('Ann', greeting='Hello.')


def opened(path):
  return sqlite_store.SqliteStore(path)


def change(path, *statements):
  connection = sqlite3.connect(path, isolation_level=None)
  for statement in statements:
    connection.execute(statement)
  connection.close()


def test_one_private_file_is_all_that_is_left(tmp_path):
  path = tmp_path / 'a.sqlite'
  store = opened(path)
  version = store.publish('ann', FIELDS, [1], 'bytes')
  for file in tmp_path.iterdir():
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
  store.close()
  assert os.listdir(tmp_path) == ['a.sqlite']
  assert opened(path).live('ann', version.character) == version


def database(path, *statements):
  change(path, *statements)
  return path.read_bytes()


def written(path, content):
  path.write_bytes(content)
  return content


NEWER = sqlite_file.SCHEMA + 1
# By name: what makes a file (its bytes, or None), the error and its words.
REFUSED = {
  **{
    f'no database {n}': (
      lambda path, one=one: written(path, one),
      ValueError,
      'not a sqlite database',
    )
    for n, one in enumerate(
      (b'x', b'not a database ' * 1_000, b'\0' * 200, b'SQLite format 3\0')
    )
  },
  "another program's": (
    lambda path: database(path, 'CREATE TABLE bookmarks(url TEXT)'),
    ValueError,
    "another program's",
  ),
  "another's schema": (
    lambda path: database(path, 'PRAGMA user_version=3'),
    ValueError,
    "another program's",
  ),
  'newer': (
    lambda path: (
      opened(path).close(),
      database(path, f'PRAGMA user_version={NEWER}'),
    )[1],
    ValueError,
    rf'newer kaiju_jax \(schema {NEWER}.*Update',
  ),
  'folder': (lambda path: path.mkdir(), IsADirectoryError, 'name of a file'),
}


@pytest.mark.parametrize('case', REFUSED)
def test_a_file_that_is_no_store_is_left_as_it_is(tmp_path, case):
  make, error, match = REFUSED[case]
  path = tmp_path / 'a.sqlite'
  before = make(path)
  with pytest.raises(error, match=match) as caught:
    opened(path)
  assert str(path) in str(caught.value)
  assert before is None or path.read_bytes() == before
  assert os.listdir(tmp_path) == ['a.sqlite']


def test_a_place_that_is_none_is_named_with_a_remedy(tmp_path):
  missing = tmp_path / 'no' / 'a.sqlite'
  for place, error, match in (
    (missing, FileNotFoundError, f'{missing}.*make it|make it.*{missing}'),
    ('redis://host/0', ValueError, 'redis:// is an address'),
    ('', ValueError, 'must name a file'),
  ):
    with pytest.raises(error, match=match):
      opened(place)
  assert not missing.parent.exists()


def test_an_empty_database_is_as_good_as_none(tmp_path):
  """Such as `touch` makes, or whoever drops all tables."""
  path = tmp_path / 'a.sqlite'
  change(path, 'CREATE TABLE bookmarks(url TEXT)', 'DROP TABLE bookmarks')
  opened(path).close()


def test_versions_and_messages_cannot_be_changed(tmp_path):
  path = tmp_path / 'a.sqlite'
  store = opened(path)
  version = store.publish('ann', FIELDS, [1], 'bytes')
  store.open_session('ann', version.character)
  for change_ in (
    "UPDATE versions SET tokens = x''",
    "UPDATE messages SET text = ''",
  ):
    with pytest.raises(sqlite3.IntegrityError, match='never changes'):
      change(path, change_)


def test_others_that_write_are_waited_for(tmp_path, monkeypatch):
  path = tmp_path / 'a.sqlite'
  monkeypatch.setattr(sqlite_file, 'BUSY', 0.2)
  store = opened(path)
  version = store.publish('ann', FIELDS, [1], 'bytes')
  session = store.open_session('ann', version.character).id
  other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
  other.execute('BEGIN IMMEDIATE')
  with pytest.raises(characters.Unavailable, match='try again') as error:
    store.append('ann', session, 0, 'user', 'x')
  assert str(path) in str(error.value)
  # Who only reads waits for nobody.
  assert len(store.messages('ann', session)) == 1
  monkeypatch.setattr(sqlite_file, 'BUSY', 30)
  patient = opened(path)
  threading.Timer(0.1, other.execute, ['COMMIT']).start()
  assert patient.append('ann', session, 0, 'user', 'x').id == 1
  other.close()


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
  connect = sqlite_file.connect

  def connect_small(path):
    connection = connect(path)
    connection.execute('PRAGMA max_page_count=60')
    return connection

  monkeypatch.setattr(sqlite_file, 'connect', connect_small)
  store = opened(tmp_path / 'a.sqlite')
  version = store.publish('ann', FIELDS, [1], 'bytes')
  session = store.open_session('ann', version.character).id
  count = 1
  with pytest.raises(characters.Unavailable, match='the disk is full'):
    for _ in range(100):
      store.append('ann', session, 0, 'user', 'x' * 5_000)
      count += 1
  assert 5 < count < 100
  assert len(store.messages('ann', session)) == count
  assert store.session('ann', session).count == count
  # There is room again.
  store.remove_session('ann', session)
  assert store.open_session('ann', version.character)


def test_a_damaged_file_is_named(tmp_path):
  path = tmp_path / 'a.sqlite'
  store = opened(path)
  for number in range(30):
    store.publish('ann', FIELDS, [number] * 2_000, 'bytes')
  store.close()
  data = path.read_bytes()
  path.write_bytes(data[:4096] + b'\xff' * (len(data) - 4096))
  with pytest.raises(characters.Unavailable, match='damaged') as error:
    opened(path).characters('ann')
  assert str(path) in str(error.value)


def test_an_operation_that_fails_writes_nothing(tmp_path, monkeypatch):
  store = opened(tmp_path / 'a.sqlite')
  version = store.publish('ann', FIELDS, [1], 'bytes')
  session = store.open_session('ann', version.character)
  # Its last write, of several.
  for name, call in (
    ('add_message', lambda: store.open_session('ann', version.character)),
    ('put_session', lambda: store.append('ann', session.id, 0, 'user', 'x')),
    (
      'put_character',
      lambda: store.publish('ann', FIELDS, [2], 'bytes', version.character),
    ),
  ):
    with monkeypatch.context() as patched:

      def fail(*_):
        raise ZeroDivisionError

      patched.setattr(sqlite_store._Records, name, fail)
      with pytest.raises(ZeroDivisionError):
        call()
    assert store.sessions('ann') == (session,)
    assert len(store.messages('ann', session.id)) == 1
    assert store.versions('ann', version.character) == (version,)


WRITER = """
import sys
from kaiju_jax.serving.stores import sqlite_store

path, session, name = sys.argv[1:]
store = sqlite_store.SqliteStore(path)
for turn in range(100):
  store.append('ann', session, 0, 'user', f'{name} {turn}')
store.close()
"""


@pytest.mark.slow
def test_processes_share_a_file(tmp_path):
  path = str(tmp_path / 'a.sqlite')
  store = opened(path)
  character = store.publish('ann', FIELDS, [1], 'bytes').character
  session = store.open_session('ann', character).id
  writers = [
    subprocess.Popen([sys.executable, '-c', WRITER, path, session, name])
    for name in 'abc'
  ]
  assert [writer.wait() for writer in writers] == [0, 0, 0]
  messages = store.messages('ann', session)[1:]
  assert [one.id for one in messages] == list(range(1, 301))
  for name in 'abc':
    said = [one.text for one in messages if one.text.startswith(name)]
    assert said == [f'{name} {turn}' for turn in range(100)]


def test_a_file_is_recognized_while_another_process_makes_it(
  tmp_path, monkeypatch
):
  path = str(tmp_path / 'a.sqlite')
  change(path, 'PRAGMA journal_mode=WAL')
  connect = sqlite_file.connect
  made = []

  def make_beside(statement):
    if 'user_version' in statement and not made:
      made.append(path)
      sqlite_file.make(path)

  def watched(path):
    connection = connect(path)
    if not made:
      connection.set_trace_callback(make_beside)
    return connection

  monkeypatch.setattr(sqlite_file, 'connect', watched)
  store = opened(path)
  assert made
  assert store.characters('ann') == ()
  store.close()


@pytest.mark.slow
def test_processes_make_a_file_together(tmp_path):
  program = (
    'import sys; from kaiju_jax.serving.stores import sqlite_store;'
    ' sys.stdin.readline(); sqlite_store.SqliteStore(sys.argv[1]).close()'
  )
  for turn in range(3):
    path = str(tmp_path / f'{turn}.sqlite')
    makers = [
      subprocess.Popen(
        [sys.executable, '-c', program, path], stdin=subprocess.PIPE
      )
      for _ in range(4)
    ]
    for maker in makers:
      maker.stdin.write(b'\n')
      maker.stdin.close()
    assert [maker.wait() for maker in makers] == [0] * 4
    assert opened(path).characters('ann') == ()
