"""An array of Slurm runs commands, saves before its limit, and goes on."""

from concurrent import futures
import itertools
import json
import os
import pathlib
import signal
import sys
import types

import pytest

from kaiju_jax.experiments.configs import sweep
from kaiju_jax.experiments.studies import needle
from kaiju_jax.experiments.studies import recall
from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.experiments.studies.ablation import ablate
from kaiju_jax.experiments.studies.sweeps import rates
from kaiju_jax.experiments.studies.sweeps import scaling
from kaiju_jax.experiments.studies.sweeps import study
from kaiju_jax.gates import settings as gate_settings
from kaiju_jax.runs import grid
from kaiju_jax.runs import pool
from kaiju_jax.runs import slurm
from kaiju_jax.runs import start
from kaiju_jax.storage import files
from kaiju_jax.training import workdir
from kaiju_jax.training.records import metrics
from tests import toys as tests_toys
from tests.experiments import toys
from tests.experiments.studies.sweeps import planted

REPOSITORY = pathlib.Path(__file__).parents[2]
ARMS, SEEDS = ('plain', 'better'), (0, 1)


def command(folder: pathlib.Path, name: str, source: str) -> pool.Command:
  words = sys.executable, '-c', source
  return pool.Command(name, words, folder / name / 'log')


def test_what_would_be_submitted(tmp_path):
  commands = [command(tmp_path, x, '') for x in 'abc']
  options = {'minutes': 9, 'partition': 'a', 'option': ('qos=x=y', 'exclusive')}
  made = slurm.parameters(slurm.Resources(**options), 2, 7)
  assert slurm.describe(commands, made) == (
    'sbatch --array=0-2%7 --time=9 --signal=USR2@120 --partition=a'
    ' --gpus-per-node=2 --requeue --qos=x=y --exclusive'
  )
  made = slurm.parameters(slurm.Resources(), 0)
  plain = 'sbatch --array=0-0 --time=240 --signal=USR2@120 --requeue'
  assert slurm.describe(commands[:1], made) == plain
  assert '=' not in slurm.describe([], made)


@pytest.mark.parametrize('devices, gpus', [(None, 1), (1, 1), (0, 0)])
def test_every_grid_is_an_array_and_a_dry_run_shows_it(
  tmp_path, capsys, devices, gpus
):
  options = {'launch': 'slurm', 'dry_run': True, 'devices_per_job': devices}
  options |= {'out': str(tmp_path / 'out'), 'seeds': (0, 1), 'jobs': 3}
  asked = {'responder': gate_settings.Responder(), 'arms': ('full',)}
  studies = {
    lambda: needle.run(settings_lib.Needle(arms=('full',), **options)): 2,
    lambda: recall.ask_trained(settings_lib.Recall(**asked, **options)): 2,
    lambda: study.RateGrid(**options).run(rates, sweep.get_config()): 96,
    lambda: study.Scaling(**options).run(scaling, sweep.get_config()): 34,
  }
  for start_study, runs in studies.items():
    with pytest.raises(SystemExit) as caught:
      start_study()
    assert not caught.value.code
    first, *rest = capsys.readouterr().out.splitlines()
    assert (
      f'{runs} of {runs} runs to do, as sbatch --array=0-{runs - 1}%3 '
      in (first)
    )
    assert ('--gpus-per-node=1 ' in first) == gpus
    assert len(set(rest)) == runs
  assert not (tmp_path / 'out').exists()


def test_a_dry_run_of_what_is_finished_writes_nothing(
  monkeypatch, tmp_path, capsys
):
  monkeypatch.setattr(grid, 'is_done', lambda *_: True)
  options = {'dry_run': True, 'out': str(tmp_path / 'out'), 'seeds': (0, 1)}
  needle.run(settings_lib.Needle(arms=('full',), **options))
  asked = {'responder': gate_settings.Responder(), 'arms': ('full',)}
  recall.ask_trained(settings_lib.Recall(**asked, **options))
  assert capsys.readouterr().err.count('2 of 2 runs: finished before.') == 2
  # A sweep measures on: later runs of it may be missing.
  measured = types.SimpleNamespace(measure=lambda *_: None)
  study.RateGrid(**options).run(measured, sweep.get_config())
  assert not (tmp_path / 'out').exists()


def test_a_sweep_is_an_array_with_a_task_per_run(monkeypatch, tmp_path):
  """Its tasks have the names of runs, so that none is submitted twice."""
  done = planted.Jobs(monkeypatch, lambda experiment: float(experiment.seed))
  submitted = []

  def submit(commands, folder, made):
    submitted.append((folder, [command.name for command in commands]))
    return dict.fromkeys(commands)

  monkeypatch.setattr(slurm, 'submit', submit)
  monkeypatch.setattr(slurm, 'watch', lambda jobs: pool.run([*jobs], None))
  monkeypatch.setattr(slurm, 'executor', lambda folder, made: None)
  how = slurm.Launch(launch='slurm', jobs=1)
  for counts in (1, 9):
    jobs = grid.cross(
      lambda _: sweep.get_config(), 'a', range(counts), tmp_path
    )
    # What a task of an earlier array trains is waited for.
    held = workdir.open_workdir(jobs[-1].folder, jobs[-1].experiment)
    with futures.ThreadPoolExecutor(1) as other:
      other.submit(held.__enter__).result()
      found = grid.losses(dict(enumerate(jobs)), how, tmp_path / 'root')
      other.submit(held.__exit__, None, None, None).result()
    assert found == dict(enumerate(map(float, range(counts))))
  names = [f'a seed {seed}' for seed in range(9)]
  assert submitted[0] == (tmp_path / 'root' / 'slurm', names[:1])
  assert [*map(sorted, [x for _, x in submitted])] == [names[:1], names[1:]]
  assert len(done.folders) == 9


@pytest.fixture
def submitit():
  return pytest.importorskip('submitit', reason='the extra slurm is missing')


def test_what_is_missing_is_named(submitit, monkeypatch, tmp_path):
  monkeypatch.setenv('PATH', str(tmp_path))
  with pytest.raises(ValueError, match=r'--launch=slurm: .*srun'):
    slurm.submit([command(tmp_path, 'a', '')], tmp_path / 'slurm', {})
  monkeypatch.setitem(sys.modules, 'submitit', None)
  with pytest.raises(ValueError, match=r'pip install .*\[slurm\]'):
    slurm.executor(tmp_path, {})


@pytest.fixture
def cluster(submitit, tmp_path, monkeypatch):
  """A Slurm that keeps what is submitted, and accounts what a file says."""
  programs = {
    'srun': '',
    'sbatch': 'cp "$1" "$0.$(ls $0* | wc -l)"; [ -e $0.ok ] || exit 3\n'
    'echo "Submitted batch job 7$(ls $0* | wc -l)"',
    'sacct': 'echo "JobID|State|NodeList"; cat "$0.says"',
  }
  for name, text in programs.items():
    (tmp_path / name).write_text(f'#!/bin/sh\n{text}\n')
    (tmp_path / name).chmod(0o755)
  monkeypatch.setenv('PATH', str(tmp_path), prepend=os.pathsep)
  (tmp_path / 'sbatch.ok').touch()

  def account(says: str) -> None:
    (tmp_path / 'sacct.says').write_text(says)
    submitit.SlurmJob.watcher.clear()

  account('')
  return account


def test_what_waits_or_runs_is_not_submitted_again(cluster, tmp_path):
  made = slurm.parameters(slurm.Resources(option=('account=lab',)), 2, 5)
  commands = [command(tmp_path, x, '') for x in 'abc']
  folder = tmp_path / 'slurm'

  def submit(commands):
    found = slurm.submit(commands, folder, made)
    scripts = sorted(tmp_path.glob('sbatch.[0-9]'))
    ids = [found[one].job_id for one in commands]
    return ids, [script.read_text().splitlines() for script in scripts]

  ids, [script] = submit(commands)
  assert ids == ['73_0', '73_1', '73_2']
  words = 'array=0-2%3 time=240 signal=USR2@120 gpus-per-node=2 account=lab'
  for word in (*words.split(), 'open-mode=append', 'requeue'):
    assert f'#SBATCH --{word}' in script
  cluster('73_0|RUNNING|n\n73_1|CANCELLED by 0|n\n73_2|REQUEUED|n\n')
  more = [*commands, command(tmp_path, 'd', '')]
  ids, [_, script] = submit(more)
  assert ids == ['73_0', '74_0', '73_2', '74_1']
  assert '#SBATCH --array=0-1%2' in script
  assert [len(submit(more)[1]), submit(more)[0]] == [2, ids]
  (tmp_path / 'sbatch.ok').unlink()
  cluster('74_0|FAILED|n\n')
  with pytest.raises(ValueError, match='--launch=slurm: '):
    submit(more)
  held = json.loads((folder / 'jobs.json').read_text())
  assert [held[x] for x in 'abcd'] == ids


def test_a_job_that_runs_is_not_waited_for(monkeypatch, tmp_path):
  """`result` waits, and Ctrl-C would have to wait for it."""
  monkeypatch.setattr(slurm, '_WATCH_S', 0)
  jobs = {
    command(tmp_path, name, ''): types.SimpleNamespace(
      done=iter(done).__next__, result=lambda: 5
    )
    for name, done in (('late', (False, False, True)), ('soon', (True,)))
  }
  found = [event and event[:2] for event in slurm.watch(jobs)]
  assert found == [('soon', 5), None, None, ('late', 5), None]


def use_local(submitit, monkeypatch, seconds: float) -> None:
  """Makes submitit run here; a turn is signalled after some seconds."""

  def executor(folder, made):
    found = submitit.LocalExecutor(folder / '%j', max_num_timeout=9)
    found.update_parameters(timeout_min=2.0, signal_delay_s=120 - seconds)
    return found

  monkeypatch.setattr(slurm, 'executor', executor)
  monkeypatch.setattr(slurm, '_WATCH_S', 0.1)
  monkeypatch.setattr(submitit.LocalJob, '_results_timeout_s', 1)
  monkeypatch.setenv('PYTHONPATH', str(REPOSITORY), prepend=os.pathsep)


SAVES = """
import os, signal, sys, time
os.kill(os.getpid(), signal.SIGUSR2)  # As some clusters do.
def save(*_):
  print('saved', flush=True)
  sys.exit(7)
signal.signal(signal.SIGTERM, save)
print('ready', flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_how_tasks_end(submitit, monkeypatch, tmp_path):
  """By themselves, by scancel's SIGTERM, and with their task."""
  use_local(submitit, monkeypatch, 110)
  sources = {
    'good': 'print("fine")',
    'bad': 'raise SystemExit(3)',
    'saves': SAVES,
    'killed': 'import os, time; os.kill(os.getppid(), 9); time.sleep(1)',
  }
  commands = [command(tmp_path, *one) for one in sources.items()]
  jobs = slurm.submit(commands, tmp_path / 'slurm', {})
  statuses, cancelled, log = {}, False, commands[2].log
  for event in slurm.watch(jobs):
    if event is not None:
      statuses[event.name] = event.status
    if not cancelled and log.exists() and 'ready\n' in log.read_text():
      os.kill(int(jobs[commands[2]].job_id), signal.SIGTERM)
      cancelled = True
  assert statuses == {'good': 0, 'bad': 3, 'saves': 7, 'killed': 1}
  texts = {one.name: one.log.read_text() for one in commands}
  assert texts['good'].endswith('fine\n')
  assert texts['saves'].count('ready\n') == texts['saves'].count('saved\n') == 1
  assert 'has not produced any output' in texts['killed']


@pytest.mark.slow
def test_a_run_that_trains_is_requeued_and_resumes(
  submitit, monkeypatch, texts, tmp_path
):
  """submitit's own variable makes SIGTERM the signal before the limit."""
  use_local(submitit, monkeypatch, 110)
  monkeypatch.setenv('SUBMITIT_PREEMPT_SIGNAL', 'TERM')
  made = tests_toys.tiny_experiment(texts, steps=3000)
  made.loop.log_every, made.loop.checkpoint_every = 50, 500
  with workdir.open_workdir(tmp_path / 'run', start.resolve(made)) as folder:
    pass
  words = sys.executable, '-m', 'kaiju_jax.runs.grid', str(folder)
  run = pool.Command('run', words, folder / 'log.txt')
  jobs, sent = slurm.submit([run], tmp_path / 'slurm', {}), False
  for _ in slurm.watch(jobs):
    # Before its first record the run may not yet catch a signal.
    records = folder / metrics.FILE
    if not sent and records.exists() and records.stat().st_size:
      os.kill(int(jobs[run].job_id), signal.SIGTERM)
      sent = True
  assert files.read_json(folder / 'result.json')['steps'] == 3000
  log = run.log.read_text()
  assert log.count('$ ') == 2 and log.count('going on from step') == 1


@pytest.mark.slow
def test_a_report_of_runs_that_were_requeued_is_that_of_local_runs(
  submitit, monkeypatch, tmp_path
):
  monkeypatch.chdir(tmp_path)
  pathlib.Path('arms.py').write_text(toys.ARMS)
  pathlib.Path('fake_train.py').write_text(toys.TRAIN)
  use_local(submitit, monkeypatch, 8)
  monkeypatch.setenv('PYTHONPATH', str(tmp_path), prepend=os.pathsep)
  monkeypatch.setattr(sys, 'argv', ['ablate'])
  reports = {}
  for launch in ('here', 'slurm'):
    if launch == 'slurm':
      monkeypatch.setenv('FAKE', 'patient')
    named = {'config': 'arms.py', 'out': 'root', 'module': 'fake_train'}
    chosen = {'seeds': SEEDS, 'arms': ARMS, 'jobs': 2, 'launch': launch}
    assert ablate.run(settings_lib.Ablate(**named, **chosen), []) == 0
    runs = pathlib.Path('root').rename(launch)
    reports[launch] = (runs / 'report.md').read_text()
    for arm, seed in itertools.product(ARMS, SEEDS):
      folder = runs / arm / f'seed{seed}'
      steps = [one['step'] for one in metrics.read(folder)]
      assert steps == [1, 2, 3, 4, 4]  # The last one is its evaluation.
      starts = (folder / 'starts').read_text()
      assert starts == 'x' * (1 + (launch == 'slurm'))
  assert reports['slurm'] == reports['here']
