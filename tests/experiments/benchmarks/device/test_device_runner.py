"""Time, turns, faults and lost devices, on a clock that cases turn themselves.

A child is a call in this process, and slices are two whose cases are made up.
"""

import contextlib
import json
import os
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

A, B = 'ceilings', 'squinch'


class Died(BaseException):
  """Stands for a signal that ends the process."""


def good():
  return 1


def dies():
  raise Died


def fails():
  raise RuntimeError('CUDA_ERROR_ILLEGAL_ADDRESS')


class World:
  """Slices whose cases take seconds of its clock, or try contenders."""

  def __init__(self, folder, monkeypatch):
    self.now, self.done, self.left, self.started = 0.0, [], [], []
    self.cases = {A: {}, B: {}}
    self.folder, self.monkeypatch = folder, monkeypatch
    clock = types.SimpleNamespace(time=lambda: self.now)
    for module in runner, child:
      monkeypatch.setattr(module, 'time', clock)
    monkeypatch.setattr(child, 'load', self._load)
    monkeypatch.setattr(setting_lib, 'device', lambda setting: {'device': 'X'})
    monkeypatch.setattr(runner, '_run_child', self._start)
    self.limit(most=1000)

  def limit(self, **fields):
    """Changes both slices' limits."""
    for name in A, B:
      slice_ = order.SLICES[name]._replace(**fields)
      self.monkeypatch.setitem(order.SLICES, name, slice_)

  def run(self, seconds=1000, slices=(A, B), **fields):
    """Runs the command; returns the cases that were measured, in turn."""
    self.done, self.started = [], []
    setting = setting_lib.Setting(str(self.folder), **fields)
    runner.run(slices, setting, seconds, say=lambda line: None)
    return ' '.join(self.done)

  def race(self, **cases):
    """Runs cases of contenders; returns what was found, and the problems."""
    self.cases[B] = {name: (1, (name, runs)) for name, runs in cases.items()}
    self.run(slices=[B])
    done = self.book(B).records()
    return {name: (x['found'], x['problems']) for name, x in done.items()}

  def book(self, name):
    return book_lib.Book(self.folder, name)

  def statuses(self, name):
    return {case: x['status'] for case, x in self.book(name).cases.items()}

  def _load(self, name):
    found = self.cases[name]
    if callable(found):
      found()
    return types.SimpleNamespace(cases=lambda _: found, measure=self._measure)

  def _measure(self, setting, case):
    name, what = case
    self.left.append(timing.time_left())
    self.done.append(name)
    if isinstance(what, int):
      self.now += what
      return {}
    contenders = {
      name: benchmark.Contender(lambda made, run=run: run())
      for name, run in what.items()
    }
    subject = benchmark.Subject('toy', 'toy', 0, 0, lambda: 0, contenders)
    with dispatch.interpret():
      rows = benchmark.measure([subject], setting.repeats)
    return {
      'found': sorted(x.implementation for x in rows if x.spread),
      'problems': {x.implementation: x.problem for x in rows if x.problem},
    }

  def _start(self, task, limit):
    assert limit > 0 and len(self.started) < 20
    self.started.append(task)
    # A child reads what the runner writes.
    fields = json.loads(json.dumps(vars(task) | {'setting': None}))
    try:
      return child.work(child.Task(**fields | {'setting': task.setting}))
    except Died:
      return -11


@pytest.fixture
def world(tmp_path, monkeypatch):
  return World(tmp_path, monkeypatch)


def _cases(names, seconds, estimate=None):
  guess = seconds if estimate is None else estimate
  return {name: (guess, (name, seconds)) for name in names.split()}


def test_no_case_begins_that_does_not_fit(world, capsys):
  world.cases |= {A: _cases('a1 a2 a3', 6), B: _cases('b1', 1)}
  assert world.run(10) == 'a1 b1'
  skipped = {'a1': 'done', 'a2': 'skipped', 'a3': 'skipped'}
  assert world.statuses(A) == skipped
  assert world.book(A).cases['a1']['seconds'] == 6
  assert world.book(A).data['device'] == {'device': 'X'}
  line = 'ceilings: a2: skipped: needs about 6 s, 4 s are left'
  assert line in capsys.readouterr().out
  # With more time, a later run does them.
  assert world.run(100) == 'a2 a3'


@pytest.mark.parametrize('apart', [False, True])
def test_a_slice_at_its_most_lets_the_next_begin_first(world, apart):
  world.cases |= {A: _cases('a1 a2 a3 a4', 4), B: _cases('b1 b2', 4)}
  world.limit(most=10, apart=apart)
  assert world.run(100) == 'a1 a2 b1 b2 a3 a4'


def test_slices_that_were_not_seen_come_first(world):
  world.cases |= {A: _cases('a1 a2', 4), B: _cases('b1 b2', 4)}
  assert world.run(5) == 'a1'
  assert world.run(9) == 'b1 b2'
  assert world.run(5) == 'a2'
  assert world.run(5) == ''


def test_the_first_case_corrects_the_estimates(world):
  world.cases |= {A: _cases('a1 a2 a3', 4, estimate=1), B: {}}
  # Without it a3, of a second, would begin at 8 of 10.
  assert world.run(10) == 'a1 a2'
  # What failed corrects nothing.
  book = world.book(A)
  book.end('other', book_lib.FAILED, problem='x')
  world.cases |= {A: _cases('a1 a2 a3', 4, estimate=1)}
  assert world.run(5) == 'a3'


def test_a_case_is_told_how_long_its_rounds_may_be(world):
  world.cases |= {A: _cases('a1', 100), B: _cases('b1', 1)}
  world.run(1000)
  assert [round(seconds, -1) for seconds in world.left] == [200, 10]


def test_only_so_many_cases_as_asked_for(world):
  world.cases |= {A: _cases('a1 a2', 1), B: _cases('b1 b2', 1)}
  assert world.run(100, most_cases=1) == 'a1 b1'


def _refuse():
  raise ImportError('no such extra')


@pytest.mark.parametrize(
  'load, problem',
  [(dies, 'ended by SIGSEGV'), (_refuse, 'ImportError: no such extra')],
)
def test_a_slice_that_ends_before_a_case_is_passed(world, load, problem):
  world.cases |= {A: load, B: _cases('b1', 1)}
  assert world.run(100) == 'b1'
  assert problem in world.book(A).data['problem']
  world.cases |= {A: _cases('a1', 1)}
  assert world.run(100) == 'a1' and world.book(A).data['problem'] is None


@pytest.mark.parametrize('dry', [True, False])
def test_a_rehearsal_and_a_run_do_not_share_a_folder(world, dry):
  book = world.book(B)
  book.bind({'device': 'cpu', 'dry': dry})
  book.note_cases([])
  kind = 'a rehearsal' if dry else 'a device'
  with pytest.raises(runner.Refused, match=f'squinch.json holds .* of {kind}'):
    world.run(100, dry=not dry)


def test_a_child_that_cannot_work_ends_the_run(world, monkeypatch):
  monkeypatch.setattr(runner, '_run_child', lambda *_: child.REFUSED)
  with pytest.raises(runner.Refused, match='ceilings and the slices after it'):
    world.run(100)


def test_a_rehearsal_has_no_most_and_a_run_has(world, monkeypatch):
  tasks = []
  monkeypatch.setattr(
    runner, '_run_child', lambda task, limit: tasks.append(task) or child.DONE
  )
  for dry in True, False:
    world.run(1e4, [B], dry=dry)
  assert [task.seconds[B] for task in tasks] == [1e4, 1000]


def test_the_case_runs_again_without_what_ended_its_process(world):
  runs = {'bad': dies, 'good': good}
  why = 'at a, the process was ended by SIGSEGV'
  both = f'{why}; at b, the process was ended by SIGSEGV'
  told = 'RuntimeError: left out: '
  assert world.race(**dict.fromkeys('abcd', runs)) == {
    'a': (['good'], {'bad': told + why}),
    'b': (['good'], {'bad': told + both}),
    # Two are enough: it does not begin there.
    'c': (['good'], {'bad': told + both}),
    'd': (['good'], {'bad': told + both}),
  }
  data = world.book(B).data
  assert len(world.started) == 3 and data['running'] is data['trial'] is None


def test_a_lost_device_costs_the_contender_that_lost_it(world, monkeypatch):
  is_lost = []

  def loses():
    is_lost.append(True)
    fails()

  monkeypatch.setattr(
    timing, 'answers', lambda: not is_lost or bool(is_lost.clear())
  )
  runs = {'good': good, 'bad': loses, 'next': good}
  (found, problems) = world.race(a=runs)['a']
  assert found == ['good', 'next'] and len(world.started) == 2
  assert list(problems) == ['bad']
  assert 'at a, the device was lost: RuntimeError: CUDA_ERR' in problems['bad']


def test_a_failure_on_a_sound_device_costs_one_process_nothing(world):
  runs = {'bad': fails, 'good': good}
  told = {'bad': 'RuntimeError: CUDA_ERROR_ILLEGAL_ADDRESS'}
  assert world.race(a=runs, b=runs) == dict.fromkeys('ab', (['good'], told))
  assert len(world.started) == 1 and not world.book(B).data['ended']


def test_a_case_that_loses_the_device_outside_a_trial_fails(world, monkeypatch):
  answered = iter([False])
  monkeypatch.setattr(timing, 'answers', lambda: next(answered))
  world.race(a=None, b={'good': good})
  assert world.statuses(B) == {'a': 'failed', 'b': 'done'}
  assert len(world.started) == 2


def test_a_retry_lets_all_begin_again(world):
  world.race(a={'bad': dies}, b=None, c={'good': good})
  assert world.statuses(B)['b'] == 'failed' and world.book(B).data['ended']
  world.cases[B]['b'] = (1, ('b', {'bad': good}))
  assert world.run(slices=[B], retry=True) == 'b'
  book = world.book(B)
  assert book.cases['b']['record']['found'] == ['bad']
  assert len(world.started) == 1 and not book.data['ended']


def test_a_retry_runs_each_failed_case_once(world):
  world.race(a=None, b=None, c={'good': good})
  world.limit(apart=True)
  assert world.run(slices=[B], retry=True) == 'a b'
  assert len(world.started) == 2
  assert world.statuses(B) == {'a': 'failed', 'b': 'failed', 'c': 'done'}


def test_a_trial_that_is_cut_off_by_ctrl_c_is_not_blamed(world):
  book = world.book(B)
  book.begin('a')
  book.note_trial('good')
  # The runner was ended, too, so that nobody blamed it.
  book = world.book(B)
  book.begin('a')
  assert not book.refusals('a') and book.data['trial'] is None


def test_a_watch_knows_what_runs_and_forgets_it():
  noted = []
  assert timing.answers()
  with timing.watch(noted.append, {'c': 'it hung'}):
    for name in 'a', 'b', 'c':
      with contextlib.suppress(RuntimeError), timing.trial(name):
        fails()
    times = timing.spreads({'a': good}, 3)
  assert noted == ['a', None, 'b', None, 'a', None] and times['a'].rounds == 3
  with timing.trial('c'):
    assert len(noted) == 6


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
