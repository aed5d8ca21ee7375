"""Creates, recognizes and opens the file of a sqlite store.

One file holds all data; while it is open, sqlite keeps two beside it (-wal,
-shm). `application_id` marks a file as ours, `user_version` gives its schema.
"""

from collections.abc import Iterator
import os
import pathlib
import sqlite3
import tempfile

from kaiju_jax.serving.stores import characters
from kaiju_jax.storage import addresses

APPLICATION = 0x6B61696A  # 'kaij'
SCHEMA = 3
_MAGIC = b'SQLite format 3\0'
# Each commit waits for the disk, so that it survives a power cut.
SYNCHRONOUS = 'FULL'
ROOM = 4 * 2**20  # Bytes that a turn of a conversation may need (our guess).
BUSY = 5.0  # Seconds to wait for another process's write (our guess).

_TABLES = """
CREATE TABLE characters(
  id TEXT NOT NULL PRIMARY KEY,
  owner TEXT NOT NULL,
  name TEXT NOT NULL,
  live INTEGER NOT NULL,
  last INTEGER NOT NULL,
  is_public INTEGER NOT NULL,
  created REAL NOT NULL
);
CREATE INDEX characters_created ON characters(created, id);
CREATE INDEX characters_owner ON characters(owner);

CREATE TABLE versions(
  character TEXT NOT NULL REFERENCES characters(id)
    DEFERRABLE INITIALLY DEFERRED,
  number INTEGER NOT NULL,
  digest TEXT NOT NULL,
  tokens BLOB NOT NULL,
  tokenizer TEXT NOT NULL,
  fields TEXT NOT NULL,
  created REAL NOT NULL,
  PRIMARY KEY(character, number)
);
CREATE TRIGGER versions_are_immutable BEFORE UPDATE ON versions
BEGIN SELECT RAISE(ABORT, 'a version never changes'); END;

CREATE TABLE sessions(
  id TEXT NOT NULL PRIMARY KEY,
  owner TEXT NOT NULL,
  character TEXT NOT NULL,
  version INTEGER NOT NULL,
  greeting INTEGER NOT NULL,
  head INTEGER,
  title TEXT NOT NULL,
  created REAL NOT NULL,
  updated REAL NOT NULL,
  count INTEGER NOT NULL,
  size INTEGER NOT NULL,
  FOREIGN KEY(character, version) REFERENCES versions(character, number)
    DEFERRABLE INITIALLY DEFERRED
);
CREATE INDEX sessions_owner ON sessions(owner, updated, id);
CREATE INDEX sessions_updated ON sessions(updated, id);
CREATE INDEX sessions_version ON sessions(character, version);

CREATE TABLE messages(
  session TEXT NOT NULL REFERENCES sessions(id)
    DEFERRABLE INITIALLY DEFERRED,
  id INTEGER NOT NULL,
  parent INTEGER,
  role TEXT NOT NULL,
  text TEXT NOT NULL,
  tokens BLOB,
  finish TEXT,
  created REAL NOT NULL,
  reasoning TEXT,
  drawn TEXT,
  PRIMARY KEY(session, id)
);
CREATE TRIGGER messages_are_immutable BEFORE UPDATE ON messages
BEGIN SELECT RAISE(ABORT, 'a message never changes'); END;
"""

# A server of an older schema that still runs may delete sessions.
_FEEDBACK = """
CREATE TABLE IF NOT EXISTS ratings(
  session TEXT NOT NULL REFERENCES sessions(id)
    ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
  message INTEGER NOT NULL,
  rating TEXT NOT NULL,
  PRIMARY KEY(session, message)
);

CREATE TABLE IF NOT EXISTS agreements(
  owner TEXT NOT NULL PRIMARY KEY,
  agrees INTEGER NOT NULL
);
"""

# The columns of messages that are newer than the first schema.
_ADDED = 'reasoning', 'drawn'

# Faults of the file or the machine, in contrast to those of a request.
_AWAY = {
  sqlite3.SQLITE_BUSY: 'another process is writing; try again',
  sqlite3.SQLITE_LOCKED: 'another connection is writing; try again',
  sqlite3.SQLITE_FULL: 'the disk is full; make room, nothing is lost',
  sqlite3.SQLITE_READONLY: 'the file or its folder may not be written to',
  sqlite3.SQLITE_IOERR: 'the disk failed',
  sqlite3.SQLITE_CANTOPEN: 'the file cannot be opened',
  sqlite3.SQLITE_CORRUPT: 'the file is damaged; put back a copy of it',
  sqlite3.SQLITE_NOTADB: 'the file is damaged; put back a copy of it',
  sqlite3.SQLITE_PERM: 'the file may not be opened',
  sqlite3.SQLITE_NOMEM: 'the machine is out of memory',
}


def unavailable(path: str, error: sqlite3.Error) -> characters.Unavailable:
  """Returns a fault of the file or the machine; raises any other error."""
  # The upper bytes only give details, such as how a disk failed.
  code = (getattr(error, 'sqlite_errorcode', None) or 0) & 0xFF
  if code not in _AWAY:
    raise error
  return characters.Unavailable(path, _AWAY[code], str(error))


def make(path: str | os.PathLike[str]) -> str:
  """Returns the absolute path of a store's file, made where there is none.

  Raises:
    FileNotFoundError: the folder does not exist.
    OSError: the file cannot be made or opened.
    ValueError: the path is a URL, or the file is not a store or has a newer
      schema.
    characters.Unavailable: the file is in use, or the disk is full.
  """
  if not os.fspath(path):
    raise ValueError("store '': must name a file, such as runs/chats.sqlite.")
  addresses.refuse(path, f'store {os.fspath(path)}')
  found = pathlib.Path(os.path.abspath(path))
  if not found.parent.is_dir():
    raise FileNotFoundError(
      f'{found}: there is no folder {found.parent}; make it, or name a file'
      ' elsewhere.'
    )
  if found.is_dir():
    raise IsADirectoryError(f'{found}: a folder; must be the name of a file.')
  # No other user of the machine may read conversations. The files that sqlite
  # puts beside this one get its permissions.
  flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
  try:
    with open(os.open(found, flags, 0o600), 'rb') as file:
      begin = file.read(len(_MAGIC))
  except OSError as error:
    raise OSError(
      error.errno, f'{error.strerror}; give it to the user of the server', found
    ) from error
  path = str(found)
  # sqlite itself would treat a file of a few bytes as an empty one.
  if begin not in (b'', _MAGIC):
    raise _not_sqlite(path)
  try:
    _prepare(path)
  except sqlite3.Error as error:
    if getattr(error, 'sqlite_errorcode', None) == sqlite3.SQLITE_NOTADB:
      raise _not_sqlite(path) from error
    raise unavailable(path, error) from error
  return path


def connect(path: str) -> sqlite3.Connection:
  """Returns a connection in no transaction, for one thread at a time."""
  connection = sqlite3.connect(
    path, timeout=BUSY, isolation_level=None, check_same_thread=False
  )
  connection.execute(f'PRAGMA synchronous={SYNCHRONOUS}')
  connection.execute('PRAGMA foreign_keys=ON')
  return connection


def check_room(path: str) -> None:
  """Raises `Unavailable` unless a store's files may grow by `ROOM`.

  It does not write to them. A check that only writes a page would pass on a
  disk where no message fits.
  """
  if not hasattr(os, 'posix_fallocate'):
    return  # macOS.
  log = pathlib.Path(f'{path}-wal')
  try:
    held = log.stat().st_size if log.exists() else 0
    with tempfile.TemporaryFile(dir=os.path.dirname(path)) as file:
      os.posix_fallocate(file.fileno(), 0, held + ROOM)
  except OSError as error:
    fault = _AWAY[sqlite3.SQLITE_FULL]
    raise characters.Unavailable(path, fault, str(error)) from error


def _prepare(path: str) -> None:
  connection = connect(path)
  try:
    # In a transaction, because another process may make the tables between two
    # reads.
    connection.execute('BEGIN')
    is_ours = _recognize(connection, path)
    connection.execute('COMMIT')
    (mode,) = connection.execute('PRAGMA journal_mode=WAL').fetchone()
    if mode != 'wal':
      raise ValueError(
        f'{path}: its folder takes no write-ahead log ({mode=}): network shares'
        ' do not. Name a file on a local disk.'
      )
    if is_ours and _schema(connection) == SCHEMA:
      return
    connection.execute('BEGIN IMMEDIATE')
    # Another process may have made or changed the tables since.
    if not _recognize(connection, path):
      for statement in _statements(_TABLES):
        connection.execute(statement)
      connection.execute(f'PRAGMA application_id={APPLICATION}')
    _add_what_is_new(connection)
    connection.execute(f'PRAGMA user_version={SCHEMA}')
    connection.execute('COMMIT')
  finally:
    connection.close()


def _add_what_is_new(connection: sqlite3.Connection) -> None:
  """Adds what an older file lacks, and leaves what it has."""
  columns = {
    row[1] for row in connection.execute('PRAGMA table_info(messages)')
  }
  for name in _ADDED:
    if name not in columns:
      connection.execute(f'ALTER TABLE messages ADD COLUMN {name} TEXT')
  for statement in _statements(_FEEDBACK):
    connection.execute(statement)


def _schema(connection: sqlite3.Connection) -> int:
  return connection.execute('PRAGMA user_version').fetchone()[0]


def _recognize(connection: sqlite3.Connection, path: str) -> bool:
  """Returns whether a file has our tables; rejects one with others."""

  def one(query: str) -> int:
    return connection.execute(query).fetchone()[0]

  application, schema = (
    one(f'PRAGMA {name}') for name in ('application_id', 'user_version')
  )
  if application != APPLICATION:
    if application or schema or one('SELECT count(*) FROM sqlite_master'):
      raise ValueError(
        f"{path}: another program's sqlite database; name another file."
      )
    return False
  if schema > SCHEMA:
    raise ValueError(
      f'{path}: written by a newer kaiju_jax (schema {schema}; this one knows'
      f' {SCHEMA}). Update kaiju_jax, or name another file.'
    )
  return True


def _not_sqlite(path: str) -> ValueError:
  return ValueError(
    f'{path}: not a sqlite database; name another file, or move it away.'
  )


def _statements(script: str) -> Iterator[str]:
  """Yields a script's statements: `executescript` would commit before it."""
  statement = ''
  for line in script.splitlines(keepends=True):
    statement += line
    if sqlite3.complete_statement(statement):
      yield statement
      statement = ''
