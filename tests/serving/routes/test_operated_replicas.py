"""Operators' commands about replicas, through a whole server."""

import time

import pytest

from kaiju_jax.app import operate
from kaiju_jax.serving.routing import rollouts
from tests.experiments import forked
from tests.serving import hasty
from tests.serving.http import exposed
from tests.serving.routes import operator_port


@pytest.fixture
def one(tmp_path, monkeypatch):
  hasty.shorten(monkeypatch, rollouts, 20)
  with operator_port.operated(tmp_path, replicas=3) as one:
    yield one


def talk(one, count=1):
  """Has new sessions say something; returns their ids."""
  sessions = [one.server.open_session() for _ in range(count)]
  go_on(one, sessions)
  return sessions


def go_on(one, sessions):
  for session in sessions:
    one.server.chat('And then?', session=session, max_tokens=3)


def replicas(one):
  return {x['name']: x for x in one.operator.ask()['replicas']}


def ended(one, name):
  """Returns how many requests have ended at a replica."""
  return one.server.context.engines.count_requests(name).requests


def test_a_replica_is_rolled_out_rolled_back_drained_and_removed(one):
  ask = one.operator.ask
  assert {x['share'] for x in replicas(one).values()} == {1.0}
  sessions = talk(one, 12)
  told = ask('rollout', {'of': 'r2', 'hold': 0})
  assert told['state'] == 'warming' and replicas(one)['r2']['share'] == 0
  while ask()['rollouts'][-1]['state'] != 'done':
    time.sleep(0.05)
  assert ask()['rollouts'][-1]['prefixes'] == 1
  assert replicas(one)['r2']['share'] == 1
  assert ask('rollback', {'of': 'r2'})['changed'] == ['r2']
  before = ended(one, 'r2')
  talk(one, 6)
  assert ended(one, 'r2') == before
  go_on(one, sessions)
  # Those that had begun there have stayed.
  assert ended(one, 'r2') > before
  assert ask('share', {'of': 'r2', 'share': 0.5})['changed'] == ['r2']
  with pytest.raises(operate.Refused, match='drain it first'):
    ask('remove', {'of': 'r2'})
  assert ask('drain', {'of': 'r2', 'seconds': 5})['moved'] == 0
  before = ended(one, 'r2')
  go_on(one, sessions)
  assert ended(one, 'r2') == before
  ask('remove', {'of': 'r2'})
  assert replicas(one).keys() == {'r0', 'r1'}
  told = exposed.samples(one.server.context.metrics)
  up = [dict(labels) for name, labels in told if name == 'kaiju_replica_up']
  assert {labels['replica'] for labels in up} == {'r0', 'r1'}
  assert one.server.count('affinity_moves_total') >= 1
  assert one.server.count('affinity_sessions') == 18
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
  token = {'Authorization': f'Bearer {one.server.tokens["ann"]}'}
  body = b'{"of": "r1", "share": 0.5}'
  for name in 'rollout', 'rollback', 'share', 'drain', 'remove':
    for headers in {}, token:
      assert one.status(f'/operations/{name}', headers, body) in (401, 429)
  assert replicas(one) == before


def test_the_last_one_stays_open(one):
  for name in 'r0', 'r1':
    one.operator.ask('share', {'of': name, 'share': 0})
  for name, body in (
    ('share', {'share': 0}),
    ('rollback', {}),
    ('rollout', {}),
    ('drain', {}),
  ):
    with pytest.raises(operate.Refused, match='no other replica'):
      one.operator.ask(name, body | {'of': 'r2'})
  talk(one)


def test_a_server_of_one_engine_has_no_replicas(tmp_path):
  with operator_port.operated(tmp_path) as one:
    assert replicas(one) == {}
    with pytest.raises(operate.Refused, match='one engine'):
      one.operator.ask('drain', {'of': 'r0'})


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
