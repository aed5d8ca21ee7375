"""The whole road, with the real model: stop, resume, refuse."""

import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from experiments.configs import tiny
from kaiju_jax.runs import train as run
from tests import runs

ROOT = pathlib.Path(__file__).parents[2]
STEPS = 200


@pytest.fixture
def folder(tmp_path):
  """Three small files of text, one of which is held out."""
  (tmp_path / 'texts').mkdir()
  for n in range(12):
    (tmp_path / 'texts' / f'{n}.txt').write_text(f'{n} green bottles. ' * 60)
  return tmp_path


def command(folder, workdir):
  overrides = {
    'model.d_model': 16,
    'model.layout': 'L0 L0 G2',
    'model.num_heads': 2,
    'model.head_dim': 8,
    'model.d_ff': 32,
    'model.max_length': 64,
    'model.window': 8,
    'data.path': folder / 'texts',
    'data.length': 32,
    'data.batch': 2,
    'data.held_out': 0.2,
    'data.evaluated_rows': 4,
    'loop.steps': STEPS,
    'loop.log_every': 1,
    'loop.evaluate_every': 0,
    'loop.checkpoint_every': 25,
  }
  return [
    sys.executable,
    '-m',
    'experiments.train',
    '--config=experiments/configs/tiny.py',
    f'--workdir={workdir}',
    *(f'--config.{name}={value}' for name, value in overrides.items()),
  ]


def test_a_terminated_run_resumes_to_the_same_records(folder):
  whole, stopped = folder / 'whole', folder / 'stopped'
  subprocess.run(command(folder, whole), cwd=ROOT, check=True, timeout=300)
  process = subprocess.Popen(
    command(folder, stopped), cwd=ROOT, stderr=subprocess.PIPE, text=True
  )
  deadline = time.monotonic() + 240
  while not (stopped / 'metrics.jsonl').exists() or not runs.records(stopped):
    assert time.monotonic() < deadline
    time.sleep(0.01)
  process.send_signal(signal.SIGTERM)
  _, said = process.communicate(timeout=120)
  assert process.returncode == 0
  assert 'stopped and saved at step' in said
  assert 0 < len(runs.records(stopped)) < STEPS
  done = subprocess.run(
    command(folder, stopped),
    cwd=ROOT,
    check=True,
    timeout=300,
    capture_output=True,
    text=True,
  )
  assert 'going on from step' in done.stderr
  assert f'done, {STEPS} steps' in done.stderr
  assert runs.records(stopped) == runs.records(whole)
  assert len(runs.records(whole)) == STEPS + 1
  assert 0 < runs.records(whole)[-1]['eval_bits_per_byte'] < 10


def changed(**fields):
  experiment = tiny.get_config()
  for name, value in fields.items():
    *rooms, field = name.split('__')
    holder = experiment
    for room in rooms:
      holder = getattr(holder, room)
    setattr(holder, field, value)
  return experiment


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'data__path': '/nowhere/at/all'}, 'nowhere'),
    ({'data__length': 1024}, 'data.length=1024: rows are longer'),
    ({'data__task': 'haystack'}, "data.task='haystack'"),
    ({'model__window': 0}, 'window=0'),
    ({'model__head_dim': 33}, 'model.head_dim=33: must be even'),
    ({'model__layout': 'L0 G1 L2 L1'}, 'of another kind'),
    ({'optimizer__schedule': 'linear'}, "optimizer.schedule='linear'"),
    ({'loop__steps': 0}, 'loop.steps=0'),
    ({'seed': -1}, 'seed=-1: must lie in 0…4294967295'),
    ({'seed': 2**32}, 'seed=4294967296: must lie in 0…4294967295'),
  ],
)
def test_bad_settings_are_refused_and_leave_nothing(tmp_path, fields, message):
  with pytest.raises((ValueError, OSError), match=message):
    run.train(changed(**fields), str(tmp_path / 'work'))
  assert not (tmp_path / 'work').exists()


def test_a_workdir_of_another_experiment_is_refused(tmp_path):
  from kaiju_jax.training import workdir

  with workdir.opened(tmp_path / 'work', tiny.get_config()):
    pass
  with pytest.raises(ValueError, match=r'model\.window: 64 in the workdir, 32'):
    run.train(changed(model__window=32), str(tmp_path / 'work'))


@pytest.mark.parametrize(
  'workdir, message',
  [
    ('/proc/nope', '^/proc/nope: the folder cannot be made: No such file'),
    ('/proc', '^workdir /proc: cannot be written to: No such file'),
    ('', '^workdir .*: must name a folder'),
  ],
)
def test_a_folder_that_will_not_do_is_refused_before_the_work(
  monkeypatch, workdir, message
):
  monkeypatch.setattr(run, '_train', None)
  with pytest.raises((ValueError, OSError), match=message):
    run.train(tiny.get_config(), workdir)


def test_a_run_leaves_no_thread_of_its_data_behind(folder, monkeypatch):
  from kaiju_jax.data import loader
  from kaiju_jax.training import loop

  closed = []
  monkeypatch.setattr(loader.Batches, 'close', lambda self: closed.append(self))
  monkeypatch.setattr(loop, 'train', lambda *_, batches, **__: next(batches))
  experiment = changed(data__path=str(folder / 'texts'), data__held_out=0.2)
  experiment.model.layout, experiment.model.d_model = 'L0', 16
  run.train(experiment, str(folder / 'work'))
  assert len(closed) == 1


def test_data_that_is_not_text_leaves_no_folder(folder):
  (folder / 'texts' / 'a.txt').write_bytes(b'\xff\xfe')
  experiment = changed(data__path=str(folder / 'texts'))
  with pytest.raises(ValueError, match=r'a\.txt: not text'):
    run.train(experiment, str(folder / 'work' / 'a'))
  assert not (folder / 'work').exists()


def test_a_misspelt_override_is_refused():
  done = subprocess.run(
    [
      sys.executable,
      '-m',
      'experiments.train',
      '--config=experiments/configs/tiny.py',
      '--workdir=nowhere',
      '--config.model.windw=3',
    ],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=60,
    env=os.environ,
  )
  assert done.returncode
  assert 'windw' in done.stderr
  assert not (ROOT / 'nowhere').exists()


def test_every_config_of_the_arms_passes_the_checks():
  from experiments.configs import ablation
  from experiments.configs import needle

  for module in (tiny, ablation, needle):
    for arm in module.ARMS:
      run.check(module.get_config(arm))
      assert dataclasses.is_dataclass(module.get_config(arm))
    with pytest.raises(ValueError, match="arm='nothing'"):
      module.get_config('nothing')


def test_an_abort_waits_for_no_thread():
  # What an ordinary exit would wait for: a thread in the middle of a save.
  program = (
    'import threading, time\n'
    'from experiments import run\n'
    'threading.Thread(target=time.sleep, args=(60,)).start()\n'
    'with run.abortable():\n'
    '  raise KeyboardInterrupt\n'
  )
  done = subprocess.run(
    [sys.executable, '-c', program],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=30,
  )
  assert (done.returncode, done.stderr) == (130, 'Aborted.\n')


@pytest.mark.parametrize(
  'argument, message',
  [
    ('--config.model.windw=3', "no field 'windw'. Did you mean 'window'"),
    ('--config.sead=3', "Experiment has no field 'sead'. Did you mean 'seed'"),
    ('-config.model.window.x=3', "int has no field 'x'"),
  ],
)
def test_an_unknown_field_is_refused(argument, message):
  with pytest.raises(ValueError, match=re.escape(message)):
    run.check_fields(['train', '--config=a.py', argument])


def test_known_fields_and_other_flags_pass():
  run.check_fields(
    ['train', '--config.model.quantization.kv=none', '--workdir=config.x', 'x']
  )


def test_an_unknown_field_is_one_line(folder):
  done = subprocess.run(
    [*command(folder, folder / 'w'), '--config.model.windw=3'],
    cwd=ROOT,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 1
  assert done.stderr.startswith('error: --config.model.windw=3: ')
  assert len(done.stderr.splitlines()) == 1
  assert not (folder / 'w').exists()
