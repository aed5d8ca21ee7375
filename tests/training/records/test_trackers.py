"""Trackers get each record once, over crashes, and none of them stops a run."""

import json
import os
import sqlite3
import struct
import sys
import time

import pytest

from kaiju_jax.training import config
from kaiju_jax.training.records import metrics
from kaiju_jax.training.records import trackers
from tests.training import toy


class Told:
  """A tracker that keeps what it is told, or fails at one place."""

  def __init__(self, fails=''):
    self.fails, self.told, self.calls = fails, [], []
    self.held, self.lost = set(), 0

  def open(self, folder, last_step):
    self._call('open')
    self.told = self.told[: len(self.told) - self.lost]
    self.held = set().union(*(trackers.keys_of(*one) for one in self.told))
    return self

  def append(self, step, values):
    self._call('append')
    self.told.append((step, dict(values)))

  def flush(self):
    self._call('flush')

  def close(self):
    self._call('close')

  def _call(self, name):
    self.calls.append(name)
    if name == self.fails:
      raise RuntimeError(f'{name} broke\nand more')


@pytest.fixture
def told(monkeypatch):
  """A tracker in the place of wandb."""
  one = Told()
  monkeypatch.setitem(trackers.OPENERS, 'wandb', one.open)
  return one


def _experiment(**settings):
  return toy.experiment(**{'trackers': 'wandb', **settings})


def _steps(told):
  """Returns [(step, whether it is an evaluation)]."""
  return [
    (step, any(name.startswith('eval_') for name in values))
    for step, values in told
  ]


def _recorded(folder):
  return _steps([(one['step'], one) for one in metrics.read(folder)])


def test_the_words_of_the_setting_have_trackers():
  assert tuple(trackers.OPENERS) == config.TRACKERS
  loop = config.LoopConfig(trackers='wandb,mlflow,wandb')
  assert config.trackers_of(loop) == ('wandb', 'mlflow')
  with pytest.raises(ValueError, match="'neptune' is not one of"):
    config.check_loop(config.LoopConfig(trackers='wandb,neptune'))


@pytest.mark.parametrize('place', ['open', 'append', 'flush', 'close'])
def test_a_tracker_that_fails_is_named_once_and_stops_nothing(
  tmp_path, told, capfd, place
):
  told.fails = place
  toy.train(tmp_path / 'run', _experiment())
  assert capfd.readouterr().err.count(f'wandb: {place} broke') == 1
  assert told.calls.count(place) <= 1 + (place == 'close')
  assert told.calls[-1] == ('open' if place == 'open' else 'close')
  toy.train(tmp_path / 'other', _experiment(trackers=''))
  assert _recorded(tmp_path / 'run') == _recorded(tmp_path / 'other')
  assert len(told.told) == {'open': 0, 'append': 0, 'flush': 4}.get(place, 15)


def test_one_that_fails_takes_no_other_with_it(tmp_path, monkeypatch):
  broken, whole = Told('append'), Told()
  monkeypatch.setitem(trackers.OPENERS, 'wandb', broken.open)
  monkeypatch.setitem(trackers.OPENERS, 'mlflow', whole.open)
  toy.train(tmp_path, _experiment(trackers='wandb,mlflow'))
  assert _steps(whole.told) == _recorded(tmp_path)
  assert broken.calls.count('append') == 1


def _crash_at(step):
  """A step that breaks down at a step."""
  inner = toy.make_step()
  calls = []

  def take(state, batch):
    calls.append(1)
    if len(calls) == step:
      raise RuntimeError('the machine')
    return inner(state, batch)

  return take


@pytest.mark.parametrize('lost', [0, 1, 2, 3, 7])
def test_steps_after_a_crash_are_told_once(tmp_path, told, lost):
  """Also where a tracker has lost its last records."""
  with pytest.raises(RuntimeError, match='the machine'):
    toy.train(tmp_path, _experiment(), step=_crash_at(8))
  # Checkpoint 4; the evaluation of step 5 and the records up to 6 are beyond.
  before = list(told.told)
  assert _steps(before)[-3:] == [(5, False), (5, True), (6, False)]
  told.lost = lost
  toy.train(tmp_path, _experiment())
  wanted = [
    x
    for x in _recorded(tmp_path)
    if x[0] > 4 or x in _steps(before[: -lost or None])
  ]
  assert _steps(told.told) == wanted
  kept = before[: len(before) - lost]
  assert told.told[: len(kept)] == kept


def test_a_tracker_that_joins_later_is_told_what_is_repeated(tmp_path, told):
  with pytest.raises(RuntimeError, match='the machine'):
    toy.train(tmp_path, _experiment(trackers=''), step=_crash_at(8))
  toy.train(tmp_path, _experiment())
  assert _steps(told.told) == [x for x in _recorded(tmp_path) if x[0] > 4]
  kept = json.loads((tmp_path / 'config.json').read_text())['loop']['trackers']
  assert kept == '', 'as the run began'


def test_a_missing_package_is_named_with_its_extra(
  tmp_path, monkeypatch, capfd
):
  for name in trackers.OPENERS:
    monkeypatch.setitem(sys.modules, name, None)
  monkeypatch.setitem(
    sys.modules, 'kaiju_jax.training.records.tensorboard', None
  )
  from kaiju_jax.training import records

  monkeypatch.delattr(records, 'tensorboard', raising=False)
  toy.train(tmp_path, _experiment(trackers=','.join(trackers.OPENERS)))
  said = capfd.readouterr().err
  for extra in 'report', 'trackio', 'wandb', 'mlflow':
    assert said.count(f"pip install 'kaiju_jax[{extra}]'") == 1
  assert not (tmp_path / 'tensorboard').exists()


# `make test` installs none of these packages, `make interchange` wandb.


def _crash_and_resume(folder, name):
  """Trains with a tracker, with a crash behind the checkpoint of step 4."""
  with pytest.raises(RuntimeError, match='the machine'):
    toy.train(folder, _experiment(trackers=name), step=_crash_at(8))
  toy.train(folder, _experiment(trackers=name))
  return [(one['step'], one) for one in metrics.read(folder)]


def _assert_told(found, wanted):
  """Checks [(step, values)] against the records, but for what time says."""
  assert _steps(found) == _steps(wanted)
  for (_, values), (_, record) in zip(found, wanted, strict=True):
    for name in record.keys() - {'step', *metrics.TIMING}:
      assert values[name] == pytest.approx(record[name]), name


def test_trackio(tmp_path, monkeypatch):
  folder = tmp_path / 'trackio'
  monkeypatch.setenv('TRACKIO_DIR', str(folder))
  # The package reads its folder when it is imported.
  for name in [x for x in sys.modules if x.split('.')[0] == 'trackio']:
    monkeypatch.delitem(sys.modules, name)
  pytest.importorskip('trackio', reason='extra trackio')
  wanted = _crash_and_resume(tmp_path / 'run', 'trackio')
  (file,) = folder.glob('*.db')
  with sqlite3.connect(file) as base:
    rows = base.execute(
      'SELECT run_name, step, metrics FROM metrics ORDER BY id'
    )
    rows = rows.fetchall()
  assert len({name for name, *_ in rows}) == 1
  _assert_told([(step, json.loads(one)) for _, step, one in rows], wanted)


def test_mlflow(tmp_path, monkeypatch):
  mlflow = pytest.importorskip('mlflow', reason='extra mlflow')
  monkeypatch.delenv('MLFLOW_TRACKING_URI', raising=False)
  wanted = _crash_and_resume(tmp_path / 'run', 'mlflow')
  uri = f'sqlite:///{tmp_path}/run/mlflow.db'
  client = mlflow.MlflowClient(uri, uri)
  number = client.get_experiment_by_name('kaiju').experiment_id
  (run,) = client.search_runs([number])
  assert run.info.status == 'FINISHED'
  assert run.data.params['config.loop.steps'] == '12'
  for name in 'loss', 'eval_norm':
    history = client.get_metric_history(run.info.run_id, name)
    found = [(one.step, one.value) for one in history]
    assert found == [(s, one[name]) for s, one in wanted if name in one]


def test_wandb_offline(tmp_path, monkeypatch):
  pytest.importorskip('wandb', reason='extra wandb')
  for name in [x for x in os.environ if x.startswith('WANDB_')]:
    monkeypatch.delenv(name)
  wanted = _crash_and_resume(tmp_path / 'run', 'wandb')
  files = [*(tmp_path / 'run' / 'wandb').glob('offline-run-*/*.wandb')]
  assert len(files) == 2 and len({file.name for file in files}) == 1
  merged = {}  # wandb makes one row of a step's record and evaluation.
  for step, record in wanted:
    merged.setdefault(step, {}).update(record)
  # Its own process may write a while after the run's end.
  deadline = time.monotonic() + 60
  while len(found := [*trackers.read_wandb(tmp_path / 'run')]) < len(merged):
    assert time.monotonic() < deadline, found
    time.sleep(0.1)
  assert [step for step, _ in found] == list(merged)
  for step, values in found:
    for name in merged[step].keys() - {'step', *metrics.TIMING}:
      assert values[name] == pytest.approx(merged[step][name]), (step, name)


def test_wandb_is_read_over_its_blocks_and_as_far_as_it_was_written(tmp_path):
  pytest.importorskip('wandb', reason='extra wandb')
  from wandb.proto import wandb_internal_pb2

  data, ends = bytearray(7), []
  for step in range(900):
    record = wandb_internal_pb2.Record()
    for name, value in ('_step', step), ('x' * (40 + 70 * step % 900), 1):
      record.history.item.add(key=name, value_json=str(value))
    rest, kind = record.SerializeToString(), 1
    while rest or kind == 1:
      left = 32768 - len(data) % 32768
      if left < 7:
        data += bytes(left)
        continue
      part, rest = rest[: left - 7], rest[left - 7 :]
      kind = (2 if rest else 1) if kind == 1 else (3 if rest else 4)
      data += struct.pack('<IHB', 0, len(part), kind) + part
      if kind in (1, 4):
        break
    ends.append(len(data))
  assert len(data) > 9 * 32768
  file = tmp_path / 'wandb' / 'offline-run-1' / 'run-1.wandb'
  file.parent.mkdir(parents=True)
  for size in (len(data), len(data) - 1, 7 * 32768, 32768 + 3, 20, 0):
    file.write_bytes(data[:size])
    steps = [step for step, _ in trackers.read_wandb(tmp_path)]
    assert steps == [step for step, end in enumerate(ends) if end <= size]
