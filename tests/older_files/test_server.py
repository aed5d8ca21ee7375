"""A server's folder of older code is served, with all that people wrote."""

import json
import signal

import pytest

from kaiju_jax.alignment.feedback import export
from kaiju_jax.app import server_folder
from kaiju_jax.serving.http import auth
from kaiju_jax.serving.safety import blocked
from tests.serving.page import served


def test_people_find_their_conversations(here, expected):
  store = server_folder.open_store(here / 'server', 'sqlite')
  for owner, wanted in expected['server']['sessions'].items():
    found = store.sessions(owner)
    assert [one.id for one in found] == [one['id'] for one in wanted]
    for one, session in zip(found, wanted):
      for field in 'character', 'version', 'head', 'title', 'created':
        assert getattr(one, field) == session[field]
      ratings = store.ratings(owner, one.id)
      texts = [
        {
          **{
            field: getattr(message, field)
            for field in ('id', 'parent', 'role', 'text', 'finish', 'created')
          },
          'reasoning': message.reasoning,
          'rating': ratings.get(message.id),
        }
        for message in store.messages(owner, one.id)
      ]
      assert texts == session['messages']
  for owner, wanted in expected['server']['characters'].items():
    for one in wanted['data']:
      version = store.live(owner, one['id'])
      assert version.number == one['version']
      if one['own']:
        assert version.digest == one['digest']
        for name in 'name', 'description', 'greeting':
          assert getattr(version.fields, name) == one['fields'][name]
        keys = [list(entry.keys) for entry in version.fields.lore]
        assert keys == [entry['keys'] for entry in one['fields']['lore']]
  versions = expected['server']['versions']['data']
  found = store.versions('ann', versions[0]['id'])
  assert [x.digest for x in found] == [x['digest'] for x in versions]
  store.close()


def test_tokens_still_count(here, expected):
  tokens = auth.Tokens(here / 'server' / auth.FILE)
  ann, ben = (tokens.find(expected['tokens'][x]) for x in ('ann', 'ben'))
  assert (ann.owner, ann.age, ann.tier, ann.feedback) == ('ann', 'adult', 1, 1)
  assert (ben.owner, ben.age, ben.tier, ben.feedback) == ('ben', 'minor', 0, 0)
  assert tokens.find('kj-nobody') is None


def test_the_drifts_checkpoint_goes_on(here, expected):
  folder = server_folder.open_drift(here / 'server')
  found, seconds = folder.restore(expected['digests']['exports/chat'])
  assert seconds == 1795780000
  assert found.recent.codes[..., 63].min() == 1e6
  assert folder.restore('of another model') is None


def test_blocked_texts_are_counted(here):
  folder = here / 'server' / 'blocked'
  blocked.Blocked(folder, server_folder.read_key(here / 'server'))
  (record,) = blocked.read(folder)
  assert record.text == 'the zorbifex sang' and record.stage == 'gate'


def test_an_export_of_feedback_is_replaced(here, expected):
  root = here / 'server'
  store = server_folder.open_store(root, 'sqlite')
  before = (here / 'feedback' / 'held_out.jsonl').read_bytes()
  found = export.export(
    store,
    auth.Tokens(root / auth.FILE),
    server_folder.read_key(root),
    here / 'feedback',
    0.5,
  )
  store.close()
  assert found.counts == expected['feedback']['counts']
  assert list(found.sessions) == expected['feedback']['sessions']
  assert not found.gone
  assert (here / 'feedback' / 'held_out.jsonl').read_bytes() == before


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_server_goes_on_where_it_was_stopped(here, expected):
  flags = (
    *('--points=all', '--drift=watch', '--safety=safety', '--age=adult'),
    *('--feedback', '--cache=8MiB', '--guided=8', '--length=512'),
  )
  with served.serve('exports/chat', 'server', *flags) as started:
    server, address, said = started
    # Its trees were named by digests alone: they are refused, and go.
    older = {one.name for one in (here / 'server/points').glob('*.points')}
    assert 'Points of the last start: 0 taken back' in said and older
    (key,) = (here / 'server/local_key').read_text().split()
    assert address.key == key
    for owner, wanted in expected['server']['sessions'].items():
      asked = address._replace(key=expected['tokens'][owner])
      got = json.loads(served.got(asked, '/v1/sessions'))['data']
      assert [one['id'] for one in got] == [one['id'] for one in wanted]
      for session in wanted:
        path = f'/v1/sessions/{session["id"]}'
        assert json.loads(served.got(asked, path)) == session
        for text in 'z5', 'z6':
          answer = served.got(
            asked,
            '/v1/chat/completions',
            model='chat',
            messages=[{'role': 'user', 'content': text}],
            session=session['id'],
            max_tokens=4,
          )
        usage = json.loads(answer)
        cached = usage['kaiju']['cached_tokens']
        assert cached > 0.7 * usage['usage']['prompt_tokens']
    server.send_signal(signal.SIGTERM)
    assert server.wait(250) == 0
  left = {one.name for one in (here / 'server/points').glob('*.points')}
  assert left and not left & older
