"""What a new replica is given before it serves anybody, and what never."""

import dataclasses

import numpy as np
import pytest

from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.serving.replies import worker as worker_lib
from kaiju_jax.serving.routes import operations
from kaiju_jax.serving.routing import replica as replica_lib
from kaiju_jax.serving.routing import rollouts as rollouts_lib
from kaiju_jax.serving.stores import characters
from kaiju_jax.serving.stores import sharing
from kaiju_jax.serving.stores import sqlite_store
from tests.serving import running
from tests.serving import world

DIGEST = 'tokenizer 1'


@pytest.fixture
def store(tmp_path):
  store = sqlite_store.SqliteStore(tmp_path / 'characters.sqlite')
  yield store
  store.close()


def publish(store, owner, number, is_public=True, character=None, **changes):
  """Publishes a prefix of 40 tokens, all of them its number."""
  fields = dataclasses.replace(running.FIELDS, name=f'Mira {number}')
  return store.publish(
    owner,
    fields,
    np.full(40, number),
    changes.get('tokenizer', DIGEST),
    character or (f'built-{number}' if not owner else None),
    is_public=is_public,
  )


def numbers(found):
  return sorted(int(one.tokens[0]) for one in found)


def test_only_what_everybody_shares_is_listed(store, monkeypatch):
  monkeypatch.setattr(operations, '_PREFIX_PAGE', 2)
  publish(store, characters.BUILT_IN, 1)
  publish(store, 'ann', 2)
  publish(store, 'ann', 3, is_public=False)
  publish(store, 'ben', 4, tokenizer='another')
  removed = publish(store, 'ben', 5)
  store.remove('ben', removed.character)
  withdrawn = publish(store, 'ben', 6)
  publish(store, 'ben', 7, False, withdrawn.character)
  older = publish(store, 'ann', 8)
  publish(store, 'ann', 9, True, older.character)
  found = operations.list_public(store, DIGEST)
  assert numbers(found) == [1, 2, 9]
  trees = [sharing.Tree.parse(one.salt) for one in found]
  assert len(trees) == 3 and not any(tree.owner for tree in trees)


def test_one_that_is_withdrawn_meanwhile_is_left_out(store, monkeypatch):
  """Between the listing and the look at the version."""
  one = publish(store, 'ann', 1)
  listed = store.characters(characters.BUILT_IN)
  publish(store, 'ann', 2, False, one.character)
  monkeypatch.setattr(store, 'characters', lambda *_: listed)
  assert operations.list_public(store, DIGEST) == []


@pytest.mark.parametrize('broken', ['tree', 'version'])
def test_each_of_two_guards_keeps_private_texts_out(store, monkeypatch, broken):
  """Whether the tree is everybody's, and the version that everybody sees."""
  one = publish(store, 'ann', 1)
  listed = store.characters(characters.BUILT_IN)
  publish(store, 'ann', 2, False, one.character)
  monkeypatch.setattr(store, 'characters', lambda *_: listed)
  if broken == 'tree':
    monkeypatch.setattr(sharing, 'is_public', lambda store, tree: True)
  else:
    monkeypatch.setattr(store, 'live', lambda *_: one)
  assert operations.list_public(store, DIGEST) == []


class Names:
  def salt(self, salt):
    return f'hmac {salt}'


def test_the_most_used_come_first_and_unused_ones_never():
  prefixes = [rollouts_lib.Prefix(x, np.array([1])) for x in ('a', 'b', 'c')]

  def held(salt, count, conversation='x'):
    return [
      replica_lib.CachedText(f'hmac {salt}', conversation, 5, 0.0)
    ] * count

  texts = [
    [*held('a', 2), *held('ann private', 9)],
    [*held('b', 2), *held('b', 1, '')],
  ]
  ranked = rollouts_lib.rank(prefixes, texts, Names())
  assert [one.salt for one in ranked] == ['b', 'a']


async def test_a_warm_prefix_serves_the_first_session():
  engine = world.Engine(running.Letters(), length=256, pages=400)
  worker = worker_lib.Worker(engine)
  worker.start()
  prefix = rollouts_lib.Prefix('digest', np.arange(4, 44))
  busy = iter([request_lib.Busy('full', 1.0), None, None])

  class Replica:
    """Is busy at first, as a replica may be."""

    async def submit(self, *requests):
      if error := next(busy, None):
        raise error
      return await worker.submit(*requests)

  async def first_session(salt):
    (stream,) = await worker.submit(
      request_lib.Request(
        np.concatenate([prefix.tokens, np.arange(60, 70)]),
        2,
        owner='ann',
        shared=len(prefix.tokens),
        cache_salt=salt,
        conversation='session',
      )
    )
    async for _ in stream:
      pass
    return stream.reused

  other = rollouts_lib.Prefix('other', np.arange(50, 60))
  try:
    assert await rollouts_lib.warm(Replica(), [prefix, other]) == 2
    assert await first_session('digest') == 40
    assert await first_session('another') == 0
  finally:
    worker.stop()
