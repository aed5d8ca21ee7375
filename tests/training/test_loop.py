"""Restore, step, evaluate, save: a run that stops goes on as if it had not."""

import contextlib
import os
import re
import resource
import signal
import time

import jax
import numpy as np
import pytest

from kaiju_jax.experiments.benchmarks.parts import compilations
from kaiju_jax.training import checkpoint
from kaiju_jax.training import workdir
from kaiju_jax.training.records import metrics
from tests.training import toy


def _records(folder):
  """The records without the fields that measure time."""
  return [
    {k: v for k, v in record.items() if k not in metrics.TIMING}
    for record in metrics.read(folder)
  ]


def _assert_same_run(folder, state, other_folder, other_state):
  jax.tree.map(np.testing.assert_array_equal, state, other_state)
  assert _records(folder) == _records(other_folder)


class Signalled:
  """A step that is sent a signal while step `at` runs.

  Args:
    at: the step, counted from 1; 0 for none.
    number: the signal.
    times: how often it is sent.
    action: what is done at the step instead.
  """

  def __init__(self, at, number=signal.SIGTERM, times=1, action=None):
    self._step = toy.make_step()
    self._at, self._number, self._times = at, number, times
    self._action = action
    self.calls = 0

  def __call__(self, state, batch):
    self.calls += 1
    if self.calls == self._at:
      if self._action is not None:
        self._action()
      else:
        for _ in range(self._times):
          os.kill(os.getpid(), self._number)
    return self._step(state, batch)


def test_a_run_learns_and_writes_down_what_the_config_asks(tmp_path):
  experiment = toy.experiment(
    steps=23, log_every=5, evaluate_every=10, checkpoint_every=9
  )
  state = toy.train(tmp_path, experiment)
  assert int(state.step) == 23
  records = metrics.read(tmp_path)
  steps = [(r['step'], 'loss' in r, 'eval_norm' in r) for r in records]
  assert steps == [
    (5, True, False),
    (10, True, False),
    (10, False, True),
    (15, True, False),
    (20, True, False),
    (20, False, True),
    (23, False, True),
  ]
  assert [r['tokens'] for r in records] == [4 * r['step'] for r in records]
  assert (tmp_path / 'environment.json').exists()
  saved = {path.name for path in (tmp_path / 'checkpoints').iterdir()}
  assert saved == {'18', '23'}
  assert workdir.holds_checkpoint(tmp_path, 23)
  assert not workdir.holds_checkpoint(tmp_path, 22)


def test_records_hold_the_values_of_their_own_step(tmp_path):
  seen = []
  inner = toy.make_step()

  def step(state, batch):
    state, values = inner(state, batch)
    seen.append({name: float(v) for name, v in values.items()})
    return state, values

  toy.train(tmp_path, step=step, evaluate=None)
  assert len(seen) == 12
  for record, values in zip(_records(tmp_path), seen, strict=True):
    assert record == values | {
      'step': record['step'],
      'tokens': 4 * record['step'],
    }


@pytest.mark.parametrize(
  ('at', 'number'),
  [
    (1, signal.SIGTERM),
    (4, signal.SIGTERM),  # A checkpoint is due.
    (5, signal.SIGINT),  # An evaluation is due.
    (7, signal.SIGTERM),
  ],
)
def test_a_signal_saves_and_the_same_command_goes_on(
  tmp_path, capfd, at, number
):
  whole = toy.train(tmp_path / 'whole')
  stopped = toy.train(tmp_path / 'cut', step=Signalled(at, number))
  assert int(stopped.step) == at
  text = capfd.readouterr().err
  assert f'stopped and saved at step {at} of 12' in text
  # A worker of pytest-xdist has no command that could be typed.
  again = r'same\s+(command goes on from there:\n  \S|program goes on)'
  assert re.search(again, text)
  jax.tree.map(
    np.testing.assert_array_equal,
    stopped,
    checkpoint.load(tmp_path / 'cut', toy.initial())[0],
  )

  state = toy.train(tmp_path / 'cut')
  assert f'going on from step {at} of 12' in capfd.readouterr().err
  _assert_same_run(tmp_path / 'cut', state, tmp_path / 'whole', whole)


def test_work_after_the_last_checkpoint_is_done_again_not_twice(tmp_path):
  def break_down():
    raise RuntimeError('the machine')

  whole = toy.train(tmp_path / 'whole')
  with pytest.raises(RuntimeError, match='the machine'):
    toy.train(tmp_path / 'cut', step=Signalled(8, action=break_down))
  assert _records(tmp_path / 'cut')[-1]['step'] > 4
  state = toy.train(tmp_path / 'cut')
  _assert_same_run(tmp_path / 'cut', state, tmp_path / 'whole', whole)


def test_a_second_ctrl_c_aborts_without_a_save(tmp_path):
  with pytest.raises(KeyboardInterrupt):
    toy.train(tmp_path, step=Signalled(3, signal.SIGINT, times=2))
  assert not list((tmp_path / 'checkpoints').iterdir())
  assert int(toy.train(tmp_path).step) == 12


def _files(folder):
  return {
    path: path.read_bytes()
    for path in folder.rglob('*')
    if path.is_file() and path.name != 'lock'
  }


def test_a_finished_run_says_so_and_does_nothing(tmp_path, capfd):
  whole = toy.train(tmp_path)
  before = _files(tmp_path)
  step = Signalled(at=0)
  capfd.readouterr()
  state = toy.train(tmp_path, step=step, evaluate=lambda _: 1 / 0)
  assert step.calls == 0
  assert 'complete, all 12 steps' in capfd.readouterr().err
  jax.tree.map(np.testing.assert_array_equal, state, whole)
  assert _files(tmp_path) == before


def test_step_evaluate_save_in_that_order(tmp_path):
  calls = []

  class Batches(toy.Batches):
    def get_state(self):
      calls.append('save')
      return super().get_state()

  inner = toy.make_step()

  def step(state, batch):
    calls.append('step')
    return inner(state, batch)

  def evaluate(state):
    calls.append('evaluate')
    return toy.evaluate(state)

  experiment = toy.experiment(steps=2, evaluate_every=1, checkpoint_every=1)
  toy.train(
    tmp_path, experiment, step=step, evaluate=evaluate, batches=Batches()
  )
  assert calls == ['step', 'evaluate', 'save'] * 2


def test_steady_steps_evaluations_and_saves_compile_nothing(tmp_path):
  counts, inner = [], toy.make_step()

  def step(state, batch):
    counts.append(len(seen))
    return inner(state, batch)

  experiment = toy.experiment(steps=24, evaluate_every=4, checkpoint_every=4)
  with compilations.record() as seen:
    toy.train(tmp_path, experiment, step=step)
  assert counts[0] < counts[4], 'the counter counts nothing'
  assert counts[5] == counts[-1] == len(seen)


def test_throughput_leaves_the_compilation_out(tmp_path):
  toy.train(tmp_path, evaluate=None)
  rates = [r.get('tokens_per_second') for r in metrics.read(tmp_path)]
  assert rates[0] is None and all(rate > 0 for rate in rates[1:])


@contextlib.contextmanager
def _limit():
  """Hands out what makes writes past 100,000 bytes of a file fail."""
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  try:
    yield lambda: resource.setrlimit(
      resource.RLIMIT_FSIZE, (100_000, limits[1])
    )
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_while_saving_loses_nothing(tmp_path):
  width = 50_000
  folder = tmp_path / 'cut'
  whole = toy.train(tmp_path / 'whole', width=width)

  def fill():
    while not (folder / 'checkpoints' / '4').exists():
      time.sleep(0.01)
    set_limit()

  with _limit() as set_limit, pytest.raises(checkpoint.SaveError) as error:
    toy.train(folder, step=Signalled(6, action=fill), width=width)
  text = str(error.value)
  assert text.startswith('Saving step 8 failed: File too large.')
  assert 'of step 4,' in text
  assert _records(folder)[:9] == _records(tmp_path / 'whole')[:9]
  state = toy.train(folder, width=width)
  _assert_same_run(folder, state, tmp_path / 'whole', whole)


def test_a_failed_save_is_noticed_before_the_next_is_due(tmp_path, monkeypatch):
  inner, calls = toy.make_step(), []

  def filling(state, batch):
    calls.append(1)
    if len(calls) == 15:
      set_limit()
    if len(calls) == 22:
      while saving[0].is_saving_in_progress():
        time.sleep(0.001)
    return inner(state, batch)

  def noted(self, *arguments):
    saving.append(self._manager)
    save(self, *arguments)

  saving, save = [], checkpoint.Checkpoints.save
  monkeypatch.setattr(checkpoint.Checkpoints, 'save', noted)
  experiment = toy.experiment(steps=60, checkpoint_every=20)
  failed = pytest.raises(checkpoint.SaveError, match='Saving step 20 failed')
  with _limit() as set_limit, failed:
    toy.train(tmp_path, experiment, step=filling, width=50_000)
  assert len(calls) <= 22


def test_a_damaged_latest_checkpoint_costs_its_steps_only(tmp_path, capfd):
  whole = toy.train(tmp_path / 'whole')
  folder = tmp_path / 'cut'
  toy.train(folder, step=Signalled(9))
  (folder / 'checkpoints' / '9' / 'state' / 'manifest.ocdbt').unlink()
  capfd.readouterr()
  state = toy.train(folder)
  text = capfd.readouterr().err
  assert 'Checkpoint 9 cannot be read (' in text
  assert 'going on from checkpoint 8' in text
  _assert_same_run(folder, state, tmp_path / 'whole', whole)


@pytest.mark.parametrize(
  ('name', 'value'),
  [
    ('steps', 0),
    ('log_every', 0),
    ('evaluate_every', -1),
    ('checkpoint_every', 0),
    ('checkpoints_kept', 0),
  ],
)
def test_settings_that_mean_nothing_are_named(tmp_path, name, value):
  with pytest.raises(ValueError, match=rf'loop\.{name}={value}: must be at'):
    toy.train(tmp_path / 'run', toy.experiment(**{name: value}))
  assert not (tmp_path / 'run').exists()


def test_data_that_ends_is_named_with_the_step(tmp_path):
  with pytest.raises(ValueError, match='ended before step 6'):
    toy.train(tmp_path, batches=toy.Batches(end=5))
