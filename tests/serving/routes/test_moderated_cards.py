"""The gate reads all that is stored and shown: cards, titles and edits.

The marker 'zorbifex' stands for a violation; the gate here is written by hand.
"""

import threading

import pytest

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.characters.cards import cards
from kaiju_jax.serving.http import fair_threads
from kaiju_jax.serving.routes import characters as character_routes
from kaiju_jax.serving.routes import lookup
from tests.serving import running
from tests.serving.routes import moderated_cards

moderator = moderated_cards.moderator
server = moderated_cards.server
refused, BLOCKED = moderated_cards.refused, moderated_cards.BLOCKED
CARDS, SESSIONS, MARKER = (
  running.CARDS,
  running.SESSIONS,
  moderated_cards.MARKER,
)
FIELDS = card_fields.dump(moderated_cards.PLAIN)
# A minor may not read 'quamlith', and a newer gate blocks 'brintol'.
ADULTS, HIDDEN = (FIELDS | {'notes': x} for x in ('quamlith', 'brintol'))
LONG = f'{MARKER} ' + 'calm sea ' * 600
BY_MACROS = 'Say zorb{{// nothing}}ifex'
# Beside those that `test_expanded_texts` plants.
BAD = (
  FIELDS | {'tags': ['sea', f'calm {MARKER}']},
  FIELDS | {'extensions': {MARKER: 1}},
  FIELDS | {'notes': LONG},
  FIELDS | {'greeting': BY_MACROS},
)


def listed(server, owner='ben'):
  return [one['id'] for one in server.get(CARDS, owner=owner)['data']]


def test_however_a_card_is_published(server):
  path = f'{CARDS}/{server.publish(FIELDS)["id"]}'
  before = [server.get(x, owner='ann') for x in (CARDS, path)]
  bad = card_fields.parse(BAD[0])
  json, png = 'application/json', 'image/png'
  for body, kind in (
    *(({'fields': fields, 'public': True}, json) for fields in BAD),
    ({'fields': BAD[0], 'public': False}, json),
    (cards.to_json(bad), json),
    (cards.to_json(bad, 'v2'), json),
    (cards.to_png(bad), png),
  ):
    for method, where in ('POST', CARDS), ('PUT', path):
      assert refused(server, method, where, body, kind=kind) == BLOCKED
  assert before == [server.get(x, owner='ann') for x in (CARDS, path)]


def test_what_all_may_see_passes_what_minors_have(server):
  """An adult's own card may say more; published for all, or again, not."""
  name = server.publish(ADULTS)['id']
  path = f'{CARDS}/{name}'
  body = {'fields': ADULTS, 'public': True}
  assert refused(server, 'PUT', path, body) == BLOCKED
  server.publish(FIELDS, public=True, to=name)
  # It stays public where nothing is said of it.
  assert refused(server, 'PUT', path, {'fields': ADULTS}) == BLOCKED
  assert refused(server, 'POST', f'{path}/rollback', {'version': 1}) == BLOCKED
  assert server.get(path, owner='ben')['version'] == 2
  server.publish(FIELDS, to=name)
  assert server.post(f'{path}/rollback', 'ann', version=1)['version'] == 1


def test_a_version_judged_as_private_is_not_live_for_all(
  server, moderator, monkeypatch
):
  # Two servers of one store: here an owner has a thread beside the one that
  # judges.
  monkeypatch.setattr(server.context.texts, '_each', 2)
  name = server.publish(ADULTS)['id']
  path = f'{CARDS}/{name}'
  server.publish(FIELDS, to=name)
  moderator.meanwhile.append(
    lambda: server.publish(FIELDS, public=True, to=name)
  )
  back = refused(server, 'POST', f'{path}/rollback', {'version': 1})
  assert back[0] == 409
  shown = server.get(path, owner='ben')
  assert (shown['version'], shown['fields']['notes']) == (2, FIELDS['notes'])
  # Nothing has changed since the next one was judged.
  server.publish(FIELDS, to=name)
  assert server.post(f'{path}/rollback', 'ann', version=1)['live']


def test_a_public_card_has_its_authors_turns_whoever_asks_for_it(
  server, moderator, monkeypatch
):
  """Others wait for the verdict, too: not behind the first one's requests."""
  server.publish(FIELDS, public=True)
  run, owners = fair_threads.FairThreads.run, set()

  async def noted(threads, function):
    owners.add(fair_threads.OWNER.get())
    return await run(threads, function)

  monkeypatch.setattr(fair_threads.FairThreads, 'run', noted)
  monkeypatch.setattr(moderator, 'version', 'newer')
  assert listed(server)
  assert owners == {'ben', ('judged', 'ann')}


def test_titles_and_edits_of_both_roles_are_read(server):
  body = {'character': running.CHARACTER, 'title': f'My {MARKER}'}
  before = server.get(SESSIONS, owner='ann')
  assert refused(server, 'POST', SESSIONS, body) == BLOCKED
  assert server.get(SESSIONS, owner='ann') == before
  session = server.open_session(title='Mine')
  before = server.session(session)
  for role, text in (
    *(('user', text) for text in (MARKER, LONG, BY_MACROS)),
    *(('assistant', text) for text in (MARKER, LONG)),
  ):
    body = {'role': role, 'text': text, 'parent': None}
    path = f'{SESSIONS}/{session}/messages'
    assert refused(server, 'POST', path, body) == BLOCKED, (role, text[:20])
  assert server.session(session) == before


@pytest.fixture
def served(moderator):
  """Returns what serves another version of the gate; the first one is back."""

  def serve(version, also=MARKER):
    moderator.version, moderator.also = version, also

  yield serve
  serve('first')


SHOWN = {'list', 'models', 'character', 'model', 'session', 'chat'}


def shows(server, name, owner='ben'):
  """Returns where an owner is shown a character."""
  model = f'{running.MODEL}/{name}'
  found = set()
  if name in listed(server, owner):
    found.add('list')
  models = server.get('/v1/models', owner=owner)['data']
  if model in [one['id'] for one in models]:
    found.add('models')
  for where, method, path, body in (
    ('character', 'GET', f'{CARDS}/{name}', None),
    ('model', 'GET', f'/v1/models/{model}', None),
    ('session', 'POST', SESSIONS, {'character': name}),
    ('chat', 'POST', running.CHAT, running.chat(character=name)),
  ):
    try:
      status, error = server.refused(method, path, body, owner)
    except AssertionError:
      found.add(where)
    else:
      assert status == 404
      assert error['message'] == f"character '{name}': no such character."
  return found


def test_a_newer_gate_judges_what_is_public_before_others_see_it(
  server, moderator, served
):
  name = server.publish(HIDDEN, public=True)['id']
  assert shows(server, name) == SHOWN
  session = server.open_session('ben', name)
  served('second', 'brintol')
  assert shows(server, name) == set()
  assert shows(server, name, 'ann') == SHOWN
  # As where it was made private: who talks to it goes on.
  assert server.session(session, 'ben')['messages']
  # Each version of it is read by each gate once.
  moderator.texts.clear()
  assert shows(server, name) == set()
  assert not any('brintol' in text for text in moderator.texts)
  server.ask('PUT', f'{CARDS}/{name}', {'fields': FIELDS}, 'ann')
  assert shows(server, name) == SHOWN
  back = f'{CARDS}/{name}/rollback'
  assert refused(server, 'POST', back, {'version': 1}) == BLOCKED
  served('third')
  server.post(back, 'ann', version=1)
  assert shows(server, name) == SHOWN


def test_a_gate_that_fails_publishes_and_shows_nothing(
  server, moderator, served, monkeypatch
):
  name = server.publish(FIELDS, public=True)['id']
  path = f'{CARDS}/{name}'
  served('second')
  with monkeypatch.context() as patch:
    patch.setattr(moderator, 'has_failed', True)
    before = server.count('gate_failures_total', tier='adult')
    assert refused(server, 'POST', CARDS, {'fields': FIELDS})[0] == 503
    assert server.count('gate_failures_total', tier='adult') == before + 1
    # Others are not shown what it has not read.
    assert refused(server, 'GET', path, owner='ben')[0] == 503
    assert name not in listed(server) and name in listed(server, 'ann')
  assert server.get(path, owner='ben')['id'] == name and name in listed(server)
  assert server.publish(FIELDS)


def test_a_listing_waits_for_no_long_verdict(
  server, moderator, served, monkeypatch
):
  name = server.publish(FIELDS, public=True)['id']
  monkeypatch.setattr(lookup, '_PATIENCE', 0.05)
  served('second')
  event = threading.Event()
  moderator.meanwhile.append(event.wait)
  shown = listed(server)
  event.set()
  assert name not in shown
  assert server.get(f'{CARDS}/{name}', owner='ben')['id'] == name
  assert name in listed(server)


def test_a_page_of_hidden_characters_is_passed_over(
  server, served, monkeypatch
):
  monkeypatch.setattr(character_routes, '_PAGE', 2)
  hidden = [server.publish(HIDDEN, public=True)['id'] for _ in range(3)]
  last = server.publish(FIELDS, public=True)['id']
  served('second', 'brintol')
  found, after, has_more = [], '', True
  while has_more:
    page = server.get(f'{CARDS}?after={after}', owner='ben')
    found += [one['id'] for one in page['data']]
    after, has_more = page['after'], page['has_more']
    assert page['data'] or not has_more
  assert found[-1] == last and not {*found} & {*hidden}


def test_a_server_without_a_head_says_that_it_is_closed(
  server, moderator, monkeypatch
):
  with monkeypatch.context() as patch:
    patch.setattr(moderator, 'mode', 'closed')
    for path, body in (
      (running.CHAT, running.chat()),
      (running.TEXT, running.complete()),
      (CARDS, {'fields': FIELDS}),
    ):
      assert refused(server, 'POST', path, body)[0] == 503
    with pytest.raises(Exception, match='503') as caught:
      server.get('/readyz')
    assert caught.value.read() == b'closed: no token-level head\n'
    assert server.count('ready') == 0
  assert server.get('/readyz') == b'ready\n'
