"""Reads and writes the records of a store in Redis, under these keys:

    schema                     the number of this layout
    character:ID               JSON
    version:ID:NUMBER          hash: json, tokens
    pins:ID:NUMBER             set: ids of the sessions pinned to a version
    owned:OWNER                sorted set: ids of characters by created
    public                     the same, of public and built-in characters
    session:ID                 JSON
    messages:ID                list of JSON; a message's id is its place
    ratings:ID                 hash: rating by message
    sessions:OWNER             sorted set: ids of sessions by updated
    idle                       the same, of all owners
    agreements                 hash: '1' or '0' by owner

The store's prefix comes before each key. Reads within a transaction WATCH their
keys; writes are collected, and sent between MULTI and EXEC. Remembered messages
and versions are not read again, because they never change. Redis is asked
whether a remembered version is still there: another server may have removed it.

All keys must lie on one server (or one with replicas, behind Sentinel), because
a cluster cannot run a transaction over them.
"""

from collections.abc import Iterator
import dataclasses
import json
from typing import Any

import numpy as np
import redis

from kaiju_jax.serving.stores import character_rules as rules
from kaiju_jax.serving.stores import characters
from kaiju_jax.serving.stores import records
from kaiju_jax.serving.stores import redis_recent

_CHUNK = 16  # Entries of a sorted set read beyond those asked for.


class RedisReads:
  """`records.Reads` of a Redis.

  Args:
    server: a client, or a transaction before its MULTI.
    recent: the memory, which serves versions and messages and remembers all
      that is read.
  """

  def __init__(
    self,
    server: redis.Redis,
    prefix: str,
    recent: redis_recent.Recent,
  ):
    self._server, self._prefix, self._recent = server, prefix, recent

  def character(self, character: str) -> characters.Character | None:
    text = self._get(f'character:{character}')
    return text and characters.Character(**json.loads(text))

  def version(self, character: str, number: int) -> characters.Version | None:
    version = self._recent.version(character, number)
    if version is None:
      version = self._version(character, number)
      if version is not None:
        self._recent.keep_version(version)
    elif not self._server.exists(self._key(f'version:{character}:{number}')):
      self._recent.forget_version(character, number)
      version = None
    return version

  def pins(self, character: str, number: int) -> int:
    return self._server.scard(self._watched(f'pins:{character}:{number}'))

  def has_sessions(
    self, character: characters.Character, digest: str, of_owner: bool
  ) -> bool:
    for number in range(character.last, 0, -1):
      if not self.pins(character.id, number):
        continue
      version = self.version(character.id, number)
      if version is not None and version.digest == digest:
        owners = self._owners(f'pins:{character.id}:{number}')
        if any((one == character.owner) == of_owner for one in owners):
          return True
    return False

  def _owners(self, key: str) -> Iterator[str]:
    """Yields the owners of the sessions in a set, which may be a large one."""
    cursor = None
    while cursor != 0:
      cursor, ids = self._server.sscan(self._key(key), cursor or 0)
      keys = [self._key(f'session:{one.decode()}') for one in ids]
      for text in self._server.mget(keys) if keys else ():
        if text is not None:
          yield json.loads(text)['owner']

  def session(self, session: str) -> characters.Session | None:
    text = self._get(f'session:{session}')
    if text is None:
      self._recent.forget(session)
      return None
    found = characters.Session(**json.loads(text))
    self._recent.keep_session(found)
    return found

  def messages(
    self, session: characters.Session
  ) -> tuple[characters.Message, ...]:
    held = self._recent.messages(session.id)
    if len(held) < session.count:
      texts = self._server.lrange(
        self._key(f'messages:{session.id}'), len(held), session.count - 1
      )
      new = tuple(_message(text) for text in texts)
      self._recent.keep_messages(session.id, new)
      held += new
    if len(held) < session.count:
      # It was removed after it was read.
      raise characters.Missing(f'session {session.id}: no such session.')
    return held

  def ratings(self, session: characters.Session) -> dict[int, str]:
    found = self._server.hgetall(self._watched(f'ratings:{session.id}'))
    known = dict.fromkeys(self._recent.ratings(session.id))
    ratings = {int(message): one.decode() for message, one in found.items()}
    self._recent.keep_ratings(session.id, known | ratings)
    return dict(sorted(ratings.items()))

  def agreement(self, owner: str) -> bool | None:
    found = self._server.hget(self._watched('agreements'), owner)
    return None if found is None else found == b'1'

  def agreements(self) -> dict[str, bool]:
    found = self._server.hgetall(self._watched('agreements'))
    return {owner.decode(): agrees == b'1' for owner, agrees in found.items()}

  def visible_characters(
    self, viewer: str, limit: int, after: records.After
  ) -> tuple[characters.Character, ...]:
    found: dict[str, characters.Character] = {}

    def made(text: bytes, _) -> characters.Character | None:
      one = characters.Character(**json.loads(text))
      # A listed character may have become private in the meantime.
      return one if rules.is_visible(one, viewer) else None

    for key in f'owned:{viewer}', 'public':
      for one in self._range(key, limit, after, 'character', made):
        found[one.id] = one
    both = sorted(found.values(), key=lambda one: (one.created, one.id))
    return tuple(both[:limit])

  def sessions(
    self, owner: str, limit: int, after: records.After, is_oldest_first: bool
  ) -> tuple[characters.Session, ...]:
    key = f'sessions:{owner}'
    return self._range(
      key, limit, after, 'session', _session, not is_oldest_first
    )

  def idle(self, before: float, limit: int) -> tuple[characters.Session, ...]:
    found = self._range('idle', limit, None, 'session', _session)
    return tuple(one for one in found if one.updated < before)

  def count_characters(self, owner: str) -> int:
    return self._server.zcard(self._watched(f'owned:{owner}'))

  def count_sessions(self, owner: str) -> int:
    return self._server.zcard(self._watched(f'sessions:{owner}'))

  def _key(self, name: str) -> str:
    return f'{self._prefix}{name}'

  def _watched(self, name: str) -> str:
    return self._key(name)

  def _get(self, name: str) -> bytes | None:
    return self._server.get(self._watched(name))

  def _version(self, character: str, number: int) -> characters.Version | None:
    name = f'version:{character}:{number}'
    found = self._server.hgetall(self._watched(name))
    if not found:
      return None
    data = json.loads(found[b'json'])
    data['fields'] = rules.fields_of(data['fields'])
    data['tokens'] = np.frombuffer(found[b'tokens'], '<i4')
    return characters.Version(**data)

  def _range(self, key, limit, after, kind, made, is_reversed=False):
    """Returns up to `limit` records of a sorted set, in order after `after`."""
    found, offset, size = [], 0, limit + _CHUNK
    begin, end = '-inf', '+inf'
    if is_reversed:
      begin, end = end, begin
    if after:
      begin = repr(after[0])
    while len(found) < limit:
      pairs = self._server.zrange(
        self._key(key),
        begin,
        end,
        desc=is_reversed,
        withscores=True,
        byscore=True,
        offset=offset,
        num=size,
      )
      places = [(score, id_.decode()) for id_, score in pairs]
      if after:
        # Others of the same time come before it.
        places = [one for one in places if (one > after) != is_reversed]
        places = [one for one in places if one != after]
      for place, text in zip(places, self._texts(kind, places)):
        one = text and made(text, place[0])
        if one:
          found.append(one)
      if len(pairs) < size:
        break
      offset += size
    return tuple(found[:limit])

  def _texts(self, kind: str, places) -> list[bytes | None]:
    """Returns records; None for one that was removed since it was listed."""
    keys = [self._key(f'{kind}:{id_}') for _, id_ in places]
    return self._server.mget(keys) if keys else []


class RedisWrites(RedisReads):
  """`records.Writes` of a transaction (`server`) before its MULTI."""

  def __init__(
    self,
    server: redis.client.Pipeline,
    prefix: str,
    recent: redis_recent.Recent,
  ):
    super().__init__(server, prefix, recent)
    self._commands: list[tuple] = []
    self._kept: list[tuple] = []

  def version(self, character: str, number: int) -> characters.Version | None:
    # A remembered version may have been deleted with its character.
    return self._version(character, number)

  def put_character(self, character: characters.Character) -> None:
    self._set(f'character:{character.id}', character)
    everybodys = character.is_public or character.owner == characters.BUILT_IN
    self._list(
      f'owned:{character.owner}',
      character.id,
      character.created,
      character.live,
    )
    self._list(
      'public',
      character.id,
      character.created,
      character.live and everybodys,
    )

  def add_version(self, version: characters.Version) -> None:
    data = vars(version) | {'fields': rules.json_of(version.fields)}
    del data['tokens']
    self._send(
      'HSET',
      f'version:{version.character}:{version.number}',
      'json',
      _dump(data),
      'tokens',
      version.tokens.tobytes(),
    )
    self._kept.append((self._recent.keep_version, version))

  def drop_version(self, character: str, number: int) -> None:
    self._send('DEL', f'version:{character}:{number}')
    self._kept.append((self._recent.forget_version, character, number))

  def put_session(self, session: characters.Session) -> None:
    self._send('SADD', _pins(session), session.id)
    self._set(f'session:{session.id}', session)
    for key in f'sessions:{session.owner}', 'idle':
      self._list(key, session.id, session.updated, True)
    self._kept.append((self._recent.keep_session, session))

  def drop_session(self, session: characters.Session) -> None:
    for name in 'session', 'messages', 'ratings':
      self._send('DEL', f'{name}:{session.id}')
    for key in f'sessions:{session.owner}', 'idle':
      self._list(key, session.id, session.updated, False)
    self._send('SREM', _pins(session), session.id)
    self._kept.append((self._recent.forget, session.id))

  def add_message(
    self, session: characters.Session, message: characters.Message
  ) -> None:
    data = dataclasses.asdict(message)
    data['drawn'] = message.drawn and message.drawn.fields()
    for name in 'reasoning', 'drawn':
      if data[name] is None:  # So that older servers read it, too.
        del data[name]
    self._send('RPUSH', f'messages:{session.id}', _dump(data))
    self._kept.append((self._recent.keep_messages, session.id, (message,)))

  def put_rating(
    self, session: characters.Session, message: int, rating: str | None
  ) -> None:
    name = f'ratings:{session.id}'
    if rating is None:
      self._send('HDEL', name, message)
    else:
      self._send('HSET', name, message, rating)
    self._kept.append(
      (self._recent.keep_ratings, session.id, {message: rating})
    )

  def put_agreement(self, owner: str, agrees: bool) -> None:
    self._send('HSET', 'agreements', owner, int(agrees))

  def commit(self) -> None:
    """Sends the collected writes, and remembers them.

    Raises:
      redis.WatchError: a record that was read has changed; nothing was written.
    """
    if not self._commands:
      return
    self._server.multi()
    for command in self._commands:
      self._server.execute_command(*command)
    self._server.execute()
    for keep, *what in self._kept:
      keep(*what)

  def _watched(self, name: str) -> str:
    key = self._key(name)
    self._server.watch(key)
    return key

  def _send(self, command: str, name: str, *values) -> None:
    self._commands.append((command, self._key(name), *values))

  def _set(self, name: str, record) -> None:
    self._send('SET', name, _dump(dataclasses.asdict(record)))

  def _list(self, name: str, id_: str, score: float, is_in: object) -> None:
    if is_in:
      self._send('ZADD', name, repr(score), id_)
    else:
      self._send('ZREM', name, id_)


class MemoryReads:
  """`records.Reads` of the memory, while the server is unreachable.

  Raises `error` for everything that is not remembered.
  """

  def __init__(
    self, recent: redis_recent.Recent, error: characters.Unavailable
  ):
    self._recent, self._error = recent, error

  def version(self, character: str, number: int) -> characters.Version:
    return self._found(self._recent.version(character, number))

  def session(self, session: str) -> characters.Session:
    return self._found(self._recent.session(session))

  def messages(
    self, session: characters.Session
  ) -> tuple[characters.Message, ...]:
    held = self._recent.messages(session.id)
    return self._found(held if len(held) >= session.count else None)

  def ratings(self, session: characters.Session) -> dict[int, str]:
    return self._recent.ratings(session.id)

  def __getattr__(self, name: str) -> Any:
    def away(*_):
      raise self._error

    return away

  def _found(self, found):
    if found is None:
      raise self._error
    return found


def _pins(session: characters.Session) -> str:
  return f'pins:{session.character}:{session.version}'


def _dump(data: Any) -> str:
  return json.dumps(data, ensure_ascii=False, separators=(',', ':'))


def _session(text: bytes, updated: float) -> characters.Session:
  # A listing's cursor must be of its own moment.
  return characters.Session(**{**json.loads(text), 'updated': updated})


def _message(text: bytes) -> characters.Message:
  data = json.loads(text)
  if data['tokens'] is not None:
    data['tokens'] = tuple(data['tokens'])
  drawn = data.get('drawn')
  data['drawn'] = drawn and characters.Drawn(**drawn)
  return characters.Message(**data)
