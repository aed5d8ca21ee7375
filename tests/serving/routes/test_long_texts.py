"""Texts of strangers: bounded before they are encoded, and after they grow."""

import asyncio
import contextlib
import json
import threading
import types
import urllib.error

import pytest

from kaiju_jax.characters.prompts import macros
from kaiju_jax.serving.http import limits
from kaiju_jax.serving.routes import characters as character_routes
from kaiju_jax.serving.routes import store as store_lib
from kaiju_jax.storage import strict_json
from tests.serving import leftovers
from tests.serving import running
from tests.serving.routes import addresses

# Bytes that the toy's 1,024 tokens stand for, at most.
ROOM = running.LENGTH * running.Letters.longest
MEGABYTE = 2**20 - 2**10
NAME = 'é' * 200
SHORT = 16  # Texts that are encoded in the event loop here.
# Routes that take a body and do not read it.
BODILESS = ('/v1/key',)
CHAT, TEXT = '/v1/chat/completions', '/v1/completions'


class Counting(running.Letters):
  """Remembers the bytes and the threads of what it encoded."""

  def __init__(self):
    self.sizes, self.threads = [0], set()

  def encode(self, text):
    self.sizes.append(len(text.encode()))
    if len(text) > SHORT:
      self.threads.add(threading.current_thread().name)
    return super().encode(text)


@pytest.fixture(scope='module')
def server(tmp_path_factory):
  tokenizer = Counting()
  folder = tmp_path_factory.mktemp('server')
  with running.server(folder, tokenizer=tokenizer) as server:
    server.tokenizer = tokenizer
    yield server


@pytest.fixture(scope='module')
def named(server):
  """A character of a long name, and a session with it."""
  made = server.post(
    '/v1/characters', 'ann', fields={'name': NAME, 'greeting': 'Hm?'}
  )
  session = server.post('/v1/sessions', 'ann', character=made['id'])
  return made['id'], session['id']


@contextlib.contextmanager
def bounded(server, most=ROOM):
  """Checks that no more than a bound is encoded meanwhile, nor in the loop."""
  server.tokenizer.sizes[:] = [0]
  server.tokenizer.threads.clear()
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(server.context.texts, 'short', SHORT)
    yield
  assert sum(server.tokenizer.sizes) <= most
  assert all('text' in name for name in server.tokenizer.threads)


def said(*texts, role='user'):
  return [{'role': role, 'content': text} for text in texts]


@pytest.mark.parametrize(
  'text', ['a ' * (MEGABYTE // 2), '{{char}}' * (MEGABYTE // 8)]
)
def test_a_chat_that_cannot_fit_is_not_encoded(server, named, text):
  character, session = named
  for body in (
    {'messages': said(text)},
    {'messages': said(*[text[: MEGABYTE // 40]] * 30)},
    {'messages': said(*(f'{n} {text[:400]}' for n in range(1000)))},
    {'messages': said(text, role='system') + said('Hm?')},
    {'messages': said(text), 'character': character},
    {'messages': said(text), 'session': session},
  ):
    with bounded(server):
      status, error = server.refused(
        'POST', CHAT, {'model': running.MODEL} | body, 'ann'
      )
    assert status == 400 and error['param'] == 'messages'
    assert error['code'] == 'context_length_exceeded'


def test_only_short_texts_are_worked_on_in_the_event_loop(server):
  async def threads():
    texts = server.context.texts
    for size in (0, texts.short, texts.short + 1, 2**30):
      yield await texts.run(threading.current_thread, size)

  async def names():
    here = threading.current_thread()
    return ['' if x is here else x.name async for x in threads()]

  found = [name.partition('_')[0] for name in asyncio.run(names())]
  assert found == ['', '', 'text', 'text']


class Stuck(threading.Thread):
  """Requests of one owner; `ask` runs until the block ends."""

  def __init__(self, ask):
    super().__init__(daemon=True)
    self.ask = ask
    self.start()

  def run(self):
    with contextlib.suppress(urllib.error.HTTPError):
      self.ask()


def test_nobody_waits_for_another_owners_texts(server, named, monkeypatch):
  """All ways in which a text is read, of one owner whose texts never end."""
  monkeypatch.setattr(server.context.texts, 'short', SHORT)
  session = server.post('/v1/sessions', 'ann', character=named[0])['id']
  text, ends, begun = 'slow ' * 10, threading.Event(), []
  encode, strip = server.tokenizer.encode, store_lib.strip

  def wait(read):
    def waiting(*given):
      if any('slow' in one for one in given if isinstance(one, str)):
        begun.append(given)
        assert ends.wait(60)
      return read(*given)

    return waiting

  monkeypatch.setattr(server.tokenizer, 'encode', wait(encode))
  monkeypatch.setattr(store_lib, 'strip', wait(strip))
  fields = {'fields': {'name': 'A', 'description': text}}
  asked = [
    (CHAT, {'model': running.MODEL, 'messages': said(text), 'max_tokens': 1}),
    (TEXT, {'model': running.MODEL, 'prompt': text, 'max_tokens': 1}),
    ('/tokenize', {'prompt': text}),
    ('/v1/characters', fields),
    (
      f'/v1/sessions/{session}/messages',
      {'parent': 0, 'role': 'user', 'text': text},
    ),
  ]
  slow = [
    Stuck(lambda path=path, body=body: server.post(path, 'ann', **body))
    for path, body in asked * 3
  ]
  try:
    assert not leftovers.within(30, lambda: {} if begun else {'begun': 0})
    for path, body in (
      (CHAT, {'model': running.MODEL, 'messages': said('of ben ' * 9)}),
      (TEXT, {'model': running.MODEL, 'prompt': 'of ben ' * 9}),
      ('/tokenize', {'prompt': 'of ben ' * 9}),
      ('/v1/characters', {'fields': {'name': 'B', 'description': 'b' * 99}}),
    ):
      server.post(path, 'ben', **body)
    assert len(begun) == 1 and server.get('/readyz') == b'ready\n'
  finally:
    ends.set()
    for one in slow:
      one.join(60)
  assert len(begun) > len(asked)


def test_a_text_that_grows_is_refused_by_name(server, named, monkeypatch):
  _, session = named
  built = []

  def counted(expansion, text):
    found = original(expansion, text)
    built.append(len(text.encode()))
    return found

  original = macros._Expansion._count
  monkeypatch.setattr(macros._Expansion, '_count', counted)
  grows = '{{char}}' * 5000
  fields = {'name': NAME, 'description': 'x'}
  lore = {'keys': ['a'], 'content': grows}
  for path, body, param, words in (
    (CHAT, {'messages': said(grows), 'session': session}, 'messages', 'macros'),
    (
      f'/v1/sessions/{session}/messages',
      {'parent': 0, 'role': 'user', 'text': grows},
      'text',
      'macros',
    ),
    *(
      ('/v1/characters', {'fields': fields | changed}, name, words)
      for changed, name, words in (
        ({'description': grows[:800]}, 'fields', 'more bytes with its macros'),
        ({'description': grows}, 'fields', 'the text has 40,000 bytes'),
        ({'greeting': grows}, 'greeting', 'greeting: the text has more'),
        (
          {'alternate_greetings': ['a', grows]},
          'alternate_greetings[1]',
          'alternate_greetings[1]: the text has more',
        ),
        ({'lore': [lore]}, 'fields', 'lore[0].content: the text has more'),
        (
          {'lore': [lore | {'is_constant': True}]},
          'fields',
          'lore[0].content: the text has more',
        ),
      )
    ),
  ):
    built.clear()
    if path == CHAT:
      body = {'model': running.MODEL} | body
    with bounded(server, ROOM):
      status, error = server.refused('POST', path, body, 'ann')
    assert (status, error['param']) == (400, param), error
    assert words in error['message']
    assert error['code'] == 'context_length_exceeded'
    assert sum(built) <= macros.MOST


@pytest.mark.parametrize(
  'prompt',
  [
    'a ' * (MEGABYTE // 2),
    ['a', 'b' * ROOM],
    ['b' * 2000],
    [97] * (MEGABYTE // 5),
    [[97], [97] * 2000],
  ],
)
def test_a_prompt_that_cannot_fit_is_not_encoded(server, prompt):
  with bounded(server):
    status, error = server.refused(
      'POST', TEXT, {'model': running.MODEL, 'prompt': prompt}, 'ann'
    )
  assert (status, error['code']) == (400, 'context_length_exceeded')
  assert error['param'] == 'prompt'


def test_other_long_texts_are_refused_by_name(server, named):
  character, session = named
  text = 'a' * MEGABYTE
  for path, body, param in (
    ('/v1/sessions', {'character': character, 'title': text}, 'title'),
    (
      f'/v1/sessions/{session}/messages',
      {'parent': 0, 'role': 'assistant', 'text': text},
      'text',
    ),
    ('/v1/characters', {'fields': {'name': text}}, 'fields'),
    ('/v1/characters', {'fields': {'name': 'A', 'greeting': text}}, 'fields'),
  ):
    with bounded(server):
      status, error = server.refused('POST', path, body, 'ann')
    assert (status, error['param']) == (400, param), error


@pytest.mark.parametrize(
  'path, wrong',
  [
    (TEXT, {'prompt': [1] * 200_000 + ['a']}),
    (TEXT, {'prompt': [[1]] * 200_000}),
    (TEXT, {'prompt': [{}] * 200_000}),
    (CHAT, {'messages': [{}] * 200_000}),
    (CHAT, {'messages': said([{}] * 200_000)}),
    (CHAT, {'messages': [{f'{n}': 1 for n in range(50_000)}]}),
    (CHAT, {f'{n}': 1 for n in range(50_000)}),
    (CHAT, {'messages': said('a'), 'stop': [1] * 200_000}),
    (CHAT, {'messages': said('a'), 'modalities': [1] * 200_000}),
    (
      CHAT,
      {'messages': said('a'), 'metadata': {str(n): 1 for n in range(50_000)}},
    ),
    (CHAT, {'messages': said('a'), 'tools': [1] * 200_000}),
  ],
)
def test_the_first_fault_of_many_is_enough(server, path, wrong):
  # A check that went on would make a message for each.
  status, error = server.refused(
    'POST', path, {'model': running.MODEL} | wrong, 'ann'
  )
  assert status == 400 and len(error['message']) < 200


@pytest.mark.parametrize('piece', [b'1,' * 300_000, b'[],' * 100_000])
def test_no_route_takes_a_body_of_many_values(server, named, piece):
  """Every route that takes a body counts its values before it parses them."""
  character, session = named
  body = b'{"fields":[' + piece + b'1]}'
  routes = [
    (method, path.replace('{message:int}', '1'))
    for method, path in addresses.routes(server)
    if method in ('POST', 'PUT', 'PATCH') and path not in BODILESS
  ]
  assert len(routes) >= 12
  parsed = []
  reads = types.SimpleNamespace(**vars(json) | {'loads': parsed.append})
  for method, path in routes:
    name = session if 'sessions' in path else character
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(strict_json, 'json', reads)
      status, error = server.refused(
        method, path.replace('{id}', name), body, 'ann'
      )
    assert (status, not parsed) == (400, True), (path, error)


def test_listings_end_after_so_much_text(server, monkeypatch):
  monkeypatch.setattr(character_routes, '_PAGE_SIZE', 5_000)
  names = [
    server.post(
      '/v1/characters',
      'ben',
      fields={'name': f'C{n}', 'description': 'x' * 300},
    )['id']
    for n in range(30)
  ]
  for n in range(29):
    fields = {'name': f'C{n}', 'description': 'y' * 300}
    server.ask('PUT', f'/v1/characters/{names[0]}', {'fields': fields}, 'ben')

  def pages(path, name):
    after, sizes = None, []
    while True:
      query = '' if after is None else f'?{name}={after}'
      page = server.get(path + query, owner='ben')
      sizes.append(len(json.dumps(page)))
      yield from page['data']
      after = page[name]
      if not page['has_more']:
        assert max(sizes) < 15_000 and len(sizes) >= 3
        return

  found = [one['id'] for one in pages('/v1/characters', 'after')]
  assert len(set(found)) == len(found) and set(names) <= set(found)
  path = f'/v1/characters/{names[0]}/versions'
  numbers = [one['version'] for one in pages(path, 'before')]
  assert numbers == list(range(30, 0, -1))


def test_an_owner_has_so_much_text_per_minute(server, monkeypatch):
  monkeypatch.setattr(limits, '_BYTES', 1)
  text = {'model': running.MODEL, 'prompt': 'a' * 500, 'max_tokens': 1}
  monkeypatch.setattr(server.context, 'limits', limits.Limits())
  for _ in range(3):  # Of 1,500 bytes at once.
    server.post(TEXT, 'ben', **text)
  with bounded(server, 0), pytest.raises(urllib.error.HTTPError) as caught:
    server.post(TEXT, 'ben', **text)
  assert caught.value.code == 429 and int(caught.value.headers['Retry-After'])
  assert 'bytes of requests per minute' in caught.value.read().decode()
  server.post(TEXT, 'ann', **text)


def test_what_fits_is_still_answered(server, named):
  _, session = named
  with bounded(server):
    made = server.post(
      CHAT,
      'ann',
      model=running.MODEL,
      session=session,
      max_tokens=4,
      seed=1,
      messages=said('Hello, {{char}}.'),
    )
    assert made['choices'][0]['finish_reason'] == 'length'
    found = server.get(f'/v1/sessions/{session}', owner='ann')
    assert found['messages'][1]['text'] == f'Hello, {NAME}.'
    payload = {'model': running.MODEL, 'max_tokens': 1}
    server.post(CHAT, 'ann', messages=said('Good evening, all.'), **payload)


def test_prompts_are_counted_wherever_they_are_made(server, named, monkeypatch):
  character, session = named
  counted = []
  monkeypatch.setattr(
    server.context.limits,
    'prompt',
    lambda owner, tokens, rate: counted.append((owner, tokens)),
  )
  payload = {'model': running.MODEL, 'max_tokens': 1}
  for path, body in (
    (TEXT, {'prompt': ['a', 'bb']} | payload),
    (CHAT, {'messages': said('Hm?'), 'character': character} | payload),
    (CHAT, {'messages': said('Hm?'), 'session': session} | payload),
    ('/v1/characters', {'fields': {'name': 'A'}}),
  ):
    counted.clear()
    made = server.post(path, 'ann', **body)
    tokens = made['usage']['prompt_tokens'] if 'usage' in made else None
    assert counted == [('ann', tokens or made['tokens'])]
