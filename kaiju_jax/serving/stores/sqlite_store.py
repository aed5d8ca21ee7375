"""Keeps characters and conversations in one sqlite file: the default store.

    store = sqlite_store.SqliteStore('runs/chats.sqlite')

Readers see the last commit and never wait (WAL). The writers of a process take
turns at a lock, and processes take turns at sqlite's own. A commit returns once
it is on the disk.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import json
import os
import sqlite3
import threading
import time
from typing import Any
from typing import TypeVar

import numpy as np

from kaiju_jax.serving.stores import character_rules as rules
from kaiju_jax.serving.stores import characters
from kaiju_jax.serving.stores import conversing
from kaiju_jax.serving.stores import faults
from kaiju_jax.serving.stores import records
from kaiju_jax.serving.stores import sqlite_file

T = TypeVar('T')

_CHARACTER = 'id, owner, name, live, last, is_public, created'
_VERSION = 'character, number, digest, tokens, tokenizer, fields, created'
_SESSION = (
  'id, owner, character, version, greeting, head, title, created, updated,'
  ' count, size'
)
_MESSAGE = 'id, parent, role, text, tokens, finish, created, reasoning, drawn'


class SqliteStore(conversing.Store):
  """`conversing.Store` in one file; raises as `sqlite_file.make` does."""

  def __init__(
    self,
    path: str | os.PathLike[str],
    limits: rules.Limits | None = None,
    clock: Callable[[], float] = time.time,
  ):
    super().__init__(limits, clock)
    self._path = sqlite_file.make(path)
    self._writing = threading.Lock()
    self._guard = threading.Lock()
    self._idle: list[sqlite3.Connection] = []
    self._is_open = True
    self._faults = faults.Faults()

  def check(self) -> None:
    try:
      sqlite_file.check_room(self._path)
    except characters.Unavailable as error:
      raise self._noted(error) from error
    # Any other write might grow the file, and so fill the disk.
    self._write(lambda at: at.touch())

  def close(self) -> None:
    with self._guard:
      self._is_open = False
      while self._idle:
        self._idle.pop().close()

  def _read(self, work: Callable[[records.Reads], T]) -> T:
    with self._transaction('BEGIN') as connection:
      return work(_Records(connection))

  def _write(self, work: Callable[[records.Writes], T]) -> T:
    # sqlite waits by sleeping, after which chance decides which thread is next.
    if not self._writing.acquire(timeout=sqlite_file.BUSY):
      raise self._noted(
        characters.Unavailable(self._path, 'others are writing; try again')
      )
    try:
      with self._transaction('BEGIN IMMEDIATE') as connection:
        return work(_Records(connection))
    finally:
      self._writing.release()

  @contextlib.contextmanager
  def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
    try:
      with self._connection() as connection:
        connection.execute(begin)
        try:
          yield connection
          connection.execute('COMMIT')
        except BaseException:
          # A full disk has already rolled back.
          if connection.in_transaction:
            connection.execute('ROLLBACK')
          raise
    except sqlite3.Error as error:
      fault = sqlite_file.unavailable(self._path, error)
      raise self._noted(fault) from error
    except characters.Unavailable as error:
      raise self._noted(error) from error
    # Reads may go on while writes fail.
    if begin != 'BEGIN' and self._faults.count:
      self._faults.end()

  def _noted(self, error: characters.Unavailable) -> characters.Unavailable:
    self._faults.note(error.fault, str(error))
    return error

  @contextlib.contextmanager
  def _connection(self) -> Iterator[sqlite3.Connection]:
    """Yields a connection that no other thread uses."""
    with self._guard:
      if not self._is_open:
        raise characters.Unavailable(self._path, 'the store is closed')
      connection = self._idle.pop() if self._idle else None
    if connection is None:
      connection = sqlite_file.connect(self._path)
    try:
      yield connection
    finally:
      with self._guard:
        if self._is_open:
          self._idle.append(connection)
        else:
          connection.close()


class _Records:
  """`records.Writes` of one transaction."""

  def __init__(self, connection: sqlite3.Connection):
    self._connection = connection

  def touch(self) -> None:
    """Writes a value that is already there."""
    (schema,) = self._row('PRAGMA user_version')
    self._connection.execute(f'PRAGMA user_version={schema}')

  def character(self, character: str) -> characters.Character | None:
    row = self._row(
      f'SELECT {_CHARACTER} FROM characters WHERE id = ?', character
    )
    return row and _character(row)

  def version(self, character: str, number: int) -> characters.Version | None:
    row = self._row(
      f'SELECT {_VERSION} FROM versions WHERE character = ? AND number = ?',
      character,
      number,
    )
    return row and _version(row)

  def pins(self, character: str, number: int) -> int:
    return self._row(
      'SELECT count(*) FROM sessions WHERE character = ? AND version = ?',
      character,
      number,
    )[0]

  def has_sessions(
    self, character: characters.Character, digest: str, of_owner: bool
  ) -> bool:
    row = self._row(
      'SELECT EXISTS(SELECT 1 FROM versions v JOIN sessions s'
      ' ON s.character = v.character AND s.version = v.number'
      ' WHERE v.character = ? AND v.digest = ?'
      ' AND (s.owner = ?) = ?)',
      character.id,
      digest,
      character.owner,
      of_owner,
    )
    return bool(row[0])

  def session(self, session: str) -> characters.Session | None:
    row = self._row(f'SELECT {_SESSION} FROM sessions WHERE id = ?', session)
    return row and characters.Session(*row)

  def messages(
    self, session: characters.Session
  ) -> tuple[characters.Message, ...]:
    rows = self._connection.execute(
      f'SELECT {_MESSAGE} FROM messages WHERE session = ? ORDER BY id',
      (session.id,),
    )
    return tuple(_message(row) for row in rows)

  def ratings(self, session: characters.Session) -> dict[int, str]:
    rows = self._connection.execute(
      'SELECT message, rating FROM ratings WHERE session = ? ORDER BY message',
      (session.id,),
    )
    return dict(rows.fetchall())

  def agreement(self, owner: str) -> bool | None:
    row = self._row('SELECT agrees FROM agreements WHERE owner = ?', owner)
    return row and bool(row[0])

  def agreements(self) -> dict[str, bool]:
    rows = self._connection.execute('SELECT owner, agrees FROM agreements')
    return {owner: bool(agrees) for owner, agrees in rows}

  def visible_characters(
    self, viewer: str, limit: int, after: records.After
  ) -> tuple[characters.Character, ...]:
    rows = self._connection.execute(
      f'SELECT {_CHARACTER} FROM characters WHERE live > 0'
      ' AND (is_public OR owner = ? OR owner = ?) AND (created, id) > (?, ?)'
      ' ORDER BY created, id LIMIT ?',
      (viewer, characters.BUILT_IN, *_first(after), limit),
    )
    return tuple(_character(row) for row in rows)

  def sessions(
    self, owner: str, limit: int, after: records.After, is_oldest_first: bool
  ) -> tuple[characters.Session, ...]:
    begin = _first(after) if is_oldest_first else after or (np.inf, '')
    sign, order = ('>', 'ASC') if is_oldest_first else ('<', 'DESC')
    return self._sessions(
      f'owner = ? AND (updated, id) {sign} (?, ?)'
      f' ORDER BY updated {order}, id {order} LIMIT ?',
      (owner, *begin, limit),
    )

  def idle(self, before: float, limit: int) -> tuple[characters.Session, ...]:
    return self._sessions(
      'updated < ? ORDER BY updated, id LIMIT ?', (before, limit)
    )

  def count_characters(self, owner: str) -> int:
    return self._row(
      'SELECT count(*) FROM characters WHERE owner = ? AND live > 0', owner
    )[0]

  def count_sessions(self, owner: str) -> int:
    return self._row('SELECT count(*) FROM sessions WHERE owner = ?', owner)[0]

  def put_character(self, character: characters.Character) -> None:
    self._put('characters', character)

  def add_version(self, version: characters.Version) -> None:
    packed = {
      'tokens': version.tokens.tobytes(),
      'fields': rules.json_of(version.fields),
    }
    self._add('versions', vars(version) | packed)

  def drop_version(self, character: str, number: int) -> None:
    self._connection.execute(
      'DELETE FROM versions WHERE character = ? AND number = ?',
      (character, number),
    )

  def put_session(self, session: characters.Session) -> None:
    self._put('sessions', session)

  def drop_session(self, session: characters.Session) -> None:
    for table, column in (
      ('ratings', 'session'),
      ('messages', 'session'),
      ('sessions', 'id'),
    ):
      self._connection.execute(
        f'DELETE FROM {table} WHERE {column} = ?', (session.id,)
      )

  def add_message(
    self, session: characters.Session, message: characters.Message
  ) -> None:
    packed = {
      'session': session.id,
      'tokens': _pack(message.tokens),
      'drawn': message.drawn and json.dumps(message.drawn.fields()),
    }
    self._add('messages', vars(message) | packed)

  def put_rating(
    self, session: characters.Session, message: int, rating: str | None
  ) -> None:
    if rating is None:
      self._connection.execute(
        'DELETE FROM ratings WHERE session = ? AND message = ?',
        (session.id, message),
      )
    else:
      self._connection.execute(
        'INSERT OR REPLACE INTO ratings VALUES(?, ?, ?)',
        (session.id, message, rating),
      )

  def put_agreement(self, owner: str, agrees: bool) -> None:
    self._connection.execute(
      'INSERT OR REPLACE INTO agreements VALUES(?, ?)', (owner, agrees)
    )

  def _row(self, query: str, *values) -> tuple | None:
    return self._connection.execute(query, values).fetchone()

  def _sessions(self, where: str, values) -> tuple[characters.Session, ...]:
    rows = self._connection.execute(
      f'SELECT {_SESSION} FROM sessions WHERE {where}', values
    )
    return tuple(characters.Session(*row) for row in rows)

  def _add(
    self, table: str, row: Mapping[str, Any], conflict: str = ''
  ) -> None:
    """Inserts a row by its columns' names."""
    marks = ', '.join('?' * len(row))
    self._connection.execute(
      f'INSERT INTO {table}({", ".join(row)}) VALUES({marks}){conflict}',
      (*row.values(),),
    )

  def _put(self, table: str, record: Any) -> None:
    """Inserts a record, or updates the row that has its id."""
    changes = ', '.join(
      f'{name} = excluded.{name}' for name in vars(record) if name != 'id'
    )
    conflict = f' ON CONFLICT(id) DO UPDATE SET {changes}'
    self._add(table, vars(record), conflict)


def _first(after: records.After) -> tuple[float, str]:
  return after or (-np.inf, '')


def _character(row: tuple) -> characters.Character:
  *rest, is_public, created = row
  return characters.Character(*rest, bool(is_public), created)


def _version(row: tuple) -> characters.Version:
  found = dict(zip(_VERSION.split(', '), row, strict=True))
  found['tokens'] = np.frombuffer(found['tokens'], '<i4')
  found['fields'] = rules.fields_of(found['fields'])
  return characters.Version(**found)


def _message(row: tuple) -> characters.Message:
  number, parent, role, text, tokens, *others, drawn = row
  if tokens is not None:
    tokens = tuple(np.frombuffer(tokens, '<i4').tolist())
  drawn = drawn and characters.Drawn(**json.loads(drawn))
  return characters.Message(number, parent, role, text, tokens, *others, drawn)


def _pack(tokens: tuple[int, ...] | None) -> bytes | None:
  return None if tokens is None else np.array(tokens, '<i4').tobytes()
