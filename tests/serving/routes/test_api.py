"""Characters and conversations over HTTP, and who may see what of them."""

import itertools
import json
import re
import socket

import numpy as np
from prometheus_client import parser
import pytest
import yaml

from kaiju_jax.characters.cards import cards
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.http import metrics
from kaiju_jax.serving.replies import reply
from kaiju_jax.serving.stores import characters
from tests.serving import recording
from tests.serving import running
from tests.serving import trivial
from tests.serving.operations import prometheus

SECRET = 'The key lies under the third stone'


@pytest.fixture(scope='module')
def server(tmp_path_factory):
  with running.server(tmp_path_factory.mktemp('server')) as server:
    yield server


def fields(**changes):
  return {'name': 'Ivo', 'description': SECRET, 'greeting': 'Hm?'} | changes


def created(server, owner='ann', **changes):
  return server.post('/v1/characters', owner, fields=fields(**changes))


def talked(server, session, text='Hello', owner='ann', **body):
  said = [] if text is None else [{'role': 'user', 'content': text}]
  return server.post(
    '/v1/chat/completions',
    owner,
    **{'model': running.MODEL, 'messages': said, 'session': session}
    | {'max_tokens': 12, 'seed': 3}
    | body,
  )


def opened(server, character=running.CHARACTER, owner='ann', **body):
  return server.post('/v1/sessions', owner, character=character, **body)


# Characters.


def test_a_character_is_made_changed_rolled_back_and_removed(server):
  made = created(server)
  name = made['id']
  assert made['version'] == 1 and made['live'] and made['own']
  path = f'/v1/characters/{name}'
  changed = server.ask('PUT', path, {'fields': fields(name='Iva')}, 'ann')
  assert changed['version'] == 2 and changed['name'] == 'Iva'
  back = server.post(f'{path}/rollback', 'ann', version=1)
  assert back['version'] == 1 and back['digest'] == made['digest']
  numbers = [
    (one['version'], one['live'])
    for one in server.get(f'{path}/versions', owner='ann')['data']
  ]
  assert numbers == [(2, False), (1, True)]
  assert server.ask('DELETE', path, owner='ann')['deleted']
  assert server.refused('GET', path, owner='ann')[0] == 404


def test_a_tag_changes_no_digest(server):
  made = created(server)
  path = f'/v1/characters/{made["id"]}'
  changed = server.ask('PUT', path, {'fields': fields(tags=['new'])}, 'ann')
  assert changed['version'] == 2 and changed['digest'] == made['digest']


def test_what_belongs_to_somebody_else_is_as_if_it_were_not_there(server):
  name = created(server)['id']
  path = f'/v1/characters/{name}'
  missing = server.refused('GET', '/v1/characters/nobody', owner='ben')
  for method, end, body in (
    ('GET', '', None),
    ('GET', '/card', None),
    ('GET', '/versions', None),
    ('PUT', '', {'fields': fields()}),
    ('DELETE', '', None),
    ('POST', '/rollback', {'version': 1}),
  ):
    status, error = server.refused(method, path + end, body, 'ben')
    assert status == 404
    assert error['message'].replace(name, 'nobody') == missing[1]['message']
  listed = server.get('/v1/characters', owner='ben')['data']
  assert name not in [one['id'] for one in listed]
  body = {'character': name}
  assert server.refused('POST', '/v1/sessions', body, 'ben')[0] == 404
  payload = {
    'model': f'{running.MODEL}/{name}',
    'messages': [{'role': 'user', 'content': 'Hi'}],
  }
  status, _ = server.refused('POST', '/v1/chat/completions', payload, 'ben')
  assert status == 404


def test_others_talk_to_a_public_character_and_do_not_read_it(server):
  made = server.post('/v1/characters', 'ann', fields=fields(), public=True)
  path = f'/v1/characters/{made["id"]}'
  seen = server.get(path, owner='ben')
  listed = server.get('/v1/characters', owner='ben')
  assert seen['public'] and not seen['own']
  assert SECRET not in json.dumps([seen, listed])
  for method, end, body in (
    ('GET', '/card', None),
    ('PUT', '', {'fields': fields()}),
    ('DELETE', '', None),
    ('POST', '/rollback', {'version': 1}),
  ):
    assert server.refused(method, path + end, body, 'ben')[0] == 403
  session = opened(server, made['id'], 'ben')
  assert talked(server, session['id'], owner='ben')['choices']
  assert SECRET not in json.dumps(
    server.get(f'/v1/sessions/{session["id"]}', owner='ben')
  )


def test_built_in_characters_are_everybodys_and_nobodys_to_change(server):
  path = f'/v1/characters/{running.CHARACTER}'
  for owner in 'ann', 'ben':
    assert server.get(path, owner=owner)['name'] == 'Mira'
    assert server.refused('DELETE', path, owner=owner)[0] == 403


def test_a_card_comes_in_and_goes_out_in_both_forms(server):
  written = running.FIELDS
  digests = set()
  for body, kind in (
    (cards.to_json(written, 'v2'), 'application/json'),
    (cards.to_json(written), 'application/json'),
    (cards.to_png(written), 'image/png'),
  ):
    made = server.ask('POST', '/v1/characters', body, 'ann', kind)
    digests.add(made['digest'])
    path = f'/v1/characters/{made["id"]}/card'
    for form in 'json', 'png':
      card = server.get(f'{path}?format={form}', owner='ann')
      card = json.dumps(card).encode() if form == 'json' else card
      assert cards.read(card).fields == written
  assert len(digests) == 1


# Conversations.


def test_a_session_starts_with_a_greeting_of_ones_choice(server):
  for index, text in enumerate(
    ['Good evening, User. The lamp is lit.', 'You came by boat?']
  ):
    session = opened(server, greeting=index)
    shown = {one['id']: one for one in session['messages']}
    assert shown[session['head']]['text'] == text


def test_an_edit_is_a_sibling_and_the_head_chooses_the_path(server):
  session = opened(server)
  path = f'/v1/sessions/{session["id"]}'
  first = talked(server, session['id'])['kaiju']['message']
  nodes = server.get(path, owner='ann')['messages']
  said = nodes[first]['parent']
  edited = server.post(
    f'{path}/messages',
    'ann',
    parent=nodes[said]['parent'],
    role='user',
    text='Good morning',
  )
  head = edited['head']
  assert edited['messages'][head]['text'] == 'Good morning'
  again = talked(server, session['id'], None)['kaiju']['message']
  nodes = server.get(path, owner='ann')['messages']
  assert nodes[again]['parent'] == head and nodes[said]['text'] == 'Hello'
  shown = server.ask('PUT', f'{path}/head', {'message': first}, 'ann')
  assert shown['head'] == first


def test_a_reply_waits_for_something_to_answer(server):
  session = opened(server)['id']
  for body in {}, {'swipe': True}:
    status, error = server.refused(
      'POST',
      '/v1/chat/completions',
      {'model': running.MODEL, 'messages': [], 'session': session} | body,
      'ann',
    )
    assert status == 400 and error['param'] == 'messages'


def test_sessions_are_listed_latest_first_and_removed(server):
  first, second = opened(server)['id'], opened(server)['id']
  talked(server, first)
  listed = [
    one['id'] for one in server.get('/v1/sessions', owner='ann')['data']
  ]
  assert listed.index(first) < listed.index(second)
  assert server.ask('DELETE', f'/v1/sessions/{first}', owner='ann')['deleted']
  assert server.refused('GET', f'/v1/sessions/{first}', owner='ann')[0] == 404


def test_nobody_reaches_another_owners_conversation(server):
  session = opened(server)
  path = f'/v1/sessions/{session["id"]}'
  talked(server, session['id'], SECRET)
  for method, end, body in (
    ('GET', '', None),
    ('DELETE', '', None),
    ('PUT', '/head', {'message': 0}),
    ('POST', '/messages', {'parent': None, 'role': 'user', 'text': 'x'}),
  ):
    assert server.refused(method, path + end, body, 'ben')[0] == 404
  payload = {'model': running.MODEL, 'messages': [], 'session': session['id']}
  status, _ = server.refused('POST', '/v1/chat/completions', payload, 'ben')
  assert status == 404
  assert SECRET in json.dumps(server.get(path, owner='ann'))


def test_a_turn_that_is_refused_stores_nothing(server):
  session = opened(server)
  before = len(session['messages'])
  status, _ = server.refused(
    'POST',
    '/v1/chat/completions',
    {
      'model': running.MODEL,
      'messages': [{'role': 'user', 'content': 'x' * 2000}],
      'session': session['id'],
    },
    'ann',
  )
  after = server.get(f'/v1/sessions/{session["id"]}', owner='ann')
  assert status == 400 and len(after['messages']) == before


def test_a_second_turn_reuses_what_was_said(server):
  session = opened(server)['id']
  talked(server, session)
  used = talked(server, session, 'Go on')['usage']
  cached = used['prompt_tokens_details']['cached_tokens']
  new = len('Go on') + 30  # The message, its frame, and the last token drawn.
  assert cached >= used['prompt_tokens'] - new


def test_a_long_conversation_drops_its_oldest_and_goes_on(server):
  session = opened(server)['id']
  dropped, reused = [], []
  for turn in range(24):
    answer = talked(server, session, f'This is what I say in turn {turn}')
    dropped.append(answer['kaiju']['dropped_messages'])
    used = answer['usage']
    reused.append(
      used['prompt_tokens_details']['cached_tokens'] / used['prompt_tokens']
    )
  assert dropped[0] == 0 < dropped[-1]
  moved = [a != b for a, b in itertools.pairwise(dropped)]
  assert sum(moved) <= 3
  # Where nothing is dropped anew, all but the turn itself is in the cache.
  assert all(
    share > 0.75 for share, is_moved in zip(reused[1:], moved) if not is_moved
  )


def stream(server, owner, **body):
  """Opens a raw connection that asks for a stream."""
  data = json.dumps(
    {'model': running.MODEL, 'stream': True, 'max_tokens': 40, 'seed': 5}
    | {'messages': [{'role': 'user', 'content': 'Hello'}]}
    | body
  ).encode()
  host, port = server.address.removeprefix('http://').split(':')
  connection = socket.create_connection((host, int(port)), timeout=100)
  connection.sendall(
    b'POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n'
    b'Authorization: Bearer %s\r\nContent-Type: application/json\r\n'
    b'Content-Length: %d\r\n\r\n%s'
    % (int(port), server.tokens[owner].encode(), len(data), data)
  )
  return connection


def test_what_is_dropped_does_not_depend_on_the_replys_limit(server):
  session = opened(server)
  path, head = f'/v1/sessions/{session["id"]}/messages', session['head']
  for role in ('user', 'assistant') * 3:
    body = {'parent': head, 'role': role, 'text': 'calm sea ' * 12}
    head = server.post(path, 'ann', **body)['head']
  found = [
    talked(server, session['id'], 'Hm', max_tokens=most)['kaiju']
    for most in (1, 500)
  ]
  assert len({one['dropped_messages'] for one in found}) == 1, found
  assert found[0]['prompt_tokens'] + 500 > running.LENGTH


def test_a_session_that_went_on_meanwhile_is_a_conflict(server, monkeypatch):
  session = opened(server)
  submit = server.context.engines.submit

  async def submit_behind_another(*several):
    server.store.append(
      'ann', session['id'], session['head'], 'user', 'Me first'
    )
    return await submit(*several)

  monkeypatch.setattr(server.context.engines, 'submit', submit_behind_another)
  said = {'model': running.MODEL, 'session': session['id']}
  said['messages'] = [{'role': 'user', 'content': 'Hello'}]
  status, error = server.refused('POST', '/v1/chat/completions', said, 'ann')
  assert (status, error['code']) == (409, 'conflict')
  kept = server.get(f'/v1/sessions/{session["id"]}', owner='ann')['messages']
  assert [one['text'] for one in kept][-1] == 'Me first'
  assert 'Hello' not in [one['text'] for one in kept]


def test_what_was_said_is_kept_where_the_reader_left(tmp_path):
  with running.server(tmp_path, pause=0.1) as server:
    session = opened(server)
    # A seed whose replies have 44 tokens at least.
    connection = stream(
      server, 'ann', session=session['id'], seed=33, max_tokens=400
    )
    seen = b''
    while seen.count(b'"content":"') < 6:
      seen += connection.recv(4096)
      assert b'[DONE]' not in seen
    connection.close()
    assert server.is_idle_soon()

    def stored():
      kept = server.get(f'/v1/sessions/{session["id"]}', owner='ann')
      return kept['messages'][-1]['role'] == 'assistant'

    assert trivial.until(stored)
    kept = server.get(f'/v1/sessions/{session["id"]}', owner='ann')
    *_, said, reply = kept['messages']
    assert said['text'] == 'Hello' and reply['parent'] == said['id']
    assert reply['finish'] == 'cancelled' and 4 <= len(reply['text']) < 400


@pytest.mark.parametrize(
  'count', [60, pytest.param(1000, marks=pytest.mark.slow)]
)
def test_readers_that_leave_at_random_moments_leave_nothing(tmp_path, count):
  with running.server(tmp_path, rows=8) as server:
    rng = np.random.default_rng(0)
    session = opened(server)['id']
    for begin in range(0, count, 20):
      connections = [
        stream(server, 'ann', seed=begin + n, n=int(rng.integers(1, 3)))
        for n in range(20)
      ]
      for connection in connections:
        for _ in range(rng.integers(0, 4)):
          connection.recv(512)
        connection.close()
    assert server.is_idle_soon()
    assert talked(server, session)['choices']
    assert server.context.limits._streams.taken == 0


def samples(server):
  text = server.get('/metrics').decode()
  families = parser.text_string_to_metric_families(text)
  return [one for family in families for one in family.samples]


def counted(server, name, **labels):
  (found,) = [
    one.value
    for one in samples(server)
    if (one.name, one.labels) == (f'kaiju_{name}', labels)
  ]
  return found


def test_a_server_exports_what_alerts_and_the_dashboard_read(server):
  talked(server, opened(server)['id'])
  server.refused('GET', '/v1/characters/nobody', owner='ben')
  # A router's, which this server has not.
  one = metrics.ReplicaReading('one', 'b', True, 1.0, 0.0, 0)
  fleet = metrics.FleetReading([one], 0, 0, True)
  server.context.metrics.add_fleet(lambda: fleet)
  exported = samples(server)
  rules = yaml.safe_load(prometheus.ALERTS.read_text())
  expressions = [
    rule['expr'] for group in rules['groups'] for rule in group['rules']
  ]
  expressions += prometheus.queries(
    json.loads(prometheus.DASHBOARD.read_text())
  )
  for expression in expressions:
    found = prometheus.selectors(expression)
    assert found, expression
    for selector in found:
      # `up` is Prometheus's own.
      assert selector[0] == 'up' or prometheus.selects(selector, exported), (
        selector
      )
    # Series are summed by labels that one of the metrics has.
    labels = {'job', 'instance'}.union(
      *(one.labels for one in exported if one.name in dict(found))
    )
    for by in re.findall(r'\bby \(([^)]+)\)', expression):
      assert set(by.split(', ')) <= labels, expression


def test_a_stream_of_some_length_has_its_rate_counted(server):
  name = 'stream_tokens_per_second_count'
  before = counted(server, name)
  assert talked(server, opened(server)['id'], max_tokens=12)['choices']
  assert counted(server, name) == before
  assert talked(server, opened(server)['id'], max_tokens=30)['choices']
  assert server.is_idle_soon()
  assert counted(server, name) == before + 1


def test_an_error_after_a_streams_beginning_counts_as_failed(
  server, monkeypatch
):
  before = counted(server, 'failed_answers_total', kind='stream')

  async def failing(*_):
    raise errors.unavailable('the engine has stopped.')
    yield

  body = {
    'model': running.MODEL,
    'messages': [{'role': 'user', 'content': 'Hello'}],
    'stream': True,
  }
  with monkeypatch.context() as patch:
    patch.setattr(reply, '_events', failing)
    answer = server.ask('POST', '/v1/chat/completions', body, 'ann')
    assert b'the engine has stopped' in answer
    body = {'model': running.MODEL, 'prompt': 'Hello', 'stream': True}
    server.ask('POST', '/v1/completions', body, 'ann')
  assert server.is_idle_soon()
  after = counted(server, 'failed_answers_total', kind='stream')
  assert after == before + 2


def test_a_store_that_is_away_is_said_and_comes_back(server, monkeypatch):
  session = opened(server)['id']
  before = counted(server, 'store_failures_total')

  def away(*_, **__):
    raise characters.Unavailable('/a/place', 'the store is away')

  with monkeypatch.context() as patch:
    patch.setattr(server.store, 'append', away)
    status, error = server.refused(
      'POST',
      '/v1/chat/completions',
      {
        'model': running.MODEL,
        'session': session,
        'messages': [{'role': 'user', 'content': 'Hello'}],
      },
      'ann',
    )
    assert status == 503 and 'away' in error['message']
  assert counted(server, 'store_failures_total') == before + 1
  assert server.is_idle_soon()
  assert talked(server, session)['choices']


def test_a_session_keeps_the_version_that_it_began_with(server):
  made = created(server, greeting='Good day.', description='A' * 40)
  path = f'/v1/characters/{made["id"]}'

  def answered():
    session = opened(server, made['id'])['id']
    return session, talked(server, session)['kaiju']['prompt_tokens']

  old, before = answered()
  changed = fields(greeting='Hm?', description='B' * 90)
  assert server.ask('PUT', path, {'fields': changed}, 'ann')['version'] == 2
  new, after = answered()
  assert after > before
  prompts = []
  submit = server.engine.submit

  def noted(request, *arguments):
    prompts.append(bytes(np.asarray(request.tokens).astype(np.uint8)))
    return submit(request, *arguments)

  server.engine.submit = noted
  try:
    talked(server, old, text=None, swipe=True)
    talked(server, new, text=None, swipe=True)
    assert server.ask('DELETE', path, owner='ann')['deleted']
    # Removed, and both sessions go on as they began.
    talked(server, old, text=None, swipe=True)
    talked(server, new, text=None, swipe=True)
  finally:
    del server.engine.submit
  assert b'A' * 40 in prompts[0] and b'B' not in prompts[0]
  assert b'B' * 90 in prompts[1] and b'A' * 40 not in prompts[1]
  assert prompts[2:] == prompts[:2]
  assert len(prompts[0]) == before and len(prompts[1]) == after
  # A turn further, too.
  assert talked(server, old, 'And now?')['choices']


@pytest.mark.parametrize('stream', [False, True])
def test_a_reply_that_a_stop_string_cut_is_kept_as_text(server, stream):
  session = opened(server)['id']
  whole = talked(server, session, seed=33, max_tokens=40)
  text = whole['choices'][0]['message']['content']
  place = next(n for n in range(8, 30) if text.index(text[n : n + 2]) == n)
  stop = text[place : place + 2]
  kept = []
  append = server.store.append

  def noted(*arguments, **options):
    kept.append(options.get('tokens'))
    return append(*arguments, **options)

  server.store.append = noted
  try:
    body = {'stop': [stop], 'seed': 33, 'max_tokens': 40, 'swipe': True}
    if stream:
      payload = body | {'model': running.MODEL, 'session': session}
      payload |= {'messages': [], 'stream': True}
      server.ask('POST', '/v1/chat/completions', payload, 'ann')
    else:
      talked(server, session, None, **body)
    talked(server, session, None, **body | {'stop': ['never']})
  finally:
    del server.store.append
  messages = server.store.messages('ann', session)
  assert messages[-2].text == text[:place] and messages[-2].finish == 'stop'
  # Its tokens say more than its text, so that the text alone is kept.
  assert kept[0] is None and messages[-2].tokens is None
  assert kept[1] is not None and messages[-1].text == text


def test_probes_say_how_the_server_is(server, monkeypatch):
  assert server.get('/healthz') == b'ok\n'
  assert server.get('/readyz') == b'ready\n'
  about = server.get('/v1/server')
  assert about['warm'] == {'ready': 0, 'of': 0}
  assert about['model'] == running.MODEL and not about['moderated']
  assert counted(server, 'ready') == 1
  with monkeypatch.context() as patch:
    patch.setattr(server.context, 'is_ready', False)
    assert counted(server, 'ready') == 0
  with monkeypatch.context() as patch:
    patch.setattr(server.context.engines, 'error', RuntimeError())
    assert counted(server, 'ready') == 0


def test_a_model_s_own_settings_are_those_of_requests_that_name_none(
  server, monkeypatch
):
  context = server.context
  monkeypatch.setattr(context, 'sampling', {'temperature': 0.5, 'top_k': 7})
  monkeypatch.setattr(context, 'ends', (9,))
  requests = recording.requests(context, monkeypatch)
  said = [{'role': 'user', 'content': 'a'}]
  body = {'model': running.MODEL, 'max_tokens': 2, 'seed': 1}
  server.post('/v1/chat/completions', messages=said, **body)
  server.post('/v1/chat/completions', messages=said, temperature=0.9, **body)
  server.post('/v1/completions', prompt='a', top_k=0, min_p=0.1, **body)
  drawn = [one.sampling for one in requests]
  assert [one.temperature for one in drawn] == [0.5, 0.9, 0.5]
  assert [one.top_k for one in drawn] == [7, 7, 0]
  assert drawn[2].min_p == 0.1 and drawn[0].top_p == 1
  assert requests[2].stop_tokens == (9,)
  about = server.get('/v1/server')
  assert about['sampling'] == {'temperature': 0.5, 'top_k': 7}
  assert about['chats'] is True


def test_a_model_without_a_chat_format_only_continues_text(server, monkeypatch):
  session = server.post('/v1/sessions', character=running.CHARACTER)
  monkeypatch.setattr(server.context, 'format', None)
  assert server.get('/v1/server')['chats'] is False
  said = [{'role': 'user', 'content': 'a'}]
  body = {'model': running.MODEL, 'max_tokens': 2}
  for path, payload in (
    ('/v1/chat/completions', body | {'messages': said}),
    ('/v1/chat/completions', body | {'messages': said, 'stream': True}),
    (
      '/v1/chat/completions',
      body | {'messages': said} | {'session': session['id']},
    ),
    ('/v1/characters', {'fields': {'name': 'Bo', 'description': 'x'}}),
  ):
    status, error = server.refused('POST', path, payload)
    assert (status, error['param']) == (400, 'model')
    assert error['param'] == 'model'
  answer = server.post('/v1/completions', prompt='a', **body)
  assert answer['choices'][0]['finish_reason'] == 'length'
