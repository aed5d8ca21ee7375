"""Operators' commands: who may, what changes, and what open requests keep."""

import dataclasses
import functools
import io
import json
import threading
import time

import numpy as np
import pytest

from kaiju_jax.app import operate
from kaiju_jax.serving.http import log
from kaiju_jax.serving.http import loopback
from kaiju_jax.serving.safety import moderation
from kaiju_jax.serving.safety import thresholds
from tests.experiments import forked
from tests.serving import planted
from tests.serving import world
from tests.serving.routes import moderated
from tests.serving.routes import operator_port

HEAD = moderation.Head('head 1', world.NAMES)
SERVE = functools.partial(
  moderated.served, reply=b'I like the zoo. Say zorbifex and more'
)


def write(path, marker=planted.ZORB, high=0.8, head=HEAD):
  """Writes a version: its gate knows a marker; `high` is the head's bound."""
  folder = planted.write(path, planted.gate([marker]), head=None)
  policy = thresholds.load(folder / moderation.THRESHOLDS)
  stage = head and planted.stage(head.version, head.names, high, high, low=0.1)
  policy = dataclasses.replace(policy, head=stage)
  thresholds.write(folder / moderation.THRESHOLDS, policy)
  return folder


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
  """Versions by name: 'strict' and 'lax' heads, another gate, and bad ones."""
  path = tmp_path_factory.mktemp('versions')
  other = moderation.Head('head 2', world.NAMES)
  return {
    'strict': write(path / 'strict'),
    'lax': write(path / 'lax', high=0.9999),
    'quam': write(path / 'quam', planted.QUAM, high=0.9999),
    'headless': write(path / 'headless', high=0.5, head=None),
    'other': write(path / 'other', head=other),
  }


def operated(path, folder=None, head=HEAD):
  moderator = moderation.Moderator(head)
  if folder is not None:
    moderator.use(folder)
  return operator_port.operated(path, SERVE, moderator=moderator)


@pytest.fixture
def one(tmp_path, folders):
  """A server that is strict."""
  with operated(tmp_path, folders['strict']) as one:
    yield one


def text_of(one):
  return moderated.streamed(one.server)[0]


def is_refused(one, text):
  (choice,) = one.server.chat(text, max_tokens=5)['choices']
  return choice['finish_reason'] == 'content_filter'


def test_nobody_commands_without_the_operators_key(one, folders, tmp_path):
  served = one.served()
  body = json.dumps({'folder': str(folders['lax'])}).encode()
  wrong = [
    {},
    {'Authorization': ''},
    {'Authorization': f'Bearer {one.key[:-1]}'},
    # Who chats is no operator, with a token or with the key of the page.
    {'Authorization': f'Bearer {one.server.tokens["ann"]}'},
    {'Authorization': f'Bearer {loopback.load_key(tmp_path / "chat")}'},
    {'Cookie': f'kaiju={one.key}'},
  ]
  for headers in wrong:
    # Who fails often is told so.
    assert one.status('/operations/gate', headers, body) in (401, 429)
    assert one.status('/operations', headers, None) in (401, 429)
  # A page of another site has no key; were it to have one, it is refused.
  for strange in (
    {'Host': 'evil.example'},
    {'Origin': 'http://evil.example'},
    {'Sec-Fetch-Site': 'cross-site'},
  ):
    own = {'Authorization': f'Bearer {one.key}'} | strange
    assert one.status('/operations/gate', own, body) == 403
  assert one.served() == served
  assert one.count('gate', 'done') == 0
  assert one.count('gate', 'refused') == len(wrong) + 3
  # The chats' port has no such address.
  assert one.server.refused('GET', '/operations')[0] == 404


def test_a_gate_is_served_and_taken_back(one, folders):
  strict = one.served()
  assert strict['folder'] == str(folders['strict'])
  assert 'zorbifex' not in text_of(one)
  told = one.use(folders['lax'])
  assert told['mode'] == 'moderated' and told['before'] == strict
  # Thresholds alone are another version: the gate's file is the same.
  assert told['served']['gate'] == strict['gate']
  assert told['served']['id'] != strict['id']
  assert 'zorbifex' in text_of(one)
  assert is_refused(one, 'a zorbifex') and not is_refused(one, 'a quamlith')
  lax = one.use(folders['quam'])['before']
  assert is_refused(one, 'a quamlith') and not is_refused(one, 'a zorbifex')
  # The same once more does not push out what a rollback returns to.
  one.use(folders['quam'])
  assert one.operator.roll_gate_back()['served'] == lax
  assert is_refused(one, 'a zorbifex') and not is_refused(one, 'a quamlith')
  assert one.count('gate', 'done') == 3
  assert one.count('gate/rollback', 'done') == 1


def test_two_rollbacks_of_two_people_are_one(one, folders):
  strict = one.served()
  lax = one.use(folders['lax'])['served']
  one.operator.ask('gate/rollback', {'served': lax['id']})
  with pytest.raises(operate.Refused, match='the version served is'):
    one.operator.ask('gate/rollback', {'served': lax['id']})
  assert one.served() == strict


@pytest.mark.parametrize('begins, ends', [('lax', 'strict'), ('strict', 'lax')])
def test_an_open_reply_ends_with_what_it_began_with(
  tmp_path, folders, begins, ends
):
  with operated(tmp_path, folders[begins]) as one:
    reached, go_on = threading.Event(), threading.Event()
    rounds = iter(range(10**6))

    def pause():
      if next(rounds) == 8:
        reached.set()
        assert go_on.wait(60)

    one.server.engine.before_round = pause
    texts = []
    thread = threading.Thread(target=lambda: texts.append(text_of(one)))
    thread.start()
    assert reached.wait(60)
    one.use(folders[ends])
    go_on.set()
    thread.join()
    texts.append(text_of(one))
  shown = ['zorbifex' in text for text in texts]
  assert shown == [name == 'lax' for name in (begins, ends)]


def test_what_is_bad_changes_nothing(one, folders, tmp_path):
  served = one.served()
  for body, message in (
    ({'folder': str(tmp_path / 'nowhere')}, 'nowhere'),
    ({'folder': str(folders['headless'])}, 'nothing would be answered'),
    ({'folder': str(folders['other'])}, 'head'),
    ({'folder': ''}, 'folder: .*at least 1'),
    ({'folder': 5}, 'folder: .*string'),
    ({'folder': 'a\0b'}, 'folder: .*pattern'),
    ({}, 'folder'),
    ({'folder': str(folders['lax']), 'more': 'x'}, 'more'),
  ):
    with pytest.raises(operate.Refused, match=message):
      one.operator.ask('gate', body)
  with pytest.raises(operate.Refused, match='no version before'):
    one.operator.roll_gate_back()
  assert one.served() == served
  assert not is_refused(one, 'a benign text')


def test_a_server_without_a_head_takes_no_gate(tmp_path, folders):
  with operated(tmp_path, head=None) as one:
    with pytest.raises(operate.Refused, match='no token-level head'):
      one.use(folders['lax'])
    with pytest.raises(operate.Refused, match='unmoderated'):
      one.operator.roll_gate_back()
    state = one.operator.ask()
    assert operate.describe(state)[0].split() == ['gate', 'unmoderated']


def test_a_command_is_one_line_of_the_log(one, folders):
  written = io.StringIO()
  with log.write_to(written):
    one.use(folders['lax'])
    with pytest.raises(operate.Refused):
      one.use('/nowhere')
  lines = [json.loads(line) for line in written.getvalue().splitlines()]
  done, refused = (one for one in lines if one['event'] == 'operation')
  assert done['operation'] == refused['operation'] == 'gate'
  assert (done['result'], refused['result']) == ('done', 'refused')
  assert done['served']['folder'] == str(folders['lax'])
  assert done['before']['folder'] == str(folders['strict'])
  assert done['seconds'] >= 0 and 'nowhere' in refused['message']
  assert one.key not in written.getvalue()


def test_the_command_says_what_is_served(one, folders, tmp_path):
  words = ['experiments.operate', f'--port={one.port}']
  words.append(f'--folder={tmp_path / "server"}')
  changed, back, shown, two, stranger = forked.run(
    [
      [*words, f'--safety={folders["lax"]}'],
      [*words, '--safety_rollback'],
      words,
      [*words, '--safety_rollback', '--safety=x'],
      [*words[:-1], f'--folder={tmp_path}'],
    ]
  )
  assert changed.returncode == 0, changed.stderr
  lines = changed.stdout.splitlines()
  assert [line.split()[0] for line in lines] == ['gate', 'served', 'before']
  assert lines[1].endswith('lax') and lines[2].endswith('strict')
  assert back.stdout.splitlines()[1].endswith('strict')
  assert shown.stdout == back.stdout
  assert two.returncode and 'one at a time' in two.stderr + two.stdout
  assert stranger.returncode and 'no key' in stranger.stderr
  assert one.key not in shown.stdout + stranger.stderr


@pytest.mark.slow
def test_a_gate_of_full_size_changes_within_a_second(tmp_path):
  """From the command to the answer, by the processor."""
  versions = [
    planted.write(tmp_path / f'{n}', planted.full_size(n)) for n in range(2)
  ]
  with operated(tmp_path, versions[0], planted.HEAD) as one:
    taken = []
    for _ in range(3):  # Other work of this process only adds.
      begun = time.process_time()
      one.use(versions[1])
      between = time.process_time()
      one.operator.roll_gate_back()
      taken.append((between - begun, time.process_time() - between))
  assert np.min(taken, axis=0).max() < 1
