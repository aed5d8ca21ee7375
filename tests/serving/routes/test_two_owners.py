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
from kaiju_jax.serving.http import auth
from kaiju_jax.serving.replies import saved_points
from kaiju_jax.serving.routing import replica as replica_lib
from kaiju_jax.serving.stores import sharing
from kaiju_jax.serving.stores import sqlite_file
from tests.decoding import fake_device
from tests.decoding import saved_device
from tests.serving import running
from tests.serving import world
from tests.serving.routes import addresses

SECRET = b's' * 32
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

  def points(worker, store):
    tokens = auth.Tokens(tmp_path / auth.FILE)
    return saved_points.SavedPoints(
      worker,
      saved_device.saving_of(worker.engine),
      saved_points.Folder(tmp_path / 'points', SECRET, 2**22),
      most=2**22,
      texts=saved_points.SavedTexts(store, tokens, is_private=True),
      interval_s=3600.0,
    )

  options = {'replicas': request.param} if request.param else {'points': points}
  with running.server(tmp_path, engine=engine, **options) as server:
    yield server
  for one in engines:
    assert fake_device.is_empty(one.decoder)


def chat(server, owner, **body):
  """Returns the tokens of a prompt, and how many of them were cached."""
  body = {'model': running.MODEL, 'max_tokens': 4, 'seed': 0} | body
  usage = server.post('/v1/chat/completions', owner, **body)['usage']
  cached = usage['prompt_tokens_details']['cached_tokens']
  return usage['prompt_tokens'], cached


def say(server, owner, session, text='Good evening. Is the lamp lit?'):
  messages = [{'role': 'user', 'content': text}]
  return chat(server, owner, session=session, messages=messages)


def swipe(server, owner, session):
  return chat(server, owner, session=session, messages=[], swipe=True)


def open_session(server, owner, character):
  found = server.post('/v1/sessions', owner, character=character)
  return found['id']


def publish(server, owner, fields, public, to=None):
  body = {'fields': fields, 'public': public}
  method, path = (
    ('PUT', f'/v1/characters/{to}') if to else ('POST', '/v1/characters')
  )
  return server.ask(method, path, body, owner)['id']


class Ben:
  """An owner who talks, and what he can notice."""

  def __init__(self, server):
    self.server = server
    self.own = [
      publish(server, 'ben', fields, public)
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
        say(server, 'ben', open_session(server, 'ben', character))

  def meet(self, character):
    """Begins a conversation with a character."""
    self.sessions.append(open_session(self.server, 'ben', character))
    say(self.server, 'ben', self.sessions[-1])
    say(self.server, 'ben', self.sessions[-1], 'And then?')

  def leave(self):
    """Removes his latest conversation."""
    self.server.ask(
      'DELETE', f'/v1/sessions/{self.sessions.pop()}', owner='ben'
    )

  def points(self, character):
    version = self.server.store.live('ben', character)
    tree = sharing.find_tree(self.server.store, 'ben', version)
    return {(tree.salt.encode(), b'', tuple(version.tokens.tolist()))}

  def of_engine(self, engine):
    """Returns the points that his texts resume."""
    store = self.server.store
    trees = set()
    for session in store.sessions('ben'):
      version = store.version(session.character, session.version)
      trees.add(sharing.find_tree(store, 'ben', version).salt.encode())
    return {
      (nodes.root(x).salt, x.salt, tuple(nodes.tokens(x).tolist()))
      for x in engine.decoder.account.tree.points()
      if nodes.root(x).salt in trees and x.salt in (b'', b'ben')
    }

  def look(self):
    """Returns what he can see, and what his next prompts will find."""
    server, store = self.server, self.server.store
    found = {
      'listings': [
        server.get(path, owner='ben')
        for path in ('/v1/sessions', '/v1/feedback', '/v1/server')
      ],
      'sessions': [
        server.get(f'/v1/sessions/{one}', owner='ben') for one in self.sessions
      ],
      'own characters': [
        server.get(f'/v1/characters/{one}', owner='ben') for one in self.own
      ],
      'readiness': [server.get(x) for x in ('/readyz', '/healthz')],
      'points': [self.of_engine(x.engine) for x in server.workers],
      'slots': server.context.limits._streams._counts.get('ben', 0),
    }
    if server.context.points is None:
      places = server.context.engines._replicas
      known = replica_lib.Pseudonyms(running.SECRET)
      found['replicas'] = [
        places.affinity.find(replica_lib.number(known.conversation('ben', one)))
        for one in self.sessions
      ]
      return found
    folder = server.context.points._folder
    kept = set()
    for session in store.sessions('ben'):
      version = store.version(session.character, session.version)
      tree = sharing.find_tree(store, 'ben', version)
      group = groups.Name(b'', tree.salt.encode())
      kept |= {
        folder.name(group),
        folder.name(group._replace(owner=b'ben', conversation=session.id)),
      }
    found['files'] = {
      path.name: path.read_bytes()
      for path in folder.list()
      if path.name in kept
    }
    return found

  def ask(self):
    """Returns how many tokens of his next prompts are cached."""
    found = {x: swipe(self.server, 'ben', x) for x in self.sessions}
    for character in self.everybodys:
      messages = [{'role': 'user', 'content': 'Who is there?'}]
      found[character] = chat(
        self.server, 'ben', character=character, messages=messages
      )
    return found


# What Ann does: each is a function of a server and her characters and sessions,
# by the method and the route that it asks.
STEPS = {}


def step(method, path):
  def note(function):
    STEPS.setdefault((method, path), []).append(function)
    return function

  return note


# Those of the built-in character, and of both of Ben's.
CARDS = BUILT_IN, HIDDEN, SHOWN


class Ann:
  """An owner who does things; attributes say what she has."""

  def __init__(self, server, anns):
    self.server, self.anns = server, anns
    self.ask = functools.partial(server.ask, owner='ann')
    self.made = []
    self.sessions = []

  def clear(self):
    """Removes all that is hers."""
    for kind in 'characters', 'sessions':
      for one in self.ask('GET', f'/v1/{kind}')['data']:
        if one.get('own', True):
          self.ask('DELETE', f'/v1/{kind}/{one["id"]}')

  def copy_cards(self):
    """Makes a private and a public character of each text, and talks."""
    for fields, public in itertools.product(CARDS, (False, True)):
      one = publish(self.server, 'ann', fields, public)
      self.made.append(one)
      session = open_session(self.server, 'ann', one)
      self.sessions.append(session)
      say(self.server, 'ann', session)


@step('POST', '/v1/characters')
def make(ann):
  ann.copy_cards()


@step('POST', '/v1/characters')
def import_card(ann):
  for data, kind in (
    (cards.to_json(running.FIELDS), 'application/json'),
    (cards.to_png(running.FIELDS), 'image/png'),
  ):
    if isinstance(data, str):
      data = data.encode()
    one = ann.ask('POST', '/v1/characters', data, kind=kind)['id']
    say(ann.server, 'ann', open_session(ann.server, 'ann', one))
    ann.ask('DELETE', f'/v1/characters/{one}')


@step('PUT', '/v1/characters/{id}')
def edit_hide_and_show(ann):
  ann.copy_cards()
  for one in (*ann.made[::2], ann.anns):
    fields = ann.ask('GET', f'/v1/characters/{one}')['fields']
    for changes, public in (
      ({'tags': ['sea']}, True),
      ({'scenario': 'A storm.'}, False),
      ({}, True),
      ({'scenario': 'A storm.'}, True),
      ({}, False),
    ):
      publish(ann.server, 'ann', fields | changes, public, one)
      say(ann.server, 'ann', open_session(ann.server, 'ann', one))


@step('POST', '/v1/characters/{id}/rollback')
def roll_back(ann):
  ann.copy_cards()
  for one in (*ann.made[1::2], ann.anns):
    fields = ann.ask('GET', f'/v1/characters/{one}')['fields']
    publish(ann.server, 'ann', fields | {'scenario': 'A storm.'}, True, one)
    for number in 1, 2, 1:
      ann.ask('POST', f'/v1/characters/{one}/rollback', {'version': number})
      say(ann.server, 'ann', open_session(ann.server, 'ann', one))


@step('DELETE', '/v1/characters/{id}')
def remove_characters(ann):
  ann.copy_cards()
  for one in (*ann.made, ann.anns):
    ann.ask('DELETE', f'/v1/characters/{one}')
  for session in ann.sessions:
    say(ann.server, 'ann', session)


@step('DELETE', '/v1/characters/{id}')
def remove_characters_that_nobody_talked_to(ann):
  for fields, public in itertools.product(CARDS, (False, True)):
    one = publish(ann.server, 'ann', fields, public)
    ann.ask('DELETE', f'/v1/characters/{one}')


@step('DELETE', '/v1/sessions/{id}')
def remove_sessions(ann):
  """Before their characters, and after them."""
  ann.copy_cards()
  with_ann = open_session(ann.server, 'ann', ann.anns)
  built_in = open_session(ann.server, 'ann', running.CHARACTER)
  for session in with_ann, built_in:
    say(ann.server, 'ann', session)
  for one, session in zip(ann.made[::2], ann.sessions[::2]):
    ann.ask('DELETE', f'/v1/sessions/{session}')
    ann.ask('DELETE', f'/v1/characters/{one}')
  for one in (*ann.made[1::2], ann.anns):
    ann.ask('DELETE', f'/v1/characters/{one}')
  for session in (*ann.sessions[1::2], with_ann, built_in):
    ann.ask('DELETE', f'/v1/sessions/{session}')


@step('POST', '/v1/sessions')
def open_sessions(ann):
  for one in running.CHARACTER, ann.anns:
    open_session(ann.server, 'ann', one)


@step('POST', '/v1/sessions/{id}/messages')
@step('POST', '/v1/sessions/{id}/messages/{message:int}/rating')
@step('PUT', '/v1/sessions/{id}/head')
@step('POST', '/v1/chat/completions')
def talk_edit_rate_and_go_back(ann):
  for one in running.CHARACTER, ann.anns:
    path = f'/v1/sessions/{open_session(ann.server, "ann", one)}'
    session = path.rpartition('/')[2]
    said = {'parent': 0, 'role': 'user', 'text': 'Good evening.'}
    head = ann.ask('POST', f'{path}/messages', said)['head']
    swipe(ann.server, 'ann', session)
    swipe(ann.server, 'ann', session)
    messages = ann.ask('GET', path)['messages']
    reply = messages[-1]['id']
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
  store = ann.server.store
  tokens = store.version(running.CHARACTER, 1).tokens.tolist()
  body = {'model': running.MODEL, 'prompt': tokens, 'max_tokens': 3}
  ann.ask('POST', '/v1/completions', body)


@step('POST', '/tokenize')
@step('POST', '/detokenize')
def encode_and_decode(ann):
  tokens = ann.ask('POST', '/tokenize', {'prompt': 'Hello'})['tokens']
  ann.ask('POST', '/detokenize', {'tokens': tokens})


@step('POST', '/v1/key')
def keep_the_key(ann):
  ann.ask('POST', '/v1/key', {})


def ask_for_everything(ann):
  """GETs every route; its parameters name what is hers."""
  session = open_session(ann.server, 'ann', ann.anns)
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
    ann = Ann(server, publish(server, 'ann', ANNS, True))
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
      assert set(before['files']) <= set(ben.look()['files']), act.__name__
    ben.leave()
