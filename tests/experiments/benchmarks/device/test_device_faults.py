"""Whatever ends a case, the others go on, and what was done is kept."""

import subprocess

import pytest

from experiments.benchmarks.device import order
from kaiju_jax.storage import files
from tests.experiments.benchmarks.device import commands


def _faults(names, fault):
  return '--faults=' + ','.join(f'{name}:{fault}' for name in names)


@pytest.mark.slow
def test_an_exception_in_every_slice_is_survived(tmp_path):
  done = commands.run(
    tmp_path, '--most_cases=1', _faults(order.SLICES, 'raise')
  )
  assert done.returncode == 0, done.stderr
  for name in order.SLICES:
    found = files.read_json(tmp_path / f'{name}.json')
    ((case, outcome),) = found['cases'].items()
    assert outcome['status'] == 'failed'
    assert outcome['problem'] == 'RuntimeError: a planted fault'
    assert f'{name}: {case}: failed: RuntimeError' in done.stdout
  page = (tmp_path / 'tables' / 'kernels.md').read_text()
  assert page.count('failed: RuntimeError: a planted fault') == 7
  # A failed case is finished, unless it is asked for again.
  again = commands.run(tmp_path, '--most_cases=1', '--slices=ceilings')
  assert 'ceilings: finished before' in again.stdout
  again = commands.run(
    tmp_path, '--most_cases=1', '--slices=ceilings', '--retry'
  )
  assert commands.statuses(tmp_path, 'ceilings') == {'rates': 'done'}


def _assert_killed_and_survived(tmp_path, names):
  done = commands.run(
    tmp_path,
    '--most_cases=1',
    f'--slices={",".join(names)}',
    _faults(names, 'kill'),
  )
  assert done.returncode == 0, done.stderr
  for name in names:
    (outcome,) = files.read_json(tmp_path / f'{name}.json')['cases'].values()
    assert outcome['status'] == 'failed'
    assert outcome['problem'] == 'the process was ended by SIGKILL'


def test_a_killed_process_costs_its_case(tmp_path):
  _assert_killed_and_survived(tmp_path, ['ceilings', 'startup'])


@pytest.mark.slow
def test_a_killed_process_in_every_slice_is_survived(tmp_path):
  _assert_killed_and_survived(tmp_path, list(order.SLICES))


def test_a_case_that_hangs_is_ended(tmp_path):
  flags = '--slices=startup', '--faults=startup:hang', '--case_s=1'
  done = commands.run(tmp_path, *flags)
  assert done.returncode == 0, done.stderr
  found = files.read_json(tmp_path / 'startup.json')
  assert found['running'] is None
  (outcome,) = found['cases'].values()
  assert outcome['problem'].endswith('s: it hung, or see its last lines')
  assert 'most recent call first' in done.stderr


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done_and_the_next_run_goes_on(tmp_path):
  slices = '--slices=ceilings,squinch'
  done = commands.run(tmp_path, slices, '--faults=squinch:interrupt')
  assert done.returncode == 130
  assert 'Written:' in done.stdout and 'Not finished: ' in done.stdout
  assert commands.statuses(tmp_path, 'ceilings') == {'rates': 'done'}
  cut_off = files.read_json(tmp_path / 'squinch.json')
  assert cut_off['running'] == 'tiny' and not cut_off['cases']
  again = commands.run(tmp_path, slices)
  assert again.returncode == 0, again.stderr
  assert 'ceilings: finished before' in again.stdout
  assert commands.statuses(tmp_path, 'squinch') == {'tiny': 'done'}


def test_what_a_killed_runner_started_ends_with_it(tmp_path):
  process = subprocess.Popen(
    commands.words(tmp_path, '--slices=startup', '--faults=startup:hang'),
    cwd=commands.ROOT,
    env=commands.environment(),
    stdout=subprocess.PIPE,
    text=True,
  )
  assert '== startup: 1 of 1' in process.stdout.readline()
  process.kill()
  # Its child holds the other end, so that this ends when the child does.
  assert process.stdout.read() == ''
  process.stdout.close()
  process.wait()


def test_a_cpu_is_refused_without_a_rehearsal(tmp_path):
  words = commands.words(tmp_path, '--slices=ceilings')
  words.remove('--dry')
  done = subprocess.run(
    words,
    cwd=commands.ROOT,
    env=commands.environment(),
    capture_output=True,
    text=True,
  )
  assert done.returncode == 1
  assert 'only a CPU is at hand, where times mean nothing: --dry' in done.stderr
