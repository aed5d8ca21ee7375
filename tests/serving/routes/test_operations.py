"""Operators' commands: who may, what changes, and what open requests keep."""

import contextlib
import dataclasses
import io
import json
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest

from kaiju_jax.app import operate
from kaiju_jax.decoding.engine import admission
from kaiju_jax.serving.http import log
from kaiju_jax.serving.http import loopback
from kaiju_jax.serving.safety import moderation
from kaiju_jax.serving.safety import thresholds
from tests.experiments import forked
from tests.serving import planted
from tests.serving import running
from tests.serving import world
from tests.serving.routes import moderated
from tests.serving.routes import operator_port

HEAD = moderation.Head('head 1', world.NAMES)
REPLY = b'I like the zoo. Say zorbifex and more'


def write(path, marker=planted.ZORB, high=0.8, head=HEAD):
  """Writes a version: its gate knows a marker; `high` is the head's bound."""
  folder = planted.write(path, planted.gate([marker]), head=None)
  policy = thresholds.load(folder / moderation.THRESHOLDS)
  stage = head and planted.stage(head.version, head.names, high, high, low=0.1)
  policy = dataclasses.replace(policy, head=stage)
  thresholds.write(folder / moderation.THRESHOLDS, policy)
  return folder


@pytest.fixture
def folders(tmp_path):
  """Versions by name: 'strict' and 'lax' heads, and another gate."""
  return {
    'strict': write(tmp_path / 'strict'),
    'lax': write(tmp_path / 'lax', high=0.9999),
    'quam': write(tmp_path / 'quam', planted.QUAM, high=0.9999),
  }


@contextlib.contextmanager
def operated(tmp_path, moderator, reply=REPLY):
  def engine(tokenizer):
    return world.Scripted(
      tokenizer,
      reply,
      moderated.scores,
      rows=4,
      length=running.LENGTH,
      pages=2000,
      limits=admission.Limits(lease=30),
    )

  folder = tmp_path / 'server'
  folder.mkdir()
  key = loopback.load_key(folder / loopback.OPERATOR_FILE)
  with running.server(
    folder, engine=engine, moderator=moderator, operator=key
  ) as server:
    yield operator_port.Operated(server, server.server.metrics_port, key)


@pytest.fixture
def one(tmp_path, folders):
  """A server that is strict."""
  moderator = moderation.Moderator(HEAD)
  moderator.use(folders['strict'])
  with operated(tmp_path, moderator) as one:
    yield one


def test_nobody_commands_without_the_operators_key(one, folders, tmp_path):
  served = one.served()
  kind = {'Content-Type': 'application/json'}
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
    assert one.status('/operations/gate', kind | headers, body) in (401, 429)
    assert one.status('/operations', headers, None) in (401, 429)
  # A page of another site has no key; were it to have one, it is refused.
  own = kind | {'Authorization': f'Bearer {one.key}'}
  for strange in (
    {'Host': 'evil.example'},
    {'Origin': 'http://evil.example'},
    {'Sec-Fetch-Site': 'cross-site'},
  ):
    assert one.status('/operations/gate', own | strange, body) == 403
  assert one.served() == served
  assert one.count('gate', 'done') == 0
  assert one.count('gate', 'refused') == len(wrong) + 3
  # The chats' port has no such address.
  with pytest.raises(urllib.error.HTTPError, match='404'):
    one.server.get('/operations')


def test_a_gate_is_served_and_taken_back(one, folders):
  strict = one.served()
  assert strict['folder'] == str(folders['strict'])
  told = one.use(folders['lax'])
  assert told['mode'] == 'moderated' and told['before'] == strict
  assert is_refused(one, 'a zorbifex') and not is_refused(one, 'a quamlith')
  lax = one.use(folders['quam'])['before']
  assert is_refused(one, 'a quamlith') and not is_refused(one, 'a zorbifex')
  # The same once more does not push out what a rollback returns to.
  one.use(folders['quam'])
  assert one.operator.roll_gate_back()['served'] == lax
  assert is_refused(one, 'a zorbifex') and not is_refused(one, 'a quamlith')
  assert one.count('gate', 'done') == 3
  assert one.count('gate/rollback', 'done') == 1


def said(text):
  return {'messages': [{'role': 'user', 'content': text}], 'max_tokens': 5}


def is_refused(one, text):
  (choice,) = moderated.send(one.server, **said(text))['choices']
  return choice['finish_reason'] == 'content_filter'


def test_thresholds_alone_are_another_version(one, folders):
  """The gate's file is the same."""
  strict, told = one.served(), one.use(folders['lax'])
  assert told['served']['gate'] == strict['gate']
  assert told['served']['id'] != strict['id']
  assert 'zorbifex' in moderated.streamed(one.server)[0]
  one.operator.roll_gate_back()
  assert 'zorbifex' not in moderated.streamed(one.server)[0]


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
  moderator = moderation.Moderator(HEAD)
  moderator.use(folders[begins])
  with operated(tmp_path, moderator) as one:
    reached, go_on = threading.Event(), threading.Event()
    rounds = iter(range(10**6))

    def pause():
      if next(rounds) == 8:
        reached.set()
        assert go_on.wait(60)

    one.server.engine.before_round = pause
    texts = []
    thread = threading.Thread(
      target=lambda: texts.append(moderated.streamed(one.server))
    )
    thread.start()
    assert reached.wait(60)
    one.use(folders[ends])
    go_on.set()
    thread.join()
    shows = {'lax': True, 'strict': False}
    for begun, (text, _) in (
      (begins, texts[0]),
      (ends, moderated.streamed(one.server)),
    ):
      assert ('zorbifex' in text) == shows[begun], (begun, text)


def test_what_is_bad_changes_nothing(one, folders, tmp_path):
  served = one.served()
  headless = write(tmp_path / 'headless', high=0.5, head=None)
  other = write(tmp_path / 'other', head=moderation.Head('head 2', world.NAMES))
  for body, message in (
    ({'folder': str(tmp_path / 'nowhere')}, 'nowhere'),
    ({'folder': str(headless)}, 'nothing would be answered'),
    ({'folder': str(other)}, 'head'),
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
  with operated(tmp_path, moderation.Moderator()) as one:
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
  """From the command to the answer, by the processor, while texts are read."""
  versions = [
    planted.write(tmp_path / f'{n}', planted.full_size(n)) for n in range(2)
  ]
  moderator = moderation.Moderator(planted.HEAD)
  moderator.use(versions[0])
  with operated(tmp_path, moderator) as one:
    taken = {'gate': [], 'rollback': []}
    for _ in range(3):  # Other work of this process only adds.
      for name, change in (
        ('gate', lambda: one.use(versions[1])),
        ('rollback', one.operator.roll_gate_back),
      ):
        begun = time.process_time(), time.perf_counter()
        change()
        ended = time.process_time(), time.perf_counter()
        taken[name].append(tuple(np.subtract(ended, begun)))
  for name, times in taken.items():
    processor, clock = np.min(times, axis=0)
    print(f'{name}: {processor:.4f} s of processor, {clock:.4f} s')
    assert processor < 1
