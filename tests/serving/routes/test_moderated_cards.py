"""The gate reads all that is stored and shown: cards, titles and edits.

The marker 'zorbifex' stands for a violation; the gate here is written by hand.
"""

import json
import re
import threading
import urllib.error

import pytest

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.characters.cards import cards
from kaiju_jax.serving.http import fair_threads
from kaiju_jax.serving.routes import characters as character_routes
from kaiju_jax.serving.routes import judge
from kaiju_jax.serving.routes import lookup
from tests.serving import running
from tests.serving.routes import moderated
from tests.serving.routes import moderated_cards

moderator = moderated_cards.moderator
server = moderated_cards.server

SAY = {'role': 'user', 'content': 'Hello'}


FIELDS = card_fields.dump(moderated_cards.PLAIN)
PLANTED = dict(moderated_cards.planted(FIELDS))
PLANTED['.extensions: a name'] = FIELDS | {
  'extensions': {moderated_cards.MARKER: 1}
}
PLANTED['.notes: its beginning'] = FIELDS | {
  'notes': f'{moderated_cards.MARKER} ' + 'calm sea ' * 600
}
PLANTED['.greeting: by macros'] = FIELDS | {
  'greeting': 'Say zorb{{// nothing}}ifex'
}


def refused(server, method, path, body, owner='ann', **options):
  with pytest.raises(urllib.error.HTTPError) as caught:
    server.ask(method, path, body, owner, **options)
  error = json.loads(caught.value.read())['error']
  assert moderated_cards.MARKER not in json.dumps(error)
  return caught.value.code, error['code']


def made(server, **body):
  return server.post('/v1/characters', 'ann', **{'fields': FIELDS} | body)['id']


def listed(server, owner):
  return server.get('/v1/characters', owner=owner)['data']


def known(server):
  return listed(server, 'ann')


def test_all_texts_are_planted():
  texts = set(judge.leaves(moderated_cards.PLAIN)) - {
    'world',
    'place',
    'tide',
  }
  assert len(texts) > 20
  for text in texts:
    wanted = f'{text} {moderated_cards.MARKER}'
    assert any(wanted in judge.leaves(x) for x in PLANTED.values()), text


@pytest.mark.parametrize('where', PLANTED)
def test_no_text_of_a_card_passes(server, where):
  before = known(server)
  body = {'fields': PLANTED[where], 'public': True}
  refusal = refused(server, 'POST', '/v1/characters', body)
  assert refusal == (400, 'content_filter')
  assert known(server) == before


def test_however_a_card_is_published(server):
  name = made(server)
  path = f'/v1/characters/{name}'
  before = server.get(path, owner='ann')
  bad = card_fields.parse(PLANTED['.tags[1]'])
  for public in True, False:
    body = {'fields': PLANTED['.tags[1]'], 'public': public}
    for method, where in ('POST', '/v1/characters'), ('PUT', path):
      assert refused(server, method, where, body) == (400, 'content_filter')
  for body, kind in (
    (cards.to_json(bad), 'application/json'),
    (cards.to_json(bad, 'v2'), 'application/json'),
    (cards.to_png(bad), 'image/png'),
  ):
    for method, where in ('POST', '/v1/characters'), ('PUT', path):
      refusal = refused(server, method, where, body, kind=kind)
      assert refusal == (400, 'content_filter')
  assert server.get(path, owner='ann') == before


def test_what_all_may_see_passes_what_minors_have(server):
  """An adult's own card may say more; published for all, or again, not."""
  own = FIELDS | {'notes': 'quamlith'}
  name = made(server, fields=own)
  path = f'/v1/characters/{name}'
  body = {'fields': own, 'public': True}
  assert refused(server, 'PUT', path, body) == (400, 'content_filter')
  server.ask('PUT', path, {'fields': FIELDS, 'public': True}, 'ann')
  # It stays public where nothing is said of it.
  body = {'fields': own}
  assert refused(server, 'PUT', path, body) == (400, 'content_filter')
  back = refused(server, 'POST', f'{path}/rollback', {'version': 1})
  assert back == (400, 'content_filter')
  assert server.get(path, owner='ben')['version'] == 2
  server.ask('PUT', path, {'fields': FIELDS, 'public': False}, 'ann')
  again = server.post(f'{path}/rollback', 'ann', version=1)
  assert again['version'] == 1


def test_a_version_judged_as_private_is_not_live_for_all(
  server, moderator, monkeypatch
):
  # Two servers of one store: here an owner has a thread beside the one that
  # judges.
  monkeypatch.setattr(server.context.texts, '_each', 2)
  name = made(server, fields=FIELDS | {'notes': 'quamlith'})
  path = f'/v1/characters/{name}'
  server.ask('PUT', path, {'fields': FIELDS}, 'ann')

  def publish():
    server.ask('PUT', path, {'fields': FIELDS, 'public': True}, 'ann')

  moderator.meanwhile.append(publish)
  back = refused(server, 'POST', f'{path}/rollback', {'version': 1})
  assert back[0] == 409
  shown = server.get(path, owner='ben')
  assert (shown['version'], shown['fields']['notes']) == (
    2,
    moderated_cards.PLAIN.notes,
  )
  # Nothing has changed since the next one was judged.
  server.ask('PUT', path, {'fields': FIELDS, 'public': False}, 'ann')
  assert server.post(f'{path}/rollback', 'ann', version=1)['live']


def test_a_public_card_has_its_authors_turns_whoever_asks_for_it(
  server, moderator, monkeypatch
):
  """Others wait for the verdict, too: not behind the first one's requests."""
  server.post('/v1/characters', 'ann', fields=FIELDS, public=True)
  run, owners = fair_threads.FairThreads.run, set()

  async def noted(threads, function):
    owners.add(fair_threads.OWNER.get())
    return await run(threads, function)

  monkeypatch.setattr(fair_threads.FairThreads, 'run', noted)
  monkeypatch.setattr(moderator, 'version', 'newer')
  assert server.get('/v1/characters', owner='ben')['data']
  assert owners == {'ben', ('judged', 'ann')}


def test_nothing_is_published_while_the_gate_fails(server, moderator):
  body = {'fields': FIELDS}
  moderator.has_failed = True
  try:
    assert refused(server, 'POST', '/v1/characters', body)[0] == 503
    measured = server.get('/metrics').decode()
  finally:
    moderator.has_failed = False
  failures = re.findall(r'kaiju_gate_failures_total\S* ([1-9])', measured)
  assert failures == ['1']
  assert made(server)


def test_titles_and_edits_of_both_roles_are_read(server):
  body = {
    'character': running.CHARACTER,
    'title': f'My {moderated_cards.MARKER}',
  }
  count = len(server.get('/v1/sessions', owner='ann')['data'])
  assert refused(server, 'POST', '/v1/sessions', body)[1] == 'content_filter'
  assert len(server.get('/v1/sessions', owner='ann')['data']) == count
  session = server.post('/v1/sessions', 'ann', **body | {'title': 'Mine'})
  path = f'/v1/sessions/{session["id"]}'
  texts = (
    moderated_cards.MARKER,
    f'{moderated_cards.MARKER} ' + 'calm sea ' * 600,
    'zorb{{// nothing}}ifex',
  )
  for role, text in (
    *(('user', text) for text in texts),
    *(('assistant', text) for text in texts[:2]),
  ):
    body = {'role': role, 'text': text, 'parent': None}
    refusal = refused(server, 'POST', f'{path}/messages', body)
    assert refusal == (400, 'content_filter'), (role, text[:20])
  kept = server.get(path, owner='ann')
  assert kept['messages'] == session['messages']


@pytest.fixture
def served(moderator):
  """Returns what serves another version of the gate; the first one is back."""

  def serve(version, also=moderated_cards.MARKER):
    moderator.version, moderator.also = version, also

  yield serve
  serve('first')


def shows(server, name, owner):
  """Returns where an owner is shown a character."""
  payload = {'model': running.MODEL, 'messages': [SAY]}
  tries = {
    'list': lambda: name in [x['id'] for x in listed(server, owner)],
    'models': lambda: (
      f'{running.MODEL}/{name}'
      in [x['id'] for x in server.get('/v1/models', owner=owner)['data']]
    ),
    'character': lambda: server.get(f'/v1/characters/{name}', owner=owner),
    'model': lambda: server.get(
      f'/v1/models/{running.MODEL}/{name}', owner=owner
    ),
    'session': lambda: server.post('/v1/sessions', owner, character=name),
    'chat': lambda: server.post(
      '/v1/chat/completions', owner, **payload, max_tokens=1, character=name
    ),
  }
  found = set()
  for where, attempt in tries.items():
    try:
      if attempt():
        found.add(where)
    except urllib.error.HTTPError as error:
      assert error.code == 404
      assert json.loads(error.read())['error']['message'] == (
        f"character '{name}': no such character."
      )
  return found


def test_a_newer_gate_judges_what_is_public_before_others_see_it(
  server, moderator, served
):
  everywhere = {'list', 'models', 'character', 'model', 'session', 'chat'}
  name = made(server, fields=FIELDS | {'notes': 'brintol'}, public=True)
  assert shows(server, name, 'ben') == everywhere
  session = server.post('/v1/sessions', 'ben', character=name)['id']
  served('second', 'brintol')
  assert shows(server, name, 'ben') == set()
  assert shows(server, name, 'ann') == everywhere
  # As where it was made private: who talks to it goes on.
  assert server.get(f'/v1/sessions/{session}', owner='ben')['messages']
  # Each version of it is read by each gate once.
  moderator.texts.clear()
  assert shows(server, name, 'ben') == set()
  assert not any('brintol' in text for text in moderator.texts)
  server.ask('PUT', f'/v1/characters/{name}', {'fields': FIELDS}, 'ann')
  assert shows(server, name, 'ben') == everywhere
  with pytest.raises(urllib.error.HTTPError):
    server.post(f'/v1/characters/{name}/rollback', 'ann', version=1)
  served('third')
  server.post(f'/v1/characters/{name}/rollback', 'ann', version=1)
  assert shows(server, name, 'ben') == everywhere


def test_no_gate_that_fails_shows_what_it_has_not_read(
  server, moderator, served
):
  name = made(server, public=True)
  served('second')
  moderator.has_failed = True
  try:
    path = f'/v1/characters/{name}'
    assert refused(server, 'GET', path, None, 'ben')[0] == 503
    assert name not in [one['id'] for one in listed(server, 'ben')]
    assert name in [one['id'] for one in listed(server, 'ann')]
  finally:
    moderator.has_failed = False
  assert server.get(path, owner='ben')['id'] == name
  assert name in [one['id'] for one in listed(server, 'ben')]


def test_a_listing_waits_for_no_long_verdict(
  server, moderator, served, monkeypatch
):
  name = made(server, public=True)
  monkeypatch.setattr(lookup, '_PATIENCE', 0.05)
  served('second')
  event = threading.Event()
  moderator.meanwhile.append(event.wait)
  shown = [one['id'] for one in listed(server, 'ben')]
  event.set()
  assert name not in shown
  assert server.get(f'/v1/characters/{name}', owner='ben')['id'] == name
  assert name in [one['id'] for one in listed(server, 'ben')]


def test_a_page_of_hidden_characters_is_passed_over(
  server, moderator, served, monkeypatch
):
  monkeypatch.setattr(character_routes, '_PAGE', 2)
  for _ in range(3):
    made(server, fields=FIELDS | {'notes': 'brintol'}, public=True)
  last = made(server, public=True)
  served('second', 'brintol')
  found, after = [], ''
  while True:
    page = server.get(f'/v1/characters?after={after}', owner='ben')
    found += [one['id'] for one in page['data']]
    if not page['has_more']:
      break
    assert page['data']
    after = page['after']
  assert found[-1] == last
  assert not any('brintol' in x['fields']['notes'] for x in page['data'])


def test_a_server_without_a_head_says_that_it_is_closed(server, moderator):
  moderator.mode = 'closed'
  try:
    payload = {'model': running.MODEL, 'prompt': 'Hello', 'max_tokens': 1}
    for path, body in (
      ('/v1/chat/completions', {'model': running.MODEL} | moderated.SAID),
      ('/v1/completions', payload),
      ('/v1/characters', {'fields': FIELDS}),
    ):
      assert refused(server, 'POST', path, body)[0] == 503
    with pytest.raises(urllib.error.HTTPError) as caught:
      server.get('/readyz')
    assert caught.value.code == 503
    assert caught.value.read() == b'closed: no token-level head\n'
    assert b'kaiju_ready 0.0' in server.get('/metrics')
  finally:
    del moderator.mode
  assert server.get('/readyz') == b'ready\n'
