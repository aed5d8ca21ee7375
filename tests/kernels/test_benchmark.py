"""What a benchmark derives from seconds and counts."""

import pytest

from kaiju_jax.kernels import benchmark
from kaiju_jax.kernels import ceilings
from kaiju_jax.kernels import dispatch

_CEILINGS = ceilings.Ceilings(bf16_matmul=100.0, int8_matmul=200.0, copy=10.0)
_ROWS = [
  benchmark.Row('attention', 'short', 'ours', 2.0, 100.0, 10.0),
  benchmark.Row('attention', 'short', 'cudnn', 3.0, 100.0, 10.0, is_peer=True),
  benchmark.Row('attention', 'long', 'ours', 4.0, 600.0, 20.0, 'int8_matmul'),
  benchmark.Row('decode', 'short', 'ours', None, 1.0, 80.0),
  benchmark.Row('decode', 'long', 'ours', 10.0, 1.0, 80.0),
]


def test_how_near_rows_come_to_what_is_possible():
  # Bound by operations and bytes alike, 1 s; took 2. Then 600 int8 operations
  # take 3 s, 20 bytes 2 s; took 4. The last is bound by bytes.
  found = [benchmark.of_ceiling(row, _CEILINGS) for row in _ROWS]
  assert found == [0.5, pytest.approx(1 / 3), 0.75, None, 0.8]


def test_ratios_are_to_peers_at_the_same_shape():
  found = [benchmark.times_as_fast(row, _ROWS) for row in _ROWS]
  assert found == [{'cudnn': 1.5}, {}, {}, {}, {}]


def _fail(made):
  raise NotImplementedError('no such tile\nand more')


@pytest.fixture
def subject():
  contenders = {
    'good': benchmark.Contender(
      lambda made: 2 * made, error=lambda made: made / 2, tiles=(3, 2)
    ),
    'pair': benchmark.Contender(max, lambda made: (made, 1), is_peer=True),
    'bad': benchmark.Contender(_fail),
    'wrong': benchmark.Contender(lambda made: made, error=_fail, bytes=7),
  }
  return benchmark.Subject('toy', 'tiny', 5, 6, lambda: 4, contenders)


def test_contenders_that_work_are_timed_and_the_others_say_why(subject):
  with dispatch.interpret():
    rows = benchmark.measure([subject], 2)
  good, pair, *others = rows
  assert (
    good.max_error == 2 and good.tiles == (3, 2) and good.spread.rounds == 2
  )
  assert 0 < good.spread.least <= good.seconds
  assert pair.is_peer and pair.seconds and pair.max_error is None
  for row in others:
    assert row.seconds is row.spread is None
    assert row.problem == 'NotImplementedError: no such tile'
  assert [row.bytes for row in rows] == [6, 6, 6, 7]


def test_a_cpu_counts_and_runs_nothing(subject):
  def make():
    raise AssertionError

  rows = benchmark.measure([subject._replace(make=make)], 2)
  assert [row.seconds for row in rows] == [None] * 4
  assert {row.operations for row in rows} == {5}
  assert {row.problem for row in rows} == {None}
