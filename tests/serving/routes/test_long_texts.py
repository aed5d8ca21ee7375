"""Texts of strangers: bounded before they are encoded, and after they grow."""

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

CHAT, TEXT, CARDS = running.CHAT, running.TEXT, running.CARDS
SESSIONS = running.SESSIONS
EDITS = f'{SESSIONS}/SESSION/messages'
# Bytes that the toy's 1,024 tokens stand for, at most.
ROOM = running.LENGTH * running.Letters.longest
MEGABYTE = 2**20 - 2**10
NAME = 'é' * 200
SHORT = 16  # Texts that are encoded in the event loop here.
TOO_LONG = 'context_length_exceeded'


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
  made = server.publish({'name': NAME, 'greeting': 'Hm?'})
  return made['id'], server.open_session(character=made['id'])


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


def refused(server, named, path, body, method='POST'):
  """Returns the error of a request that names what `named` has."""
  character, session = named
  if isinstance(body, dict):
    places = {'character': character, 'session': session}
    body = body | {x: y for x, y in places.items() if body.get(x) == x}
  with bounded(server):
    path = path.replace('SESSION', session)
    status, error = server.refused(method, path, body, 'ann')
  assert status == 400, error
  return error


def card(**fields):
  return CARDS, {'fields': {'name': 'A'} | fields}


def edit(text, role='user'):
  return EDITS, {'parent': 0, 'role': role, 'text': text}


WIDE, GROWS = 'a ' * (MEGABYTE // 2), '{{char}}' * (MEGABYTE // 8)


@pytest.mark.parametrize('text', [WIDE, GROWS], ids=['plain', 'macros'])
def test_a_chat_that_cannot_fit_is_not_encoded(server, named, text):
  said = running.said
  for messages, more in (
    (said(text), {}),
    (said(*[text[: MEGABYTE // 40]] * 30), {}),
    (said(*(f'{n} {text[:400]}' for n in range(1000))), {}),
    (said(text, role='system') + said('Hm?'), {}),
    (said(text), {'character': 'character'}),
    (said(text), {'session': 'session'}),
  ):
    error = refused(server, named, CHAT, running.chat(messages, **more))
    assert (error['param'], error['code']) == ('messages', TOO_LONG)


@pytest.mark.parametrize(
  'prompt',
  [
    WIDE,
    ['a', 'b' * ROOM],
    ['b' * 2000],
    [97] * (MEGABYTE // 5),
    [[97], [97] * 2000],
  ],
  ids=['text', 'second', 'one', 'tokens', 'second of tokens'],
)
def test_a_prompt_that_cannot_fit_is_not_encoded(server, named, prompt):
  error = refused(server, named, TEXT, running.complete(prompt))
  assert (error['param'], error['code']) == ('prompt', TOO_LONG)


MACROS = '{{char}}' * 5000
LORE = {'keys': ['a'], 'content': MACROS}


@pytest.mark.parametrize(
  'path, body, param, place',
  [
    (CHAT, running.chat(MACROS, session='session'), 'messages', ''),
    (*edit(MACROS), 'text', ''),
    (*card(name=NAME, description=MACROS[:800]), 'fields', ''),
    (*card(name=NAME, description=MACROS), 'fields', ''),
    (*card(name=NAME, greeting=MACROS), 'greeting', 'greeting: '),
    (
      *card(name=NAME, alternate_greetings=['a', MACROS]),
      'alternate_greetings[1]',
      'alternate_greetings[1]: ',
    ),
    (*card(name=NAME, lore=[LORE]), 'fields', 'lore[0].content: '),
    (
      *card(name=NAME, lore=[LORE | {'is_constant': True}]),
      'fields',
      'lore[0].content: ',
    ),
  ],
)
def test_a_text_that_grows_is_refused_by_name(
  server, named, monkeypatch, path, body, param, place
):
  built = []

  def counted(expansion, text):
    found = original(expansion, text)
    built.append(len(text.encode()))
    return found

  original = macros._Expansion._count
  monkeypatch.setattr(macros._Expansion, '_count', counted)
  error = refused(server, named, path, body)
  assert (error['param'], error['code']) == (param, TOO_LONG)
  assert place in error['message']
  assert sum(built) <= macros.MOST


def test_other_long_texts_are_refused_by_name(server, named):
  text = 'a' * MEGABYTE
  for path, body, param in (
    (SESSIONS, {'character': 'character', 'title': text}, 'title'),
    (*edit(text, 'assistant'), 'text'),
    (*card(name=text), 'fields'),
    (*card(greeting=text), 'fields'),
  ):
    assert refused(server, named, path, body)['param'] == param


KEYS = {f'{n}': 1 for n in range(50_000)}


@pytest.mark.parametrize(
  'path, wrong',
  [
    (TEXT, {'prompt': [1] * 200_000 + ['a']}),
    (TEXT, {'prompt': [[1]] * 200_000}),
    (TEXT, {'prompt': [{}] * 200_000}),
    (CHAT, {'messages': [{}] * 200_000}),
    (CHAT, {'messages': running.said([{}] * 200_000)}),
    (CHAT, {'messages': [KEYS]}),
    (CHAT, KEYS),
    (CHAT, running.chat(stop=[1] * 200_000)),
    (CHAT, running.chat(modalities=[1] * 200_000)),
    (CHAT, running.chat(metadata=KEYS)),
    (CHAT, running.chat(tools=[1] * 200_000)),
  ],
)
def test_the_first_fault_of_many_is_enough(server, named, path, wrong):
  # A check that went on would make a message for each.
  error = refused(server, named, path, {'model': running.MODEL} | wrong)
  assert len(error['message']) < 200


@pytest.mark.parametrize('piece', [b'1,' * 300_000, b'[],' * 100_000])
def test_no_route_takes_a_body_of_many_values(
  server, named, monkeypatch, piece
):
  """Every route that takes a body counts its values before it parses them."""
  character, session = named
  body = b'{"fields":[' + piece + b'1]}'
  routes = [
    (method, path.replace('{message:int}', '1'))
    for method, path in addresses.routes(server)
    if method in ('POST', 'PUT', 'PATCH') and path != '/v1/key'
  ]
  assert len(routes) >= 12
  parsed = []
  for method, path in routes:
    name = session if 'sessions' in path else character
    reads = types.SimpleNamespace(**vars(json) | {'loads': parsed.append})
    with monkeypatch.context() as patch:
      patch.setattr(strict_json, 'json', reads)
      refused(server, named, path.replace('{id}', name), body, method)
  assert not parsed


async def test_only_short_texts_are_worked_on_in_the_event_loop(server):
  texts, here = server.context.texts, threading.current_thread()
  sizes = 0, texts.short, texts.short + 1, 2**30
  ran = [await texts.run(threading.current_thread, size) for size in sizes]
  assert ['' if x is here else x.name.partition('_')[0] for x in ran] == [
    '',
    '',
    'text',
    'text',
  ]


def post_quietly(*arguments, **body):
  """Asks for what may be refused."""
  server, *arguments = arguments
  with contextlib.suppress(urllib.error.HTTPError):
    server.post(*arguments, **body)


def test_nobody_waits_for_another_owners_texts(server, named, monkeypatch):
  """All ways in which a text is read, of one owner whose texts never end."""
  monkeypatch.setattr(server.context.texts, 'short', SHORT)
  text, ends, begun = 'slow ' * 10, threading.Event(), []

  def wait(read):
    def waiting(*given):
      if any('slow' in one for one in given if isinstance(one, str)):
        begun.append(given)
        assert ends.wait(60)
      return read(*given)

    return waiting

  for target, name in (server.tokenizer, 'encode'), (store_lib, 'strip'):
    monkeypatch.setattr(target, name, wait(getattr(target, name)))

  def asked(text):
    return [
      (CHAT, running.chat(text, max_tokens=1)),
      (TEXT, running.complete(text, max_tokens=1)),
      ('/tokenize', {'prompt': text}),
      card(description=text),
    ]

  path, body = edit(text)
  slow = [*asked(text), (path.replace('SESSION', named[1]), body)]
  threads = [
    threading.Thread(
      target=post_quietly, args=(server, path, 'ann'), kwargs=body
    )
    for path, body in slow * 3
  ]
  for thread in threads:
    thread.start()
  try:
    assert not leftovers.within(30, lambda: {} if begun else {'begun': 0})
    for path, body in asked('of ben ' * 9):
      server.post(path, 'ben', **body)
    assert len(begun) == 1 and server.get('/readyz') == b'ready\n'
  finally:
    ends.set()
    for thread in threads:
      thread.join(60)
  assert len(begun) > len(slow)


def test_listings_end_after_so_much_text(server, monkeypatch):
  monkeypatch.setattr(character_routes, '_PAGE_SIZE', 5_000)

  def publish(n, letter='x', to=None):
    fields = {'name': f'C{n}', 'description': letter * 300}
    return server.publish(fields, 'ben', to=to)['id']

  names = [publish(n) for n in range(30)]
  for n in range(29):
    publish(n, 'y', names[0])

  def pages(path, name):
    after, sizes, has_more = '', [], True
    while has_more:
      page = server.get(
        f'{path}?{name}={after}' if after else path, owner='ben'
      )
      sizes.append(len(json.dumps(page)))
      yield from page['data']
      after, has_more = page[name], page['has_more']
    assert max(sizes) < 15_000 and len(sizes) >= 3

  found = [one['id'] for one in pages(CARDS, 'after')]
  assert len(set(found)) == len(found) and set(names) <= set(found)
  path = f'{CARDS}/{names[0]}/versions'
  numbers = [one['version'] for one in pages(path, 'before')]
  assert numbers == list(range(30, 0, -1))


def test_an_owner_has_so_much_text_per_minute(server, monkeypatch):
  monkeypatch.setattr(limits, '_BYTES', 1)
  text = running.complete('a' * 500, max_tokens=1)
  monkeypatch.setattr(server.context, 'limits', limits.Limits())
  for _ in range(3):  # Of 1,500 bytes at once.
    server.post(TEXT, 'ben', **text)
  with bounded(server, 0), pytest.raises(urllib.error.HTTPError) as caught:
    server.post(TEXT, 'ben', **text)
  assert caught.value.code == 429 and int(caught.value.headers['Retry-After'])
  assert 'bytes of requests per minute' in caught.value.read().decode()
  server.post(TEXT, 'ann', **text)


def test_what_fits_is_still_answered(server, named):
  session = server.open_session(character=named[0])
  with bounded(server):
    made = server.chat('Hello, {{char}}.', session=session, max_tokens=4)
    assert made['choices'][0]['finish_reason'] == 'length'
    found = server.session(session)
    assert found['messages'][1]['text'] == f'Hello, {NAME}.'
    server.chat('Good evening, all.', max_tokens=1)


def test_prompts_are_counted_wherever_they_are_made(server, named, monkeypatch):
  character, session = named
  counted = []
  monkeypatch.setattr(
    server.context.limits,
    'prompt',
    lambda owner, tokens, rate: counted.append((owner, tokens)),
  )
  for path, body in (
    (TEXT, running.complete(['a', 'bb'])),
    (CHAT, running.chat(character=character)),
    (CHAT, running.chat(session=session)),
    card(),
  ):
    counted.clear()
    made = server.post(path, 'ann', **body)
    tokens = made['usage']['prompt_tokens'] if 'usage' in made else None
    assert counted == [('ann', tokens or made['tokens'])]
