"""The log of blocked texts: bounded, private, whole after a kill."""

import json
import random
import stat
import threading

import pytest

from kaiju_jax.serving.safety import blocked
from kaiju_jax.storage import files
from tests.serving import planted

KEY = b'a secret of the server'
KEEP = 20


@pytest.fixture
def folder(tmp_path):
  return tmp_path / 'log'


@pytest.fixture
def log(folder):
  return blocked.Blocked(folder, KEY, keep=KEEP)


def add(log, text, stage='gate', tier='minor', dimension='zorb', owner='ada'):
  log.add(stage, tier, dimension, 0.9, 'v1', owner, text)


def texts(folder, keep=KEEP):
  return [record.text for record in blocked.read(folder, keep)]


def modes(folder):
  return {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


def test_records_come_back_in_order(log, folder):
  assert texts(folder) == []
  add(log, 'line\nbreak "quoted" é \ud800')
  add(log, 'second', stage='head', tier='adult', dimension='')
  first, second = blocked.read(folder)
  assert first.text == 'line\nbreak "quoted" é \ud800'
  assert (first.stage, first.tier, first.dimension) == ('gate', 'minor', 'zorb')
  assert (first.score, first.version) == (0.9, 'v1')
  assert (second.stage, second.tier) == ('head', 'adult')
  assert first.time <= second.time
  # A long text keeps its end; a score that is none is null.
  log.add('head', 'minor', '', None, 'v', 'o', 'a' * 10**6 + 'end')
  log.add('head', 'minor', '', float('nan'), 'v', 'o', 'text')
  *_, third, _ = texts(folder)
  assert third.endswith('aend') and len(third) == blocked.LONGEST
  lines = [
    json.loads(line)
    for path in sorted(folder.iterdir())
    for line in path.read_text().splitlines()
  ]
  assert [line['score'] for line in lines[2:]] == [None, None]


@pytest.mark.parametrize('seed', range(4))
def test_the_last_texts_are_kept_and_few_more_on_disk(
  folder, monkeypatch, seed
):
  """Whatever restarts, kills within a line and full disks there are."""
  rng, log = random.Random(seed), None
  wanted, torn = [], 0

  def full(file, data):
    raise OSError(28, 'No space left on device')

  for n in range(150):
    if log is None or rng.random() < 0.2:
      if log is not None and rng.random() < 0.5:
        with open(max(folder.iterdir()), 'ab') as file:
          file.write(b'{"time": 1.0, "sta')
        torn += 1
      log = blocked.Blocked(folder, KEY, keep=KEEP)
    if rng.random() < 0.1:
      with monkeypatch.context() as patch:
        patch.setattr(files, 'append', full)
        with pytest.raises(OSError):
          add(log, 'lost')
    add(log, f'text {n}')
    wanted = [*wanted, f'text {n}'][-KEEP:]
    assert texts(folder) == wanted
    on_disk = sum(len(x.read_bytes().splitlines()) for x in folder.iterdir())
    assert len(wanted) <= on_disk <= KEEP + 2 + torn


def test_damaged_lines_are_left_out_and_said(log, folder, caplog):
  for n in range(3):
    add(log, f'text {n}')
  first, second = sorted(folder.iterdir())
  first.write_text(first.read_text().replace('"tier"', '"teir"', 1))
  second.write_text('not json\n')
  blocked.Blocked(folder, KEY, keep=KEEP)
  assert texts(folder) == ['text 1']
  assert '2 lines are damaged' in caplog.text


def test_only_its_owner_can_read_it(log, folder):
  for n in range(5):
    add(log, f'{n}')
  assert stat.S_IMODE(folder.stat().st_mode) == 0o700
  assert modes(folder) == {0o600}
  # Somebody has copied it, say.
  for path in folder.iterdir():
    path.chmod(0o644)
  blocked.Blocked(folder, KEY, keep=KEEP)
  assert modes(folder) == {0o600}


def test_an_owner_is_known_by_the_key_alone(log, folder, tmp_path):
  for owner in 'ada', 'ada', 'bob', 'ada\ud800':
    add(log, 'text', owner=owner)
  owners = [record.owner for record in blocked.read(folder)]
  assert owners[0] == owners[1] == log.owner('ada')
  assert len(set(owners)) == 3 and {len(x) for x in owners} == {64}
  assert not any('ada' in path.read_text() for path in folder.iterdir())
  other = blocked.Blocked(tmp_path / 'other', KEY[::-1])
  assert other.owner('ada') != log.owner('ada')


def test_threads_lose_nothing(folder):
  log = blocked.Blocked(folder, KEY, keep=1_000)

  def write(name):
    for n in range(100):
      add(log, f'{name} {n}')
      if n % 25 == 0:
        assert len(texts(folder, 1_000)) > n

  threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  found = texts(folder, 1_000)
  assert len(found) == 400
  for name in range(4):
    mine = [text for text in found if text.startswith(f'{name} ')]
    assert mine == [f'{name} {n}' for n in range(100)]


def test_a_log_is_read_while_its_server_goes_on(log, folder):
  for n in range(33):
    add(log, f'text {n}')
  before = {path: path.read_bytes() for path in folder.iterdir()}
  assert texts(folder) == [f'text {n}' for n in range(13, 33)]
  here = blocked.read(folder, KEEP)
  assert next(here).text == 'text 13'
  last = max(before)
  last.write_bytes(before[last] + b'{"time": 1, "st')  # Not whole yet.
  found = blocked.read(folder, keep=3)
  assert next(found).text == 'text 30'
  for n in range(60):
    add(log, f'later {n}')  # Removes the files that are being read.
  assert [record.text for record in found] == ['text 31', 'text 32']
  assert [one.text for one in here] == [f'text {n}' for n in range(14, 33)]
  assert not before.keys() & set(folder.iterdir())


def replay(folder, gate, *names):
  policy = planted.policy(planted.stage(gate.version, *names), None)
  return blocked.replay(blocked.read(folder), gate, policy)


def test_a_replay_says_what_another_gate_changes(log, folder):
  """The other knows 'quamlith' and has forgotten 'zorbifex'."""
  add(log, 'a zorbifex')
  add(log, 'a quamlith', dimension='quam')
  add(log, 'zorbifex and quamlith')
  add(log, 'a reply with quamlith', stage='head')
  gate = planted.gate([planted.QUAM], ['quam'])
  found = replay(folder, gate, ['quam'])
  assert found.version == gate.version
  assert (found.rows, found.blocked, found.moved) == (3, 2, 1)
  assert [record.text for record in found.passed] == ['a zorbifex']
  assert found.others == 1


def test_a_replay_goes_by_the_tier(log, folder):
  """A score of 0.7 is over the minor's threshold and under the adult's."""
  gate = planted.gate()
  gate._bias_C[:] = -20 + 0.8473
  for tier in 'adult', 'minor':
    add(log, 'a zorbifex', tier=tier)
  (record,) = replay(folder, gate).passed
  assert record.tier == 'adult'


@pytest.mark.parametrize(
  'key, keep, message',
  [(b'x' * 15, KEEP, 'key: has 15 bytes'), (KEY, 0, 'keep=0')],
)
def test_refusals(folder, key, keep, message):
  with pytest.raises(ValueError, match=message):
    blocked.Blocked(folder, key, keep=keep)
  assert not folder.exists()
