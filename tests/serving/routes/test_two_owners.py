"""Whatever one owner does to what is theirs, another one notices nothing.

Ann does all that the routes of the application let her do, to copies of what
Ben talks to, among others. After each step Ben's prompts find as much in the
cache as before, and his files, conversations and listings are as they were.
"""

import functools
import itertools

import pytest

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.characters.cards import cards
from kaiju_jax.decoding.pages import groups
from kaiju_jax.decoding.pages import nodes
from kaiju_jax.serving.routing import replica as replica_lib
from kaiju_jax.serving.stores import sharing
from kaiju_jax.serving.stores import sqlite_file
from tests.decoding import fake_device
from tests.serving import running
from tests.serving import world
from tests.serving.routes import addresses
from tests.serving.routes import saving

BUILT_IN = card_fields.dump(running.FIELDS)
HIDDEN, SHOWN, ANNS = (
  {'name': name, 'description': 'Paints boats.', 'greeting': 'Hm?'}
  for name in ('Nell', 'Otto', 'Pia')
)


@pytest.fixture(params=[0, 2], ids=['one engine', 'behind a router'])
def server(request, tmp_path, monkeypatch):
  monkeypatch.setattr(sqlite_file, 'SYNCHRONOUS', 'OFF')  # Nothing crashes.
  engines = []

  def engine(tokenizer):
    engines.append(world.Engine(tokenizer, length=running.LENGTH, pages=9000))
    return engines[-1]

  options = {'points': saving.points(tmp_path)}
  if request.param:
    options = {'replicas': request.param}
  with running.server(tmp_path, engine=engine, **options) as server:
    yield server
  for one in engines:
    assert fake_device.is_empty(one.decoder)


def chat(server, owner, text, **body):
  """Returns the tokens of a prompt, and how many of them were cached."""
  answer = server.chat(text, owner, **{'max_tokens': 4, 'seed': 0} | body)
  return answer['usage']['prompt_tokens'], running.cached(answer)


def say(server, owner, session, text='Good evening. Is the lamp lit?'):
  return chat(server, owner, text, session=session)


def swipe(server, owner, session):
  return chat(server, owner, None, session=session, swipe=True)


class Ben:
  """An owner who talks, and what he can notice."""

  def __init__(self, server):
    self.server = server
    self.own = [
      server.publish(fields, 'ben', public)['id']
      for fields, public in ((HIDDEN, False), (SHOWN, True))
    ]
    self.everybodys = [running.CHARACTER, self.own[1]]
    self.sessions = []
    for character in (running.CHARACTER, *self.own):
      self.meet(character)
    # Every replica has the prefixes, wherever a new session goes.
    for character in self.everybodys:
      while not all(
        self.points(character) & self.of_engine(one.engine)
        for one in server.workers
      ):
        say(server, 'ben', server.open_session('ben', character))

  def meet(self, character):
    """Begins a conversation with a character."""
    self.sessions.append(self.server.open_session('ben', character))
    say(self.server, 'ben', self.sessions[-1])
    say(self.server, 'ben', self.sessions[-1], 'And then?')

  def leave(self):
    """Removes his latest conversation."""
    self.server.ask(
      'DELETE', f'/v1/sessions/{self.sessions.pop()}', owner='ben'
    )

  def tree(self, version):
    return sharing.find_tree(self.server.store, 'ben', version).salt.encode()

  def trees(self):
    """Returns the trees of his conversations, by their ids."""
    store = self.server.store
    return {
      one.id: self.tree(store.version(one.character, one.version))
      for one in store.sessions('ben')
    }

  def points(self, character):
    version = self.server.store.live('ben', character)
    return {(self.tree(version), b'', tuple(version.tokens.tolist()))}

  def of_engine(self, engine):
    """Returns the points that his texts resume."""
    trees = self.trees().values()
    return {
      (nodes.root(x).salt, x.salt, tuple(nodes.tokens(x).tolist()))
      for x in engine.decoder.account.tree.points()
      if nodes.root(x).salt in trees and x.salt in (b'', b'ben')
    }

  def files(self):
    """Returns what is saved of his texts."""
    folder = self.server.context.points._folder
    kept = set()
    for session, tree in self.trees().items():
      group = groups.Name(b'', tree)
      mine = group._replace(owner=b'ben', conversation=session)
      kept |= {folder.name(group), folder.name(mine)}
    paths = [path for path in folder.list() if path.name in kept]
    return {path.name: path.read_bytes() for path in paths}

  def replicas(self):
    """Returns where his conversations run."""
    affinity = self.server.context.engines._replicas.affinity
    known = replica_lib.Pseudonyms(running.SECRET)
    names = [known.conversation('ben', one) for one in self.sessions]
    return [affinity.find(replica_lib.number(name)) for name in names]

  def look(self):
    """Returns what he can see, and what his next prompts will find."""
    server = self.server
    paths = (
      *('/v1/sessions', '/v1/feedback', '/v1/server', '/readyz', '/healthz'),
      *(f'/v1/sessions/{one}' for one in self.sessions),
      *(f'/v1/characters/{one}' for one in self.own),
    )
    found = {path: server.get(path, owner='ben') for path in paths}
    found |= {
      'points': [self.of_engine(x.engine) for x in server.workers],
      'slots': server.context.limits._streams._counts.get('ben', 0),
    }
    if server.context.points is None:
      return found | {'replicas': self.replicas()}
    return found | {'files': self.files()}

  def ask(self):
    """Returns how many tokens of his next prompts are cached."""
    found = {x: swipe(self.server, 'ben', x) for x in self.sessions}
    for character in self.everybodys:
      found[character] = chat(
        self.server, 'ben', 'Who is there?', character=character
      )
    return found


# What Ann does: each is a function of what she has, by the method and the route
# that it asks.
STEPS = {}
# Of the built-in character, and of both of Ben's.
CARDS = BUILT_IN, HIDDEN, SHOWN
STORM = {'scenario': 'A storm.'}


def step(method, path):
  def note(function):
    STEPS.setdefault((method, path), []).append(function)
    return function

  return note


class Ann:
  """An owner who does things; attributes say what she has."""

  def __init__(self, server, anns):
    self.server, self.anns = server, anns
    self.ask = functools.partial(server.ask, owner='ann')
    self.made, self.sessions = [], []

  def clear(self):
    """Removes all that is hers."""
    for kind in 'characters', 'sessions':
      for one in self.ask('GET', f'/v1/{kind}')['data']:
        if one.get('own', True):
          self.remove(kind, one['id'])

  def remove(self, kind, *names):
    for name in names:
      self.ask('DELETE', f'/v1/{kind}/{name}')

  def publish(self, fields, public=True, to=None):
    return self.server.publish(fields, 'ann', public, to)['id']

  def talk(self, character):
    """Returns a new conversation, in which she has said something."""
    session = self.server.open_session('ann', character)
    say(self.server, 'ann', session)
    return session

  def copy_cards(self):
    """Makes a private and a public character of each text, and talks."""
    for fields, public in itertools.product(CARDS, (False, True)):
      self.made.append(self.publish(fields, public))
      self.sessions.append(self.talk(self.made[-1]))

  def fields(self, character):
    return self.ask('GET', f'/v1/characters/{character}')['fields']


@step('POST', '/v1/characters')
def make_and_import(ann):
  ann.copy_cards()
  for data, kind in (
    (cards.to_json(running.FIELDS), 'application/json'),
    (cards.to_png(running.FIELDS), 'image/png'),
  ):
    one = ann.ask('POST', '/v1/characters', data, kind=kind)['id']
    ann.talk(one)
    ann.remove('characters', one)


@step('PUT', '/v1/characters/{id}')
def edit_hide_and_show(ann):
  ann.copy_cards()
  for one in (*ann.made[::2], ann.anns):
    fields = ann.fields(one)
    for changes, public in (
      ({'tags': ['sea']}, True),
      (STORM, False),
      ({}, True),
      (STORM, True),
      ({}, False),
    ):
      ann.publish(fields | changes, public, one)
      ann.talk(one)


@step('POST', '/v1/characters/{id}/rollback')
def roll_back(ann):
  ann.copy_cards()
  for one in (*ann.made[1::2], ann.anns):
    ann.publish(ann.fields(one) | STORM, True, one)
    for number in 1, 2, 1:
      ann.ask('POST', f'/v1/characters/{one}/rollback', {'version': number})
      ann.talk(one)


@step('DELETE', '/v1/characters/{id}')
def remove_characters(ann):
  ann.copy_cards()
  ann.remove('characters', *ann.made, ann.anns)
  for session in ann.sessions:
    say(ann.server, 'ann', session)


@step('DELETE', '/v1/characters/{id}')
def remove_characters_that_nobody_talked_to(ann):
  for fields, public in itertools.product(CARDS, (False, True)):
    ann.remove('characters', ann.publish(fields, public))


@step('DELETE', '/v1/sessions/{id}')
def remove_sessions(ann):
  """Before their characters, and after them."""
  ann.copy_cards()
  others = ann.talk(ann.anns), ann.talk(running.CHARACTER)
  for one, session in zip(ann.made[::2], ann.sessions[::2]):
    ann.remove('sessions', session)
    ann.remove('characters', one)
  ann.remove('characters', *ann.made[1::2], ann.anns)
  ann.remove('sessions', *ann.sessions[1::2], *others)


@step('POST', '/v1/sessions')
def open_sessions(ann):
  for one in running.CHARACTER, ann.anns:
    ann.server.open_session('ann', one)


@step('POST', '/v1/sessions/{id}/messages')
@step('POST', '/v1/sessions/{id}/messages/{message:int}/rating')
@step('PUT', '/v1/sessions/{id}/head')
@step('POST', '/v1/chat/completions')
def talk_edit_rate_and_go_back(ann):
  for one in running.CHARACTER, ann.anns:
    session = ann.server.open_session('ann', one)
    path = f'/v1/sessions/{session}'
    said = {'parent': 0, 'role': 'user', 'text': 'Good evening.'}
    head = ann.ask('POST', f'{path}/messages', said)['head']
    for _ in range(2):
      swipe(ann.server, 'ann', session)
    reply = ann.ask('GET', path)['messages'][-1]['id']
    for rating in 'good', None:
      rated = f'{path}/messages/{reply}/rating'
      ann.ask('POST', rated, {'rating': rating})
    ann.ask('PUT', f'{path}/head', {'message': head})
    say(ann.server, 'ann', session)


@step('PUT', '/v1/feedback')
def agree_and_withdraw(ann):
  for agrees in True, False:
    ann.ask('PUT', '/v1/feedback', {'agrees': agrees})


@step('POST', '/v1/completions')
def continue_text(ann):
  tokens = ann.server.store.version(running.CHARACTER, 1).tokens.tolist()
  ann.server.complete(tokens, max_tokens=3)


@step('POST', '/tokenize')
@step('POST', '/detokenize')
@step('POST', '/v1/key')
def encode_decode_and_keep_the_key(ann):
  tokens = ann.ask('POST', '/tokenize', {'prompt': 'Hello'})['tokens']
  ann.ask('POST', '/detokenize', {'tokens': tokens})
  ann.ask('POST', '/v1/key', {})


def ask_for_everything(ann):
  """GETs every route; its parameters name what is hers."""
  session = ann.server.open_session('ann', ann.anns)
  for method, path in addresses.routes(ann.server):
    if method == 'GET':
      what = ann.anns if 'characters' in path else session
      what = running.MODEL if 'models' in path else what
      ann.ask('GET', path.replace('{id}', what).replace('{id:path}', what))


def test_nothing_that_ann_does_changes_what_ben_finds(server):
  known = {(x, y) for x, y in addresses.routes(server) if x != 'GET'}
  assert known == set(STEPS), 'each route that changes anything needs a step'
  steps = dict.fromkeys(itertools.chain([ask_for_everything], *STEPS.values()))
  ben = Ben(server)
  for act in steps:
    ann = Ann(server, server.publish(ANNS, public=True)['id'])
    ben.meet(ann.anns)
    ben.ask()
    asked = ben.ask()
    assert all(cached > 40 for _, cached in asked.values()), asked
    if server.context.points is not None:
      server.context.points.save()
    before = ben.look()
    act(ann)
    ann.clear()
    after = ben.look()
    for what, found in before.items():
      if what == 'points':  # Ann's requests may add prefixes that both share.
        assert all(x <= y for x, y in zip(found, after[what])), act.__name__
      else:
        assert after[what] == found, (act.__name__, what)
    assert ben.ask() == asked, act.__name__
    if server.context.points is not None:
      server.context.points.save()
      assert set(before['files']) <= set(ben.files()), act.__name__
    ben.leave()
