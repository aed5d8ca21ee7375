"""What `usage.cached_tokens` tells of characters, and of nobody's else.

A cached prefix shortens the time to the first token, and `usage` counts it: so
whatever one may not read must not be cached for one's guesses either.
"""

import itertools

import pytest

from kaiju_jax.serving.stores import sharing
from tests.serving import running

WORDS = ['The', 'lamp', 'oil', 'lies', 'under', 'the', 'stairs']
_COUNT = itertools.count()


def name():
  """Returns a name that no other test has, so that no prefix is there yet."""
  return f'Mira {next(_COUNT):03d}'


def put(server, owner, called, words, public=False, to=None):
  fields = {'name': called, 'description': ' '.join(words), 'greeting': 'Hm?'}
  return server.publish(fields, owner, public, to)['id']


def cached(server, owner, character=None, text='Good evening', **body):
  body |= {'character': character} if character else {}
  return running.cached(server.chat(text, owner, **body))


def guess(server, called, counts, public=False):
  """Returns what Ben's cards find, of which so many words are right."""
  found = set()
  for count in counts:
    words = [*WORDS[:count], *(word[::-1] for word in WORDS[count:])]
    mine = put(server, 'ben', called, words, public)
    found.add(cached(server, 'ben', mine))
  return found


def length(server, character):
  return server.get(f'/v1/characters/{character}', owner='ann')['tokens']


@pytest.mark.parametrize('public', [False, True])
@pytest.mark.parametrize('was', ['private', 'public', 'public again'])
def test_guesses_find_nothing_of_a_private_character(server, was, public):
  """Nor of one that was public, and is made private or published anew.

  Ben's own cards may be public, and equal to the last word.
  """
  called = name()
  mine = put(server, 'ann', called, WORDS, was != 'private')
  sessions = [server.open_session(character=mine) for _ in range(2)]
  if was == 'public':
    put(server, 'ann', called, WORDS, False, mine)
  elif was == 'public again':
    # What Ann's sessions go on with is no longer live: only she has it.
    put(server, 'ann', called, ['Another'], False, mine)
    put(server, 'ann', called, ['Another', 'one'], True, mine)
  assert cached(server, 'ann', session=sessions[0]) < 4
  assert cached(server, 'ann', session=sessions[1], text='Hm') > 30
  assert len(guess(server, called, (0, 3, 6, 7), public)) == 1


def test_guesses_find_nothing_of_a_public_characters_description(server):
  """Others talk to it, and its text is its author's alone.

  Whoever has all of it sends the same prefix, and may know that.
  """
  called = name()
  cached(server, 'ann', put(server, 'ann', called, WORDS, True))
  assert len(guess(server, called, (0, 3, 6), True)) == 1


def test_each_private_text_has_a_salt_of_its_own(server):
  """The owner's is not that of readers whose sessions keep the version.

  (The layers here have too small a window for a part of a page to be found.)
  """
  store, called = server.store, name()
  mine = put(server, 'ann', called, WORDS, True)
  server.open_session('ben', mine)
  put(server, 'ann', called, ['Another'], False, mine)
  others = [put(server, 'ben', called, WORDS[:count]) for count in (3, 6)]
  versions = [store.version(one, 1) for one in (mine, *others)]
  trees = {sharing.find_tree(store, 'ben', one) for one in versions}
  assert len({tree.salt for tree in trees}) == len(versions)
  assert {tree.owner for tree in trees} == {'', 'ben'}
  assert sharing.find_tree(store, 'ann', versions[0]).owner == 'ann'


def test_a_text_of_ones_own_finds_nothing_of_anothers_character(server):
  """One's own conversation with it is in the cache, and tells no word."""
  mine = put(server, 'ann', name(), WORDS, True)
  theirs = server.open_session('ben', mine)
  put(server, 'ann', name(), WORDS, False, mine)
  for options in {'character': running.CHARACTER}, {'session': theirs}:
    cached(server, 'ben', **options)
    character = options.get('character', mine)
    tokens = server.store.version(character, 1).tokens.tolist()
    assert running.cached(server.complete(tokens, 'ben')) == 0
  # A prompt is found by oneself alone.
  prompt = f'{name()} lights the lamp, and nobody else knows where the oil is.'
  found = [
    running.cached(server.complete(prompt, owner))
    for owner in ('ann', 'ann', 'ben')
  ]
  assert found[0] == found[2] == 0 < found[1]


def test_ones_own_private_character_is_reused(server):
  mine = put(server, 'ann', name(), WORDS)
  assert cached(server, 'ann', mine) < 4
  for body in (
    {'character': mine},
    {'session': server.open_session(character=mine)},
  ):
    found = cached(server, 'ann', text=f'Who, {len(body)}?', **body)
    assert found >= length(server, mine)


@pytest.mark.parametrize('whose', ['built in', 'public', 'one that went on'])
def test_public_and_built_in_characters_are_shared_by_all(server, whose):
  if whose == 'built in':
    mine = running.CHARACTER
  else:
    mine = put(server, 'ann', name(), WORDS, True)
  size = length(server, mine)
  theirs = server.open_session('ben', mine)
  cached(server, 'ann', mine)
  if whose == 'one that went on':
    # A reader's session keeps the version that was public when it began.
    put(server, 'ann', name(), ['Another'], True, mine)
  assert cached(server, 'ben', session=theirs) >= size
