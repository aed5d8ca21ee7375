"""Stores as the code before ratings wrote them: sqlite's schema 2, Redis's 1.

The owner 'ann' has one conversation, `SESSION`, of three messages, the last one
of which is the model's.
"""

import json
import sqlite3

CHARACTER, SESSION = 'ann-1a650fc97657', 'loMDccf5NxQE6-RZ9QNzMwGs'
_DIGEST = '318556ba5d36114fb1584355da24d4a14435a993ec304faa52ba5aac13cc8da9'
_FIELDS = (
  '{"name":"Ann","nickname":"","description":"","personality":"","scenario":"",'
  '"greeting":"Hello.","alternate_greetings":[],"examples":"",'
  '"system_prompt":"","post_history":"","lore":[],"creator":"","notes":"",'
  '"tags":[],"version_name":"","extensions":{}}'
)

_SQL = f"""
CREATE TABLE characters(
  id TEXT NOT NULL PRIMARY KEY,
  owner TEXT NOT NULL,
  name TEXT NOT NULL,
  live INTEGER NOT NULL,
  last INTEGER NOT NULL,
  is_public INTEGER NOT NULL,
  created REAL NOT NULL
);
INSERT INTO characters VALUES('{CHARACTER}','ann','Ann',1,1,0,1795452186.25);
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
  PRIMARY KEY(session, id)
);
INSERT INTO messages VALUES
  ('{SESSION}',0,NULL,'assistant','Hello.',NULL,NULL,1795452186.5,NULL),
  ('{SESSION}',1,0,'user','Who?',NULL,NULL,1795452187.0,NULL),
  ('{SESSION}',2,1,'assistant','Me.',X'0500000006000000','stop',
   1795452188.0,'Hm.');
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
INSERT INTO sessions VALUES('{SESSION}','ann','{CHARACTER}',1,0,2,'Ann',
  1795452186.5,1795452188.0,3,24);
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
INSERT INTO versions VALUES('{CHARACTER}',1,'{_DIGEST}',X'01000000','bytes',
  '{_FIELDS}',1795452186.25);
CREATE INDEX characters_created ON characters(created, id);
CREATE INDEX characters_owner ON characters(owner);
CREATE TRIGGER versions_are_immutable BEFORE UPDATE ON versions
BEGIN SELECT RAISE(ABORT, 'a version never changes'); END;
CREATE INDEX sessions_owner ON sessions(owner, updated, id);
CREATE INDEX sessions_updated ON sessions(updated, id);
CREATE INDEX sessions_version ON sessions(character, version);
CREATE TRIGGER messages_are_immutable BEFORE UPDATE ON messages
BEGIN SELECT RAISE(ABORT, 'a message never changes'); END;
PRAGMA application_id={0x6B61696A};
PRAGMA user_version=2;
"""

_MESSAGES = (
  '{"id":0,"parent":null,"role":"assistant","text":"Hello.","tokens":null,'
  '"finish":null,"created":1795452186.5}',
  '{"id":1,"parent":0,"role":"user","text":"Who?","tokens":null,'
  '"finish":null,"created":1795452187.0}',
  '{"id":2,"parent":1,"role":"assistant","text":"Me.","tokens":[5,6],'
  '"finish":"stop","created":1795452188.0,"reasoning":"Hm."}',
)


def write_sqlite(path) -> None:
  """Writes a file of schema 2."""
  connection = sqlite3.connect(path)
  connection.executescript(_SQL)
  connection.execute('PRAGMA journal_mode=WAL')
  connection.close()


def write_redis(client, prefix: str) -> None:
  """Writes a store of schema 1 under a prefix."""
  version = {
    'character': CHARACTER,
    'number': 1,
    'digest': _DIGEST,
    'tokenizer': 'bytes',
    'created': 1795452186.25,
    'fields': _FIELDS,
  }
  client.set(f'{prefix}schema', 1)
  client.set(
    f'{prefix}character:{CHARACTER}',
    f'{{"id":"{CHARACTER}","owner":"ann","name":"Ann","live":1,"last":1,'
    '"is_public":false,"created":1795452186.25}',
  )
  client.hset(
    f'{prefix}version:{CHARACTER}:1',
    mapping={'tokens': b'\1\0\0\0', 'json': json.dumps(version)},
  )
  client.set(
    f'{prefix}session:{SESSION}',
    f'{{"id":"{SESSION}","owner":"ann","character":"{CHARACTER}","version":1,'
    '"greeting":0,"head":2,"title":"Ann","created":1795452186.5,'
    '"updated":1795452188.0,"count":3,"size":24}',
  )
  client.rpush(f'{prefix}messages:{SESSION}', *_MESSAGES)
  client.sadd(f'{prefix}pins:{CHARACTER}:1', SESSION)
  client.zadd(f'{prefix}owned:ann', {CHARACTER: 1795452186.25})
  for key in 'idle', 'sessions:ann':
    client.zadd(f'{prefix}{key}', {SESSION: 1795452188.0})
