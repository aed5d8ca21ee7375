"""Operators' commands about replicas, through a whole server."""

import contextlib
import json
import time

import pytest

from kaiju_jax.app import operate
from kaiju_jax.serving.http import loopback
from tests.experiments import forked
from tests.serving import running
from tests.serving.http import exposed
from tests.serving.routes import operator_port

WHO = 'ann'


@contextlib.contextmanager
def operated(tmp_path, **options):
  folder = tmp_path / 'server'
  folder.mkdir()
  key = loopback.load_key(folder / loopback.OPERATOR_FILE)
  with running.server(folder, replicas=3, operator=key, **options) as server:
    yield operator_port.Operated(server, server.server.metrics_port, key)


@pytest.fixture
def one(tmp_path):
  with operated(tmp_path) as one:
    yield one


def talk(one, count=3):
  """Has a new session say something; returns its id."""
  session = one.server.post('/v1/sessions', WHO, character=running.CHARACTER)[
    'id'
  ]
  say(one, session, count)
  return session


def say(one, session, count=3):
  one.server.post(
    '/v1/chat/completions',
    WHO,
    model=running.MODEL,
    session=session,
    messages=[{'role': 'user', 'content': 'And then?'}],
    max_tokens=count,
  )


def replicas(one):
  return {x['name']: x for x in one.operator.ask()['replicas']}


def ended(one):
  """Returns how many requests have ended at each replica."""
  router = one.server.context.engines
  return {name: router.count_requests(name).requests for name in replicas(one)}


def test_a_replica_is_rolled_out_rolled_back_drained_and_removed(one):
  ask = one.operator.ask
  assert {x['share'] for x in replicas(one).values()} == {1.0}
  sessions = [talk(one) for _ in range(12)]
  told = ask('rollout', {'of': 'r2', 'hold': 0})
  assert told['state'] == 'warming' and replicas(one)['r2']['share'] == 0
  while ask()['rollouts'][-1]['state'] != 'done':
    time.sleep(0.05)
  assert ask()['rollouts'][-1]['prefixes'] == 1
  assert replicas(one)['r2']['share'] == 1
  assert ask('rollback', {'of': 'r2'})['changed'] == ['r2']
  before = ended(one)
  for _ in range(6):
    talk(one)
  assert ended(one)['r2'] == before['r2']
  for session in sessions:
    say(one, session)
  # Those that had begun there have stayed.
  assert ended(one)['r2'] > before['r2']
  assert ask('share', {'of': 'r2', 'share': 0.5})['changed'] == ['r2']
  with pytest.raises(operate.Refused, match='drain it first'):
    ask('remove', {'of': 'r2'})
  assert ask('drain', {'of': 'r2', 'seconds': 5})['moved'] == 0
  before = ended(one)
  for session in sessions:
    say(one, session)
  assert ended(one)['r2'] == before['r2']
  ask('remove', {'of': 'r2'})
  assert replicas(one).keys() == {'r0', 'r1'}
  told = exposed.samples(one.server.context.metrics)
  up = {
    dict(labels)['replica']
    for name, labels in told
    if name == 'kaiju_replica_up'
  }
  assert up == {'r0', 'r1'}
  assert told['kaiju_affinity_moves_total', ()] >= 1
  assert told['kaiju_affinity_sessions', ()] == 18
  for name in 'rollout', 'rollback', 'share', 'drain':
    assert one.count(name, 'done') == 1
  assert one.count('remove', 'refused') == 1


def test_loads_are_asked_for_where_no_requests_come(one):
  """An operator waits for a drained replica to run nothing."""
  talk(one)
  places = {x.replica.name: x for x in one.server.context.engines._replicas}
  for place in places.values():
    place.status = place.status._replace(running=3)
  assert not any(x['running'] for x in replicas(one).values())
  places['r1'].status = places['r1'].status._replace(running=3)
  told = one.operator.ask('drain', {'of': 'r1', 'seconds': 5})
  assert not any(x['running'] for x in told['replicas'])


def test_what_is_wrong_changes_nothing(one):
  before = replicas(one)
  for name, body, message in (
    ('rollout', {'of': 'r9'}, 'must be a replica'),
    ('rollout', {'of': 'r1', 'hold': -1}, 'hold'),
    ('rollout', {'of': 'r1', 'hold': '60'}, 'hold'),
    ('rollout', {'of': 'r1', 'requests': 1.5}, 'requests'),
    ('share', {'of': 'r1', 'share': 1.1}, 'share'),
    ('share', {'of': 'r1', 'share': True}, 'share'),
    ('share', {'of': 'r1'}, 'share'),
    ('rollback', {}, 'of'),
    ('rollback', {'of': ''}, 'of'),
    ('drain', {'of': 'r1', 'seconds': 101}, 'seconds'),
    ('drain', {'of': 'r9'}, 'must be a replica'),
    ('remove', {'of': 'r1'}, 'drain it first'),
    ('remove', {'of': 'r1', 'force': True}, 'force'),
  ):
    with pytest.raises(operate.Refused, match=message):
      one.operator.ask(name, body)
  assert replicas(one) == before
  body = json.dumps({'of': 'r1', 'share': 0.5}).encode()
  kind = {'Content-Type': 'application/json'}
  token = {'Authorization': f'Bearer {one.server.tokens[WHO]}'}
  for name in 'rollout', 'rollback', 'share', 'drain', 'remove':
    for headers in {}, token:
      path = f'/operations/{name}'
      assert one.status(path, kind | headers, body) in (401, 429)
  assert replicas(one) == before


def test_the_last_one_stays_open(one):
  for name in 'r0', 'r1':
    one.operator.ask('share', {'of': name, 'share': 0})
  for name, body in (
    ('share', {'of': 'r2', 'share': 0}),
    ('rollback', {'of': 'r2'}),
    ('rollout', {'of': 'r2'}),
    ('drain', {'of': 'r2'}),
  ):
    with pytest.raises(operate.Refused, match='no other replica'):
      one.operator.ask(name, body)
  talk(one)


def test_a_server_of_one_engine_has_no_replicas(tmp_path):
  folder = tmp_path / 'server'
  folder.mkdir()
  key = loopback.load_key(folder / loopback.OPERATOR_FILE)
  with running.server(folder, operator=key) as server:
    operator = operate.Server(server.server.metrics_port, key)
    assert operator.ask()['replicas'] == []
    with pytest.raises(operate.Refused, match='one engine'):
      operator.ask('drain', {'of': 'r0'})


def test_the_command_lists_and_changes_replicas(one, tmp_path):
  words = ['experiments.operate', f'--port={one.port}']
  words.append(f'--folder={tmp_path / "server"}')
  share, bad, rollback, drain, rollout, port = forked.run(
    [
      [*words, '--share=r1:0.25'],
      [*words, '--share=0.25'],
      [*words, '--rollback=r1'],
      [*words, '--drain=r1', '--seconds=1'],
      [*words, '--rollout=r0', '--hold=5'],
      [words[0], f'--port={one.port},{one.port}x', words[2]],
    ]
  )
  row = next(line for line in share.stdout.splitlines() if 'r1' in line)
  assert '0.25' in row and 'serves' in row, share.stdout + share.stderr
  assert bad.returncode and 'NAME:SHARE' in bad.stderr
  assert not rollback.returncode, rollback.stderr
  row = next(line for line in drain.stdout.splitlines() if 'r1' in line)
  assert 'draining' in row
  assert 'rollout of r0: warming, share 0' in rollout.stdout
  assert port.returncode and '--port' in port.stderr


def test_several_ingresses_change_one_after_the_other(one):
  nobody = operate.Server(1, one.key)
  asked = []

  def share(server):
    asked.append(server.port)
    server.ask('share', {'of': 'r1', 'share': 0.5})

  with pytest.raises(operate.Refused, match=f'--port={one.port}.$') as caught:
    operate.change([one.operator, nobody], share)
  assert asked == [one.port, 1] and '--port=1: no answer' in str(caught.value)
  with pytest.raises(operate.Refused) as caught:
    operate.change([nobody, one.operator], share)
  assert 'already' not in str(caught.value) and asked[2:] == [1]
