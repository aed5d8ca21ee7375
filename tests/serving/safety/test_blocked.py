"""The log of blocked texts: bounded, private, whole after a kill."""

import json
import stat
import threading

import pytest

from kaiju_jax.serving.safety import blocked
from kaiju_jax.storage import files
from tests.serving import planted

KEY = b'a secret of the server'
POLICY = planted.policy(planted.stage('g'), None)


@pytest.fixture
def log(tmp_path):
  log = blocked.Blocked(tmp_path / 'log', KEY, keep=20)
  yield log
  log.close()


def add(log, text, stage='gate', tier='minor', dimension='zorb', owner='ada'):
  log.add(stage, tier, dimension, 0.9, 'v1', owner, text)


def texts(log):
  return [record.text for record in log.records()]


def test_records_come_back_in_order(log):
  assert texts(log) == [] and len(log) == 0
  add(log, 'line\nbreak "quoted" é \ud800')
  add(log, 'second', stage='head', tier='adult', dimension='')
  first, second = log.records()
  assert first.text == 'line\nbreak "quoted" é \ud800'
  assert (first.stage, first.tier, first.dimension) == ('gate', 'minor', 'zorb')
  assert (first.score, first.version) == (0.9, 'v1')
  assert (second.stage, second.tier) == ('head', 'adult')
  assert first.time <= second.time


def test_the_last_texts_are_kept_and_few_more_on_disk(log, tmp_path):
  for n in range(105):
    add(log, f'text {n}')
    on_disk = sum(
      len(path.read_text().splitlines())
      for path in (tmp_path / 'log').iterdir()
    )
    assert min(n + 1, 20) <= on_disk <= 22
  assert texts(log) == [f'text {n}' for n in range(85, 105)]
  assert len(log) == 20


def test_it_goes_on_after_a_restart(log, tmp_path):
  for n in range(33):
    add(log, f'text {n}')
  log.close()
  again = blocked.Blocked(tmp_path / 'log', KEY, keep=20)
  assert texts(again) == [f'text {n}' for n in range(13, 33)]
  add(again, 'text 33')
  assert texts(again) == [f'text {n}' for n in range(14, 34)]
  again.close()


def test_a_kill_in_a_line_loses_that_line_alone(log, tmp_path):
  add(log, 'whole')
  log.close()
  (path,) = (tmp_path / 'log').iterdir()
  with open(path, 'ab') as file:
    file.write(b'{"time": 1.0, "sta')
  again = blocked.Blocked(tmp_path / 'log', KEY, keep=20)
  add(again, 'next')
  assert texts(again) == ['whole', 'next']
  again.close()


def test_damaged_lines_are_left_out_and_said(log, tmp_path, caplog):
  for n in range(3):
    add(log, f'text {n}')
  log.close()
  first, second = sorted((tmp_path / 'log').iterdir())
  first.write_text(first.read_text().replace('"tier"', '"teir"', 1))
  second.write_text('not json\n')
  again = blocked.Blocked(tmp_path / 'log', KEY, keep=20)
  assert texts(again) == ['text 1']
  assert '2 lines are damaged' in caplog.text


def test_only_its_owner_can_read_it(log, tmp_path):
  folder = tmp_path / 'log'

  def modes():
    return {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}

  for n in range(5):
    add(log, f'{n}')
  assert stat.S_IMODE(folder.stat().st_mode) == 0o700
  assert modes() == {0o600}
  log.close()
  # Somebody has copied it, say.
  for path in folder.iterdir():
    path.chmod(0o644)
  blocked.Blocked(folder, KEY, keep=20)
  assert modes() == {0o600}


def test_an_owner_is_known_by_the_key_alone(log, tmp_path):
  for owner in 'ada', 'ada', 'bob', 'ada\ud800':
    add(log, 'text', owner=owner)
  owners = [record.owner for record in log.records()]
  assert owners[0] == owners[1] == log.owner('ada')
  assert len(set(owners)) == 3 and {len(x) for x in owners} == {64}
  assert not any(
    'ada' in path.read_text() for path in (tmp_path / 'log').iterdir()
  )
  other = blocked.Blocked(tmp_path / 'other', KEY[::-1])
  assert other.owner('ada') != log.owner('ada')


def test_a_long_text_keeps_its_end(log):
  add(log, 'a' * 10**6 + 'end')
  (text,) = texts(log)
  assert text.endswith('aend') and len(text) == blocked.LONGEST


def test_what_cannot_be_written_is_not_there(log, tmp_path, monkeypatch):
  add(log, 'first')

  def full(file, data):
    raise OSError(28, 'No space left on device')

  with monkeypatch.context() as patch:
    patch.setattr(files, 'append', full)
    with pytest.raises(OSError):
      add(log, 'lost')
  add(log, 'second')
  assert texts(log) == ['first', 'second']


def test_threads_lose_nothing(tmp_path):
  log = blocked.Blocked(tmp_path / 'log', KEY, keep=1_000)

  def write(name):
    for n in range(100):
      add(log, f'{name} {n}')
      if n % 25 == 0:
        assert len(texts(log)) > n

  threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  found = texts(log)
  assert len(found) == 400
  for name in range(4):
    mine = [text for text in found if text.startswith(f'{name} ')]
    assert mine == [f'{name} {n}' for n in range(100)]
  log.close()


def test_reading_outlasts_the_removal_of_files(log):
  for n in range(20):
    add(log, f'text {n}')
  reading = log.records()
  found = [next(reading).text]
  for n in range(60):
    add(log, f'later {n}')
  found += [record.text for record in reading]
  assert found == [f'text {n}' for n in range(20)]


def test_a_replay_says_what_another_gate_changes(log):
  """The other knows 'quamlith' and has forgotten 'zorbifex'."""
  add(log, 'a zorbifex')
  add(log, 'a quamlith', dimension='quam')
  add(log, 'zorbifex and quamlith')
  add(log, 'a reply with quamlith', stage='head')
  gate = planted.gate([planted.QUAM], ['quam'])
  policy = planted.policy(planted.stage(gate.version, ['quam']), None)
  replay = blocked.replay(log.records(), gate, policy)
  assert replay.version == gate.version
  assert (replay.rows, replay.blocked, replay.moved) == (3, 2, 1)
  assert [record.text for record in replay.passed] == ['a zorbifex']
  assert replay.others == 1


def test_a_replay_goes_by_the_tier(log):
  """A score of 0.7 is over the minor's threshold and under the adult's."""
  gate = planted.gate()
  gate._bias_C[:] = -20 + 0.8473
  policy = planted.policy(planted.stage(gate.version), None)
  for tier in 'adult', 'minor':
    add(log, 'a zorbifex', tier=tier)
  (record,) = blocked.replay(log.records(), gate, policy).passed
  assert record.tier == 'adult'


def test_refusals(tmp_path):
  with pytest.raises(ValueError, match='key: has 15 bytes'):
    blocked.Blocked(tmp_path / 'log', b'x' * 15)
  with pytest.raises(ValueError, match='keep=0'):
    blocked.Blocked(tmp_path / 'log', KEY, keep=0)
  assert not (tmp_path / 'log').exists()


def test_a_score_that_is_none_is_null(log, tmp_path):
  for score in None, float('nan'):
    log.add('head', 'minor', '', score, 'v', 'o', 'text')
  (path,) = (tmp_path / 'log').iterdir()
  for line in path.read_text().splitlines():
    assert json.loads(line)['score'] is None


def test_a_log_is_read_while_its_server_goes_on(log, tmp_path):
  for n in range(33):
    add(log, f'text {n}')
  folder = tmp_path / 'log'
  before = {path: path.read_bytes() for path in folder.iterdir()}
  whole = [record.text for record in blocked.read(folder, keep=20)]
  assert whole == texts(log) == [f'text {n}' for n in range(13, 33)]
  last = max(before)
  last.write_bytes(before[last] + b'{"time": 1, "st')  # Not whole yet.
  found = blocked.read(folder, keep=3)
  assert next(found).text == 'text 30'
  for n in range(40):
    add(log, f'later {n}')  # Removes the files that are being read.
  assert [record.text for record in found] == ['text 31', 'text 32']
  assert not before.keys() & set(folder.iterdir())
