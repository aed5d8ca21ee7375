"""Characters and conversations over HTTP, and who may see what of them."""

import itertools
import json
import re
import time

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
from tests.serving.routes import raw_clients

CARDS, SESSIONS, CHAT = running.CARDS, running.SESSIONS, running.CHAT
SECRET = 'The key lies under the third stone'


def fields(**changes):
  return {'name': 'Ivo', 'description': SECRET, 'greeting': 'Hm?'} | changes


# Characters.


def test_a_character_is_made_changed_rolled_back_and_removed(server):
  made = server.publish(fields())
  assert made['version'] == 1 and made['live'] and made['own']
  path = f'{CARDS}/{made["id"]}'
  tagged = server.publish(fields(tags=['new']), to=made['id'])
  assert tagged['version'] == 2 and tagged['digest'] == made['digest']
  changed = server.publish(fields(name='Iva'), to=made['id'])
  assert changed['version'] == 3 and changed['name'] == 'Iva'
  back = server.post(f'{path}/rollback', 'ann', version=1)
  assert back['version'] == 1 and back['digest'] == made['digest']
  numbers = [
    (one['version'], one['live'])
    for one in server.get(f'{path}/versions', owner='ann')['data']
  ]
  assert numbers == [(3, False), (2, False), (1, True)]
  assert server.ask('DELETE', path, owner='ann')['deleted']
  assert server.refused('GET', path, owner='ann')[0] == 404


def test_what_belongs_to_somebody_else_is_as_if_it_were_not_there(server):
  name, session = server.publish(fields())['id'], server.open_session()
  server.chat(SECRET, session=session)
  card, talk = f'{CARDS}/{name}', f'{SESSIONS}/{session}'
  for method, path, body in (
    ('GET', card, None),
    ('GET', f'{card}/card', None),
    ('GET', f'{card}/versions', None),
    ('PUT', card, {'fields': fields()}),
    ('DELETE', card, None),
    ('POST', f'{card}/rollback', {'version': 1}),
    ('POST', SESSIONS, {'character': name}),
    ('POST', CHAT, running.chat(model=f'{running.MODEL}/{name}')),
    ('GET', talk, None),
    ('DELETE', talk, None),
    ('PUT', f'{talk}/head', {'message': 0}),
    ('POST', f'{talk}/messages', {'parent': None, 'role': 'user', 'text': 'x'}),
    ('POST', CHAT, running.chat(None, session=session)),
  ):
    status, error = server.refused(method, path, body, 'ben')
    assert (status, error['code']) == (404, 'not_found')
    as_nobodys = error['message'].replace(name, 'nobody')
    path = path.replace(name, 'nobody').replace(session, 'nobody')
    body = json.loads(
      json.dumps(body).replace(name, 'nobody').replace(session, 'nobody')
    )
    missing = server.refused(method, path, body, 'ben')[1]['message']
    assert as_nobodys.replace(session, 'nobody') == missing
  for path in CARDS, SESSIONS:
    listed = server.get(path, owner='ben')['data']
    assert not {name, session} & {one['id'] for one in listed}
  assert SECRET in json.dumps(server.session(session))


def test_others_talk_to_a_public_character_and_do_not_read_it(server):
  name = server.publish(fields(), public=True)['id']
  seen = server.get(f'{CARDS}/{name}', owner='ben')
  assert seen['public'] and not seen['own']
  session = server.open_session('ben', name)
  assert server.chat(owner='ben', session=session)['choices']
  shown = server.session(session, 'ben'), server.get(CARDS, owner='ben')
  assert SECRET not in json.dumps([seen, shown])
  # Those that are built in are everybody's, and nobody's to change.
  for one, who in (
    (name, 'ben'),
    *((running.CHARACTER, x) for x in server.tokens),
  ):
    path = f'{CARDS}/{one}'
    assert server.get(path, owner=who)['id'] == one
    for method, end, body in (
      ('GET', '/card', None),
      ('PUT', '', {'fields': fields()}),
      ('DELETE', '', None),
      ('POST', '/rollback', {'version': 1}),
    ):
      if one == name or method == 'DELETE':
        assert server.refused(method, path + end, body, who)[0] == 403


def test_a_card_comes_in_and_goes_out_in_both_forms(server):
  written = running.FIELDS
  digests = set()
  for body, kind in (
    (cards.to_json(written, 'v2'), 'application/json'),
    (cards.to_json(written), 'application/json'),
    (cards.to_png(written), 'image/png'),
  ):
    made = server.ask('POST', CARDS, body, 'ann', kind)
    digests.add(made['digest'])
    for form in 'json', 'png':
      path = f'{CARDS}/{made["id"]}/card?format={form}'
      card = server.get(path, owner='ann')
      card = json.dumps(card).encode() if form == 'json' else card
      assert cards.read(card).fields == written
  assert len(digests) == 1


# Conversations.


def test_a_session_starts_with_a_greeting_of_ones_choice(server):
  greetings = 'Good evening, User. The lamp is lit.', 'You came by boat?'
  for index, text in enumerate(greetings):
    session = server.session(server.open_session(greeting=index))
    shown = {one['id']: one for one in session['messages']}
    assert shown[session['head']]['text'] == text


def test_an_edit_is_a_sibling_and_the_head_chooses_the_path(server):
  session = server.open_session()
  path = f'{SESSIONS}/{session}'
  first = server.chat(session=session)['kaiju']['message']
  nodes = server.session(session)['messages']
  said = nodes[first]['parent']
  edit = {'parent': nodes[said]['parent'], 'role': 'user', 'text': 'Bye'}
  edited = server.post(f'{path}/messages', 'ann', **edit)
  head = edited['head']
  assert edited['messages'][head]['text'] == 'Bye'
  again = server.chat(None, session=session)['kaiju']['message']
  nodes = server.session(session)['messages']
  assert nodes[again]['parent'] == head and nodes[said]['text'] == 'Hello'
  shown = server.ask('PUT', f'{path}/head', {'message': first}, 'ann')
  assert shown['head'] == first


def test_a_turn_that_is_refused_stores_nothing(server):
  session = server.open_session()
  before = server.session(session)
  # Nothing that could be answered, and more than fits.
  for text, options in (None, {}), (None, {'swipe': True}), ('x' * 2000, {}):
    status, error = server.refused_chat(text, session=session, **options)
    assert (status, error['param']) == (400, 'messages')
  assert server.session(session) == before


def test_sessions_are_listed_latest_first_and_removed(server):
  first, second = server.open_session(), server.open_session()
  server.chat(session=first)
  listed = [one['id'] for one in server.get(SESSIONS, owner='ann')['data']]
  assert listed.index(first) < listed.index(second)
  path = f'{SESSIONS}/{first}'
  assert server.ask('DELETE', path, owner='ann')['deleted']
  assert server.refused('GET', path, owner='ann')[0] == 404


def test_a_long_conversation_drops_its_oldest_and_goes_on(server):
  session = server.open_session()
  dropped, ran, prompts = [], [], []
  for turn in range(24):
    answer = server.chat(f'This is what I say in turn {turn}', session=session)
    dropped.append(answer['kaiju']['dropped_messages'])
    prompts.append(answer['usage']['prompt_tokens'])
    ran.append(prompts[-1] - running.cached(answer))
  # A second turn runs its message, its frame, and the last token drawn.
  assert ran[1] <= len('This is what I say in turn 1') + 30
  assert dropped[0] == 0 < dropped[-1]
  moved = [a != b for a, b in itertools.pairwise(dropped)]
  assert sum(moved) <= 3
  # Where nothing is dropped anew, all but the turn itself is in the cache.
  for new, prompt, is_moved in zip(ran[1:], prompts[1:], moved):
    assert is_moved or new < 0.25 * prompt


def test_what_is_dropped_does_not_depend_on_the_replys_limit(server):
  session = server.open_session()
  head = server.session(session)['head']
  for role in ('user', 'assistant') * 3:
    body = {'parent': head, 'role': role, 'text': 'calm sea ' * 12}
    path = f'{SESSIONS}/{session}/messages'
    head = server.post(path, 'ann', **body)['head']
  found = [
    server.chat('Hm', session=session, max_tokens=most)['kaiju']
    for most in (1, 500)
  ]
  assert len({one['dropped_messages'] for one in found}) == 1, found
  assert found[0]['prompt_tokens'] + 500 > running.LENGTH


def test_a_session_that_went_on_meanwhile_is_a_conflict(server, monkeypatch):
  session = server.open_session()
  head = server.session(session)['head']
  submit = server.context.engines.submit

  async def submit_behind_another(*several):
    server.store.append('ann', session, head, 'user', 'Me first')
    return await submit(*several)

  monkeypatch.setattr(server.context.engines, 'submit', submit_behind_another)
  status, error = server.refused_chat(session=session)
  assert (status, error['code']) == (409, 'conflict')
  kept = [one['text'] for one in server.session(session)['messages']]
  assert kept[-1] == 'Me first' and 'Hello' not in kept


def test_what_was_said_is_kept_where_the_reader_left(
  server, monkeypatch, caplog
):
  monkeypatch.setattr(server.engine, 'before_round', lambda: time.sleep(0.1))
  session = server.open_session()
  body = running.chat(session=session, max_tokens=400, seed=raw_clients.SEED)
  connection = raw_clients.connect(server, CHAT, body | {'stream': True})
  seen = b''
  while seen.count(b'"content":"') < 6:
    seen += connection.recv(4096)
    assert b'[DONE]' not in seen
  connection.close()
  assert server.is_idle_soon()

  def last():
    return server.session(session)['messages'][-1]

  assert trivial.until(lambda: last()['role'] == 'assistant')
  *_, said, kept = server.session(session)['messages']
  assert said['text'] == 'Hello' and kept['parent'] == said['id']
  assert kept['finish'] == 'cancelled' and 4 <= len(kept['text']) < 400
  assert 'not stored' not in caplog.text


@pytest.mark.parametrize(
  'count', [60, pytest.param(1000, marks=pytest.mark.slow)]
)
def test_readers_that_leave_at_random_moments_leave_nothing(server, count):
  rng = np.random.default_rng(0)
  session = server.open_session()
  for begin in range(0, count, 20):
    connections = []
    for n in range(20):
      options = {'max_tokens': 40, 'seed': begin + n, 'stream': True}
      body = running.chat(n=int(rng.integers(1, 3)), **options)
      connections.append(raw_clients.connect(server, CHAT, body))
    for connection in connections:
      for _ in range(rng.integers(0, 4)):
        connection.recv(512)
      connection.close()
  assert server.is_idle_soon()
  assert server.chat(session=session)['choices']


# Metrics and probes.


def test_a_server_exports_what_alerts_and_the_dashboard_read(server):
  server.chat(session=server.open_session())
  server.refused('GET', f'{CARDS}/nobody', owner='ben')
  # A router's, which this server has not.
  one = metrics.ReplicaReading('one', 'b', 1.0, True, False, 0.0, 0)
  fleet = metrics.FleetReading([one], 0, 0, True)
  server.context.metrics.add_fleet(lambda: fleet)
  text = server.get('/metrics').decode()
  families = parser.text_string_to_metric_families(text)
  exported = [one for family in families for one in family.samples]
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
      is_there = selector[0] == 'up' or prometheus.selects(selector, exported)
      assert is_there, selector
    # Series are summed by labels that one of the metrics has.
    labels = {'job', 'instance'}.union(
      *(one.labels for one in exported if one.name in dict(found))
    )
    for by in re.findall(r'\bby \(([^)]+)\)', expression):
      assert set(by.split(', ')) <= labels, expression


def test_a_stream_of_some_length_has_its_rate_counted(server):
  name = 'stream_tokens_per_second_count'
  before = server.count(name)
  assert server.chat(session=server.open_session(), max_tokens=12)
  assert server.is_idle_soon() and server.count(name) == before
  assert server.chat(session=server.open_session(), max_tokens=30)
  assert trivial.until(lambda: server.count(name) == before + 1)


def test_an_error_after_a_streams_beginning_counts_as_failed(
  server, monkeypatch
):
  before = server.count('failed_answers_total', kind='stream')

  async def failing(*_):
    raise errors.unavailable('the engine has stopped.')
    yield

  monkeypatch.setattr(reply, '_events', failing)
  for path, body in (CHAT, running.chat()), (running.TEXT, running.complete()):
    answer = server.ask('POST', path, body | {'stream': True}, 'ann')
    assert b'the engine has stopped' in answer
  assert server.is_idle_soon()
  assert server.count('failed_answers_total', kind='stream') == before + 2


def test_a_store_that_is_away_is_said_and_comes_back(server, monkeypatch):
  session = server.open_session()
  before = server.count('store_failures_total')

  def away(*_, **__):
    raise characters.Unavailable('/a/place', 'the store is away')

  with monkeypatch.context() as patch:
    patch.setattr(server.store, 'append', away)
    status, error = server.refused_chat(session=session)
    assert status == 503 and 'away' in error['message']
  assert server.count('store_failures_total') == before + 1
  assert server.is_idle_soon()
  assert server.chat(session=session)['choices']


def test_probes_say_how_the_server_is(server, monkeypatch):
  assert server.get('/healthz') == b'ok\n'
  assert server.get('/readyz') == b'ready\n'
  about = server.get('/v1/server')
  assert about['warm'] == {'ready': 0, 'of': 0}
  assert about['model'] == running.MODEL and not about['moderated']
  assert server.count('ready') == 1
  for target, name, value in (
    (server.context, 'is_ready', False),
    (server.context.engines, 'error', RuntimeError()),
  ):
    with monkeypatch.context() as patch:
      patch.setattr(target, name, value)
      assert server.count('ready') == 0


# What is drawn.


def test_a_session_keeps_the_version_that_it_began_with(server, monkeypatch):
  made = server.publish(fields(greeting='Good day.', description='A' * 40))

  def answered():
    session = server.open_session(character=made['id'])
    return session, server.chat(session=session)['usage']['prompt_tokens']

  old, before = answered()
  changed = fields(greeting='Hm?', description='B' * 90)
  assert server.publish(changed, to=made['id'])['version'] == 2
  new, after = answered()
  assert after > before
  requests = recording.requests(server.context, monkeypatch)
  for is_removed in False, True:  # Both sessions go on as they began.
    if is_removed:
      server.ask('DELETE', f'{CARDS}/{made["id"]}', owner='ann')
    for session in old, new:
      server.chat(None, session=session, swipe=True)
  prompts = [bytes(np.uint8(one.tokens)) for one in requests]
  assert b'A' * 40 in prompts[0] and b'B' not in prompts[0]
  assert b'B' * 90 in prompts[1] and b'A' * 40 not in prompts[1]
  assert prompts[2:] == prompts[:2]
  assert len(prompts[0]) == before and len(prompts[1]) == after
  # A turn further, too.
  assert server.chat('And now?', session=old)['choices']


@pytest.mark.parametrize('is_streamed', [False, True])
def test_a_reply_that_a_stop_string_cut_is_kept_as_text(server, is_streamed):
  session = server.open_session()
  options = {'session': session, 'seed': raw_clients.SEED, 'max_tokens': 40}
  whole = server.chat(**options)['choices'][0]
  text = whole['message']['content']
  place = next(n for n in range(8, 30) if text.index(text[n : n + 2]) == n)
  ask = server.stream if is_streamed else server.chat
  for stop in text[place : place + 2], 'never':
    ask(None, swipe=True, stop=[stop], **options)
  *_, cut, kept = server.store.messages('ann', session)
  assert cut.text == text[:place] and cut.finish == 'stop'
  # Its tokens say more than its text, so that the text alone is kept.
  assert cut.tokens is None and kept.tokens is not None and kept.text == text


def test_a_model_s_own_settings_are_those_of_requests_that_name_none(
  server, monkeypatch
):
  context = server.context
  own = {'temperature': 0.5, 'top_k': 7, 'dry_multiplier': 0.8}
  monkeypatch.setattr(context, 'sampling', own)
  monkeypatch.setattr(context, 'chat_sampling', own)
  monkeypatch.setattr(context, 'ends', (9,))
  requests = recording.requests(context, monkeypatch)
  server.chat()
  server.chat(temperature=0.9, dry_multiplier=0, frequency_penalty=1)
  server.complete(top_k=0, min_p=0.1, logit_bias={'9': 2, '8': -1})
  drawn = [one.sampling for one in requests]
  assert [one.temperature for one in drawn] == [0.5, 0.9, 0.5]
  assert [one.top_k for one in drawn] == [7, 7, 0]
  assert [one.dry_multiplier for one in drawn] == [0.8, 0, 0.8]
  assert [one.frequency_penalty for one in drawn] == [0, 1, 0]
  assert drawn[2].logit_bias == ((8, -1), (9, 2)) and not drawn[0].logit_bias
  assert drawn[2].min_p == 0.1 and drawn[0].top_p == 1
  assert requests[2].stop_tokens == (9,)
  about = server.get('/v1/server')
  assert about['sampling'] == own
  assert about['chats'] is True


def test_the_default_of_chats_is_theirs_alone_and_leaves_greedy_ones(
  server, monkeypatch
):
  context = server.context
  default = {'temperature': 0.5, 'dry_multiplier': 0.8}
  monkeypatch.setattr(context, 'chat_sampling', default)
  requests = recording.requests(context, monkeypatch)
  server.chat()
  server.chat(temperature=0)
  server.chat(temperature=0.9, dry_multiplier=2)
  server.complete()
  drawn = [one.sampling for one in requests]
  assert [one.temperature for one in drawn] == [0.5, 0, 0.9, 1]
  assert [one.dry_multiplier for one in drawn] == [0.8, 0, 2, 0]
  assert server.get('/v1/server')['sampling'] == default


def test_a_model_without_a_chat_format_only_continues_text(server, monkeypatch):
  session = server.open_session()
  monkeypatch.setattr(server.context, 'format', None)
  assert server.get('/v1/server')['chats'] is False
  for path, body in (
    (CHAT, running.chat()),
    (CHAT, running.chat(stream=True)),
    (CHAT, running.chat(session=session)),
    (CARDS, {'fields': fields()}),
  ):
    status, error = server.refused('POST', path, body, 'ann')
    assert (status, error['param']) == (400, 'model')
  assert server.complete(max_tokens=2)['choices'][0]['text']
