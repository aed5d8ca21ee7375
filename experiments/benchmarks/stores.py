"""How long does a store take to keep what was said?

    python -m experiments.benchmarks.stores --store=/tmp/chats.sqlite
    python -m experiments.benchmarks.stores --store=redis://localhost:6379/0

Appends 1,000 messages (240 bytes, 60 tokens) to one conversation, publishes
1,000 versions of a character (4 kB, a prefix of 8,000 tokens), and reads that
conversation with its version 200 times; prints milliseconds at the 50th and
99th percentile. Name a place of its own: what it writes stays there.
"""

from collections.abc import Callable
import time

from absl import flags

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.runs import command
from kaiju_jax.serving.stores import sqlite_store

_STORE = flags.DEFINE_string(
  'store', None, 'A file, or the address of a Redis.'
)


def open_store(place: str):
  """Returns the store at a path or an address."""
  if '://' not in place:
    return sqlite_store.SqliteStore(place)
  from kaiju_jax.serving.stores import redis_store  # An optional package.

  return redis_store.RedisStore(place, prefix='kaiju-benchmark:')


def time_work(name: str, times: int, work: Callable[[int], object]) -> None:
  """Prints the milliseconds that `work` takes."""
  taken = []
  for number in range(times):
    start = time.perf_counter()
    work(number)
    taken.append(1000 * (time.perf_counter() - start))
  taken.sort()
  print(
    f'{name:8} p50 {taken[times // 2]:6.2f} ms'
    f'   p99 {taken[times * 99 // 100]:6.2f} ms'
  )


def main(argv) -> None:
  command.check(argv, _STORE)
  store = open_store(_STORE.value)

  def fields(number: int) -> card_fields.Fields:
    return card_fields.Fields('Ann', description='d' * 4000, notes=str(number))

  prefix = list(range(8000))
  character = store.publish('ann', fields(-1), prefix, 'bytes').character
  session = store.open_session('ann', character).id
  time_work(
    'append',
    1000,
    lambda number: store.append(
      'ann', session, None, 'user', 'hello ' * 40, tokens=range(60)
    ),
  )
  time_work(
    'publish',
    1000,
    lambda number: store.publish(
      'ann', fields(number), prefix, 'bytes', character
    ),
  )

  def read(_: int) -> None:
    held = store.session('ann', session)
    store.messages('ann', session)
    store.version(character, held.version)

  time_work('read', 200, read)
  store.close()


if __name__ == '__main__':
  command.run(main)
