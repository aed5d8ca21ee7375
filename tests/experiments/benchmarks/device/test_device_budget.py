"""Minutes, turns and estimates, on a clock that cases turn themselves."""

import types

import pytest

from experiments.benchmarks.device import book as book_lib
from experiments.benchmarks.device import child
from experiments.benchmarks.device import order
from experiments.benchmarks.device import runner
from experiments.benchmarks.device import setting as setting_lib
from kaiju_jax.kernels import timing

A, B = 'ceilings', 'squinch'


class Died(BaseException):
  """Stands for a signal that ends the process."""


class World:
  """Slices whose cases take seconds of its own clock."""

  def __init__(self, folder, monkeypatch):
    self.now, self.done, self.left, self.started = 0.0, [], [], 0
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

  def run(self, seconds, **fields):
    """Runs the command; returns the cases that were measured, in turn."""
    self.done = []
    setting = setting_lib.Setting(str(self.folder), **fields)
    runner.run([A, B], setting, seconds, say=lambda line: None)
    return ' '.join(self.done)

  def book(self, name):
    return book_lib.Book(self.folder, name)

  def _load(self, name):
    found = self.cases[name]
    if callable(found):
      found()
    return types.SimpleNamespace(cases=lambda _: found, measure=self._measure)

  def _measure(self, setting, case):
    name, seconds = case
    self.left.append(timing.time_left())
    self.done.append(name)
    self.now += seconds
    return {}

  def _start(self, task, limit):
    self.started += 1
    assert self.started < 20
    try:
      return child.work(task)
    except Died:
      return -11


@pytest.fixture
def world(tmp_path, monkeypatch):
  return World(tmp_path, monkeypatch)


def _cases(names, seconds, estimate=None):
  guess = seconds if estimate is None else estimate
  return {name: (guess, (name, seconds)) for name in names.split()}


def test_no_case_begins_that_does_not_fit(world):
  world.cases |= {A: _cases('a1 a2 a3', 6), B: _cases('b1', 1)}
  assert world.run(10) == 'a1 b1'
  statuses = {name: x['status'] for name, x in world.book(A).cases.items()}
  assert statuses == {'a1': 'done', 'a2': 'skipped', 'a3': 'skipped'}
  assert world.book(A).cases['a1']['seconds'] == 6


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
  world.cases |= {A: _cases('a1 a2 a3', 4, estimate=1)}
  assert world.run(5) == 'a3'


def test_a_case_is_told_how_long_its_rounds_may_be(world):
  world.cases |= {A: _cases('a1', 100), B: _cases('b1', 1)}
  world.run(1000)
  assert [round(seconds, -1) for seconds in world.left] == [200, 10]


def test_only_so_many_cases_as_asked_for(world):
  world.cases |= {A: _cases('a1 a2', 1), B: _cases('b1 b2', 1)}
  assert world.run(100, most_cases=1) == 'a1 b1'


def test_a_slice_that_ends_its_process_before_a_case_is_passed(world):
  def die():
    raise Died

  world.cases |= {A: die, B: _cases('b1', 1)}
  assert world.run(100) == 'b1'
  assert 'ended by SIGSEGV' in world.book(A).data['problem']
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
