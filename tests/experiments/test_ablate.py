"""Arms × seeds end to end, with a trainer that only writes metrics."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.experiments import toys

REPOSITORY = pathlib.Path(__file__).parents[2]
_SECONDS = 250  # That a command may take on a busy machine.


@pytest.fixture
def place(tmp_path, monkeypatch):
  """A folder with the config and the trainer, which `python -m` finds."""
  (tmp_path / 'arms.py').write_text(toys.ARMS)
  (tmp_path / 'fake_train.py').write_text(toys.TRAIN)
  monkeypatch.setenv('PYTHONPATH', f'{tmp_path}{os.pathsep}{REPOSITORY}')
  return tmp_path


def command(place: pathlib.Path, *flags: str) -> list[str]:
  return [
    sys.executable,
    '-m',
    'experiments.ablate',
    f'--config={place / "arms.py"}',
    f'--out={place / "root"}',
    '--module=fake_train',
    *flags,
  ]


def call(place: pathlib.Path, *flags: str) -> subprocess.CompletedProcess:
  return subprocess.run(
    command(place, *flags), capture_output=True, text=True, timeout=_SECONDS
  )


def starts(place: pathlib.Path) -> dict[str, int]:
  """How often each run was started."""
  root = place / 'root'
  return {
    str(path.parent.relative_to(root)): len(path.read_text())
    for path in sorted(root.glob('*/*/starts'))
  }


def test_report_isolation_and_resumption(place):
  done = call(place, '--seeds=0,1', '--jobs=2')
  assert done.returncode == 1, done.stderr
  report = (place / 'root' / 'report.md').read_text()

  assert report.startswith('# Does the fake arm learn?')
  losses = toys.rows(report, 'Training loss, mean of all 4 steps')
  assert losses['plain'][:3] == ['2', '10.5000', '0.7071']
  # -.1 and -.2: mean -.15, and t(.975, 1) = 12.7062 times .0707107 / √2.
  # With one degree of freedom the noncentral t has λ = 16.334.
  assert losses['better'] == [
    '2',
    '10.3500',
    '0.6364',
    'plain (2)',
    '-0.1500 (-0.7853 … +0.4853)',
    '-1.43 % (-7.48 % … +4.62 %)',
    '0.205',
    '0.8167',
  ]
  assert losses['broken'][:3] == ['0, 1 diverged', '–', '–']
  assert toys.rows(report, 'bits, last evaluation')['plain'][1] == '21.0000'

  assert report.count('failed (exit 1)') == 1
  assert report.count('diverged at step 3') == 1
  assert 'diverged at step 3, ' in done.stdout
  log = place / 'root' / 'broken' / 'seed0' / 'log.txt'
  assert 'a layer fell off' in log.read_text()
  assert '`broken/seed0/log.txt`' in report
  # The terminal has the error itself, not only where it is.
  assert re.search(
    r'broken seed 0: failed \(exit 1\).*\n +RuntimeError: a layer fell off',
    done.stdout,
  )
  assert 'fake_train' in report and '--config.seed=1' in report
  assert toys.rows(report, 'Environment')['jax'] == ['1.2.3']
  for figure in re.findall(r'\]\((\w+\.png)\)', report):
    assert (place / 'root' / figure).read_bytes().startswith(b'\x89PNG')
  assert report.count('.png)') == 2

  # The same again runs only what failed; a third seed only adds itself.
  call(place, '--seeds=0,1')
  flags = '--arms=better', '--compilation_cache=false'
  call(place, '--seeds=0,1,2', *flags)
  # The report is of all that the folder holds.
  report = (place / 'root' / 'report.md').read_text()
  losses = toys.rows(report, 'Training loss, mean of all 4 steps')
  found = {arm: row[0] for arm, row in losses.items()}
  assert found == {'plain': '3', 'better': '3', 'broken': '0, 1 diverged'}
  counts = starts(place)
  assert len(counts) == 8 and counts.pop('broken/seed0') == 2
  assert set(counts.values()) == {1}
  used = [
    (place / 'root' / 'better' / f'seed{seed}' / 'cache').read_text()
    for seed in (1, 2)
  ]
  assert used == ['None', 'false']

  # Runs of other settings are listed, and not compared.
  flags = '--arms=plain', '--config.loop.steps=5', '--seeds=7'
  assert call(place, *flags).returncode == 0
  report = (place / 'root' / 'report.md').read_text()
  losses = toys.rows(report, 'Training loss, mean of all 5 steps')
  assert {arm: row[0] for arm, row in losses.items() if row[0] != '0'} == {
    'plain': '1',
    'broken': '0, 1 diverged',
  }
  assert report.count('finished, with another loop.steps') == 6


def test_a_later_grid_adds_cells_and_trains_no_other_again(place, monkeypatch):
  monkeypatch.setenv('FAKE', 'grid')
  grid = '--arms=plain', '--grid=model.d_ff=8,16', '--seeds=0,1', '--jobs=4'
  done = call(place, *grid, '--grid=data.batch=1,2')
  assert done.returncode == 0, done.stderr
  root = place / 'root'
  kept = [*root.glob('*/seed*/checkpoints/*'), *root.glob('*/*/metrics.jsonl')]
  before = {path: path.stat().st_mtime_ns for path in kept}
  assert len(before) == 2 * 2 * 2 * 2
  done = call(place, *grid, '--grid=data.batch=1,4')
  assert done.returncode == 0, done.stderr
  assert '4 of 8 runs to do' in done.stdout
  assert {path: path.stat().st_mtime_ns for path in kept} == before
  assert len(starts(place)) == 12 and set(starts(place).values()) == {1}
  # The report is of all cells, against the first values.
  report = (root / 'report.md').read_text()
  found = toys.rows(report, 'Training loss, mean of all 4 steps')
  counts = {(x, row[0]) for x, row in found.items() if x.startswith('plain')}
  assert counts == {
    (f'plain+model.d_ff={d_ff}+data.batch={batch}', '2')
    for d_ff in (8, 16)
    for batch in (1, 2, 4)
  }
  row = found['plain+model.d_ff=16+data.batch=4']
  assert row[3:5] == [
    'plain+model.d_ff=8+data.batch=1 (2)',
    '+0.0560 (+0.0560 … +0.0560)',
  ]
  # The grid is full: two main effects and an interaction, each with two levels
  # of the batch beside the first.
  effect = 'data.batch: 1 → 4 × model.d_ff: 8 → 16'
  assert found[effect][0] == '+0.0240 (+0.0240 … +0.0240)'
  told = json.loads((root / 'report.json').read_text())
  assert 'Training loss' in (root / 'report.html').read_text()
  assert told['title'] == 'Does the fake arm learn?'


@pytest.mark.slow
def test_a_run_cut_short_goes_on(place):
  flags = ('--seeds=0', '--arms=plain', '--config.loop.steps=6')
  assert call(place, *flags).returncode == 0
  path = place / 'root' / 'plain' / 'seed0' / 'metrics.jsonl'
  lines = path.read_text().splitlines(keepends=True)
  path.write_text(''.join(lines[:3]) + lines[3][:9])
  (path.parent / 'checkpoints' / '6').rmdir()
  assert call(place, *flags).returncode == 0
  assert path.read_text() == ''.join(lines)
  assert starts(place) == {'plain/seed0': 2}


@pytest.mark.slow
def test_a_run_killed_before_its_last_save_is_not_finished(place, monkeypatch):
  flags = ('--seeds=0', '--arms=plain')
  monkeypatch.setenv('FAKE', 'killed')
  done = call(place, *flags)
  assert done.returncode == 1
  assert 'plain seed 0: failed (SIGKILL)' in done.stdout
  path = place / 'root' / 'plain' / 'seed0' / 'metrics.jsonl'
  # All steps are on record, the evaluation and the checkpoint are missing.
  records = [json.loads(line) for line in path.read_text().splitlines()]
  assert [record['step'] for record in records] == [1, 2, 3, 4]
  done = call(place, *flags)
  assert done.returncode == 0
  assert '1 of 1 runs to do' in done.stdout
  assert 'eval_bits' in path.read_text().splitlines()[-1]


@pytest.mark.slow
def test_ctrl_c_stops_the_runs_and_the_same_command_goes_on(place, monkeypatch):
  monkeypatch.setenv('FAKE', 'patient')
  flags = '--seeds=0', '--arms=better', '--jobs=2', '--config.loop.steps=20'
  metrics = [
    place / 'root' / arm / 'seed0' / 'metrics.jsonl'
    for arm in ('plain', 'better')
  ]
  process = subprocess.Popen(
    command(place, *flags), stdout=subprocess.PIPE, text=True
  )
  deadline = time.monotonic() + _SECONDS
  while not all(p.exists() and p.stat().st_size for p in metrics):
    assert time.monotonic() < deadline and process.poll() is None
    time.sleep(0.05)
  process.send_signal(signal.SIGINT)
  output, _ = process.communicate(timeout=_SECONDS)
  assert process.returncode == 1
  assert 'Interrupted. The same command goes on.' in output
  report = (place / 'root' / 'report.md').read_text()
  runs = toys.rows(report, 'Runs').values()
  assert [row[1] for row in runs] == ['stopped'] * 2
  reached = [len(path.read_text().splitlines()) for path in metrics]
  assert all(0 < steps < 20 for steps in reached)

  monkeypatch.delenv('FAKE')
  assert call(place, *flags).returncode == 0
  for path in metrics:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [r['step'] for r in records] == [*range(1, 21), 20]
  assert set(starts(place).values()) == {2}
