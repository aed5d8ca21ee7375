"""A contender that ends its process, or loses the device, is left out."""

import contextlib
import json
import os
import time
import types

import pytest

from experiments.benchmarks.device import book as book_lib
from experiments.benchmarks.device import child
from experiments.benchmarks.device import order
from experiments.benchmarks.device import runner
from experiments.benchmarks.device import setting as setting_lib
from kaiju_jax.kernels import benchmark
from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import timing


class Died(BaseException):
  """Stands for a signal that ends the process."""


def _good():
  return 1


def _dies():
  raise Died


def _fails():
  raise RuntimeError('CUDA_ERROR_ILLEGAL_ADDRESS')


def _measure(setting, runs):
  contenders = {
    name: benchmark.Contender(lambda made, run=run: run())
    for name, run in runs.items()
  }
  subject = benchmark.Subject('toy', 'toy', 0, 0, lambda: 0, contenders)
  with dispatch.interpret():
    rows = benchmark.measure([subject], setting.repeats)
  problems = {x.implementation: x.problem for x in rows if x.problem}
  found = sorted(x.implementation for x in rows if x.spread)
  return {'found': found, 'problems': problems}


@pytest.fixture
def play(tmp_path, monkeypatch):
  """Returns how to run cases of `squinch` as the runner and its children do."""
  loaded = types.SimpleNamespace(measure=_measure)
  monkeypatch.setattr(child, 'load', lambda name: loaded)
  monkeypatch.setattr(setting_lib, 'device', lambda setting: {'device': 'X'})
  started = []

  def run_child(task, limit):
    assert limit > 0
    # A child reads what the runner writes.
    fields = json.loads(json.dumps(vars(task) | {'setting': None}))
    started.append(task)
    try:
      return child.work(child.Task(**fields | {'setting': task.setting}))
    except Died:
      return -11

  monkeypatch.setattr(runner, '_run_child', run_child)

  def run(cases, **fields):
    del started[:]
    loaded.cases = lambda setting: {
      name: (1, runs) for name, runs in cases.items()
    }
    setting = setting_lib.Setting(str(tmp_path), **fields)
    runner.run(['squinch'], setting, 1e4, say=lambda line: None)
    return book_lib.Book(tmp_path, 'squinch'), len(started)

  run.loaded = loaded
  return run


def _cases(book):
  return {
    name: (each['record']['found'], each['record']['problems'])
    for name, each in book.cases.items()
  }


def test_the_case_runs_again_without_what_ended_its_process(play):
  runs = {'bad': _dies, 'good': _good}
  book, started = play(dict.fromkeys('abcd', runs))
  why = 'at a, the process was ended by SIGSEGV'
  both = f'{why}; at b, the process was ended by SIGSEGV'
  told = 'RuntimeError: left out: '
  assert _cases(book) == {
    'a': (['good'], {'bad': told + why}),
    'b': (['good'], {'bad': told + both}),
    # Two are enough: it does not begin there.
    'c': (['good'], {'bad': told + both}),
    'd': (['good'], {'bad': told + both}),
  }
  assert started == 3 and book.data['running'] is book.data['trial'] is None


def test_a_lost_device_costs_the_contender_that_lost_it(play, monkeypatch):
  is_lost = []

  def loses():
    is_lost.append(True)
    _fails()

  def answers():
    return not is_lost or bool(is_lost.clear())

  monkeypatch.setattr(timing, 'answers', answers)
  book, started = play({'a': {'good': _good, 'bad': loses, 'next': _good}})
  (found, problems) = _cases(book)['a']
  assert found == ['good', 'next'] and started == 2
  assert list(problems) == ['bad']
  assert 'at a, the device was lost: RuntimeError: CUDA_ERR' in problems['bad']


def test_a_failure_on_a_sound_device_costs_one_process_nothing(play):
  book, started = play(
    {case: {'bad': _fails, 'good': _good} for case in 'ab'},
  )
  assert started == 1 and not book.data['ended']
  for found, problems in _cases(book).values():
    assert found == ['good']
    assert problems == {'bad': 'RuntimeError: CUDA_ERROR_ILLEGAL_ADDRESS'}


def test_a_case_that_loses_the_device_outside_a_trial_fails(play, monkeypatch):
  answered = iter([False])
  monkeypatch.setattr(timing, 'answers', lambda: next(answered))
  book, started = play({'a': None, 'b': {'good': _good}})
  assert book.cases['a']['status'] == book_lib.FAILED
  assert book.cases['b']['status'] == book_lib.DONE and started == 2


def test_a_retry_lets_all_begin_again(play):
  runs = {'bad': _dies}
  cases = {'a': runs, 'b': None, 'c': {'good': _good}}
  book, _ = play(cases)
  assert book.cases['b']['status'] == book_lib.FAILED
  assert book.data['ended']
  book, started = play(cases | {'b': {'bad': _good}}, retry=True)
  assert book.cases['b']['record']['found'] == ['bad']
  assert started == 1 and not book.data['ended']


def test_a_retry_runs_each_failed_case_once(play, monkeypatch):
  cases = {'a': None, 'b': None, 'c': {'good': _good}}
  play(cases)
  tried = []

  def measure(setting, what):
    tried.append(what)
    return _measure(setting, what)

  apart = order.SLICES['squinch']._replace(apart=True)
  monkeypatch.setitem(order.SLICES, 'squinch', apart)
  play.loaded.measure = measure
  book, started = play(cases, retry=True)
  assert tried == [None, None] and started == 2
  assert [book.cases[x]['status'] for x in 'abc'] == [
    'failed',
    'failed',
    'done',
  ]


def test_a_trial_that_is_cut_off_by_ctrl_c_is_not_blamed(tmp_path):
  book = book_lib.Book(tmp_path, 'squinch')
  book.begin('a')
  book.note_trial('good')
  # The runner was ended, too, so that nobody blamed it.
  book = book_lib.Book(tmp_path, 'squinch')
  book.begin('a')
  assert not book.refusals('a') and book.data['trial'] is None


def test_a_watch_knows_what_runs_and_forgets_it():
  noted = []
  with timing.watch(noted.append, {'c': 'it hung'}):
    for name in 'a', 'b', 'c':
      with contextlib.suppress(RuntimeError), timing.trial(name):
        _fails()
    times = timing.spreads({'a': _good}, 3)
  assert noted == ['a', None, 'b', None, 'a', None] and times['a'].rounds == 3
  with timing.trial('c'):
    assert len(noted) == 6


def test_the_device_here_answers():
  assert timing.answers()


def test_a_case_hangs_after_four_times_its_estimate():
  setting = setting_lib.Setting('out')
  assert [setting.limit(seconds) for seconds in (1, 110)] == [120, 440]
  assert setting_lib.Setting('out', dry=True).limit(1) == 600
  assert setting_lib.Setting('out', case_s=7).limit(110) == 7


def test_children_see_one_gpu_and_the_cpu(monkeypatch):
  memory = 'XLA_CLIENT_MEM_FRACTION', 'XLA_PYTHON_CLIENT_MEM_FRACTION'
  for name in 'CUDA_VISIBLE_DEVICES', 'JAX_PLATFORMS', *memory:
    monkeypatch.delenv(name, raising=False)
  added = {'CUDA_VISIBLE_DEVICES': '0', memory[0]: '0.92'}
  assert runner._environment() == added | os.environ
  # JAX refuses both names at once.
  monkeypatch.setenv(memory[1], '0.5')
  assert memory[0] not in runner._environment()
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '3')
  for given, expected in ('cuda', 'cuda,cpu'), ('cpu', 'cpu'), ('', ''):
    monkeypatch.setenv('JAX_PLATFORMS', given)
    found = runner._environment()
    assert found['CUDA_VISIBLE_DEVICES'] == '3'
    assert found['JAX_PLATFORMS'] == expected


def test_a_rehearsal_has_no_most_and_a_run_has(tmp_path, monkeypatch):
  tasks = []

  def run_child(task, limit):
    tasks.append(task)
    return child.DONE

  monkeypatch.setattr(runner, '_run_child', run_child)
  end = time.time() + 1000
  for dry in True, False:
    setting = setting_lib.Setting(str(tmp_path), dry=dry)
    runner._run_group(['squinch'], setting, end, print)
  rehearsal, run = tasks
  assert rehearsal.seconds['squinch'] > 900
  assert run.seconds == {'squinch': order.SLICES['squinch'].most}
