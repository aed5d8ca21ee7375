"""Publishes until it is killed: `python -m tests.serving.publisher …`.

    publisher KIND PLACE CHARACTER [WHERE COUNT]

Prints the number of each version once it is published. With WHERE it kills
itself: before its COUNTth statement (sqlite), before or after the COUNTth
sending, or in the middle of it (redis).
"""

import itertools
import os
import signal
import sys

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.serving.stores import characters

SIZE = 2_000  # Large enough that a half of it would show.


def content(number):
  """Returns (fields, prefix) of a version, each part of which tells which."""
  fields = card_fields.Fields(f'Ann {number}', description=f'{number} ' * SIZE)
  return fields, [number] * SIZE


def check(store, owner, character, first, acknowledged):
  """Asserts that versions are whole, and as many as were acknowledged."""
  held = store.character(owner, character)
  assert held.live == held.last
  assert held.last - acknowledged in (0, 1), (held.last, acknowledged)
  for number in range(first, held.last + 1):
    version = store.version(character, number)
    fields, prefix = content(number)
    assert version.fields == fields
    assert version.tokens.tolist() == prefix
  assert held.name == fields.name
  # Nothing of one that was not published.
  try:
    store.version(character, held.last + 1)
  except characters.Missing:
    return held.last
  raise AssertionError('half of a version')


def die():
  os.kill(os.getpid(), signal.SIGKILL)


def kill_at(kind, where, count):
  """Lets this process kill itself within its second publication."""
  if kind == 'sqlite':
    from kaiju_jax.serving.stores import sqlite_file

    connect, left = sqlite_file.connect, itertools.count(1)

    def connect_traced(path):
      connection = connect(path)

      def trace(_):
        if next(left) == count:
          die()

      connection.set_trace_callback(trace)
      return connection

    sqlite_file.connect = connect_traced
    return
  from redis import connection

  send, left = (
    connection.AbstractConnection.send_packed_command,
    (itertools.count(1)),
  )

  def send_traced(self, command, check_health=True):
    if next(left) != count:
      return send(self, command, check_health)
    if where == 'half':
      data = b''.join([command] if isinstance(command, bytes) else command)
      self._sock.sendall(data[: len(data) // 2])
    elif where == 'after':
      send(self, command, check_health)
    die()

  connection.AbstractConnection.send_packed_command = send_traced


def main(kind, place, character, where='', count='0'):
  if kind == 'sqlite':
    from kaiju_jax.serving.stores import sqlite_store

    store = sqlite_store.SqliteStore(place)
  else:
    from kaiju_jax.serving.stores import redis_store

    store = redis_store.RedisStore(place)
  number = store.character('ann', character).last
  if where:
    kill_at(kind, where, int(count))
    if kind == 'sqlite':
      store.close()
      store = sqlite_store.SqliteStore(place)
  while True:
    number += 1
    version = store.publish('ann', *content(number), 'bytes', character)
    assert version.number == number
    print(number, flush=True)
    if where:
      return


if __name__ == '__main__':
  main(*sys.argv[1:])
