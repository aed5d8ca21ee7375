"""What `usage.cached_tokens` tells of characters, and of nobody's else.

A cached prefix shortens the time to the first token, and `usage` counts it: so
whatever one may not read must not be cached for one's guesses either.
"""

import itertools

import pytest

from kaiju_jax.serving.stores import sharing
from tests.serving import running

WORDS = ['The', 'lamp', 'oil', 'lies', 'under', 'the', 'stairs']
GUESSES = 0, 3, 6, 7


@pytest.fixture(scope='module')
def server(tmp_path_factory):
  with running.server(tmp_path_factory.mktemp('server')) as server:
    yield server


_COUNT = itertools.count()


def name():
  """Returns a name that no other test has, so that no prefix is there yet."""
  return f'Mira {next(_COUNT):03d}'


def put(server, owner, called, words, public=False, to=None):
  fields = {'name': called, 'description': ' '.join(words), 'greeting': 'Hm?'}
  method, path = (
    ('PUT', f'/v1/characters/{to}') if to else ('POST', '/v1/characters')
  )
  body = {'fields': fields, 'public': public}
  return server.ask(method, path, body, owner)['id']


def cached(server, owner, character=None, session=None, text='Good evening'):
  body = {'session': session} if session else {'character': character}
  answer = server.post(
    '/v1/chat/completions',
    owner,
    model=running.MODEL,
    messages=[{'role': 'user', 'content': text}],
    max_tokens=3,
    **{key: value for key, value in body.items() if value},
  )
  return answer['kaiju']['cached_tokens']


def opened(server, owner, character):
  return server.post('/v1/sessions', owner, character=character)['id']


def guess(server, called, count, public=False):
  """Returns what Ben's card finds, of which `count` words are right."""
  words = [*WORDS[:count], *(word[::-1] for word in WORDS[count:])]
  return cached(server, 'ben', put(server, 'ben', called, words, public))


@pytest.mark.parametrize('public', [False, True])
@pytest.mark.parametrize('was', ['private', 'public', 'public again'])
def test_guesses_find_nothing_of_a_private_character(server, was, public):
  """Nor of one that was public, and is made private or published anew.

  Ben's own cards may be public, and equal to the last word.
  """
  called = name()
  mine = put(server, 'ann', called, WORDS, was != 'private')
  sessions = opened(server, 'ann', mine), opened(server, 'ann', mine)
  if was == 'public':
    put(server, 'ann', called, WORDS, False, mine)
  elif was == 'public again':
    # What Ann's sessions go on with is no longer live: only she has it.
    put(server, 'ann', called, ['Another'], False, mine)
    put(server, 'ann', called, ['Another', 'one'], True, mine)
  assert cached(server, 'ann', session=sessions[0]) < 4
  assert cached(server, 'ann', session=sessions[1], text='Hm') > 30
  guesses = [guess(server, called, count, public) for count in GUESSES[:3]]
  guesses.append(guess(server, called, len(WORDS), public))
  assert len(set(guesses)) == 1


def test_guesses_find_nothing_of_a_public_characters_description(server):
  """Others talk to it, and its text is its author's alone.

  Whoever has all of it sends the same prefix, and may know that.
  """
  called = name()
  mine = put(server, 'ann', called, WORDS, True)
  cached(server, 'ann', mine)
  found = [guess(server, called, count, True) for count in GUESSES[:3]]
  assert len(set(found)) == 1


def test_each_private_text_has_a_salt_of_its_own(server):
  """The owner's is not that of readers whose sessions keep the version.

  (The layers here have too small a window for a part of a page to be found.)
  """
  store, called = server.store, name()
  mine = put(server, 'ann', called, WORDS, True)
  opened(server, 'ben', mine)
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
  theirs = opened(server, 'ben', mine)
  put(server, 'ann', name(), WORDS, False, mine)
  for options in {'character': running.CHARACTER}, {'session': theirs}:
    cached(server, 'ben', **options)
    character = options.get('character', mine)
    number = 1
    tokens = server.store.version(character, number).tokens.tolist()
    payload = {'model': running.MODEL, 'prompt': tokens, 'max_tokens': 1}
    answer = server.post('/v1/completions', 'ben', **payload)
    assert answer['usage']['prompt_tokens_details']['cached_tokens'] == 0


def test_a_prompt_of_ones_own_is_found_by_oneself_alone(server):
  prompt = f'{name()} lights the lamp, and nobody else knows where the oil is.'

  def found(owner):
    payload = {'model': running.MODEL, 'prompt': prompt, 'max_tokens': 1}
    answer = server.post('/v1/completions', owner, **payload)
    return answer['usage']['prompt_tokens_details']['cached_tokens']

  assert found('ann') == 0 < found('ann')
  assert found('ben') == 0


def test_ones_own_private_character_is_reused(server):
  called = name()
  mine = put(server, 'ann', called, WORDS)
  length = server.get(f'/v1/characters/{mine}', owner='ann')['tokens']
  assert cached(server, 'ann', mine) < 4
  assert cached(server, 'ann', mine, text='Who is there?') >= length
  again = opened(server, 'ann', mine)
  assert cached(server, 'ann', session=again, text='Hello?') >= length


@pytest.mark.parametrize('whose', ['built in', 'public', 'one that went on'])
def test_public_and_built_in_characters_are_shared_by_all(server, whose):
  if whose == 'built in':
    mine = running.CHARACTER
  else:
    mine = put(server, 'ann', name(), WORDS, True)
  length = server.get(f'/v1/characters/{mine}', owner='ben')['tokens']
  theirs = opened(server, 'ben', mine)
  cached(server, 'ann', mine)
  if whose == 'one that went on':
    # A reader's session keeps the version that was public when it began.
    put(server, 'ann', name(), ['Another'], True, mine)
  assert cached(server, 'ben', session=theirs) >= length
