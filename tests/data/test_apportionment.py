"""Each source has its share of the rows at every block's end, to within one."""

import numpy as np
import pytest

from kaiju_jax.data import apportionment


def _row_weights(stages, rows):
  """float64[rows, S], each row's weights by quadrature of the definition."""
  places = (np.arange(rows * 64) + 0.5) / 64
  over = max(stages.end - stages.begin, 1e-9)
  changed = np.clip((places - stages.begin) / over, 0, 1)
  changed = changed.reshape(rows, 64).mean(1)[:, None]
  return (1 - changed) * stages.first + changed * stages.last


def _random_stages(rng):
  """Stages of which some sources have weight 0, and some a tiny one."""
  count = int(rng.integers(1, 7))

  def weights():
    drawn = rng.random(count) ** rng.integers(1, 8)
    kept = np.where(rng.random(count) < 0.3, 0, drawn)
    return kept if kept.any() else drawn

  at = float(rng.random())
  over = float(rng.random() * (1 - at)) * int(rng.integers(0, 2))
  return apportionment.stages(weights(), weights(), 400, at, over)


def test_the_weights_sums_are_those_of_the_rows():
  rng = np.random.default_rng(0)
  for _ in range(20):
    stages = _random_stages(rng)
    sums = np.cumsum(_row_weights(stages, 500), axis=0)
    for row in (1, 200, 399, 400, 500):
      # Quadrature errs by a 64th of a row at the two places of change.
      np.testing.assert_allclose(
        stages.sum_weights(row), sums[row - 1], rtol=0, atol=0.02
      )
    wanted = np.array([stages.sum_weights(row) for row in range(501)])
    np.testing.assert_allclose(wanted.sum(1), np.arange(501), atol=1e-9)
    for count in (0.5, 3.0, 20.0):
      reached = stages.find_rows(np.full(len(stages.first), count))
      for source in np.flatnonzero(reached < 500):
        below, above = (
          stages.sum_weights(int(reached[source]) + n)[source] for n in (0, 1)
        )
        assert below - 1e-6 <= count <= above + 1e-6


def test_counts_stay_within_one_row_of_the_weights():
  rng = np.random.default_rng(1)
  worst = 0
  for _ in range(60):
    stages = _random_stages(rng)
    blocks = apportionment.Blocks(stages, int(rng.integers(1, 50)))
    number, before = 0, 0
    while blocks.first_row(number) < 600:
      counts, begin = blocks.counts(number), blocks.first_row(number)
      assert counts.sum() == begin
      assert (counts >= before).all()
      worst = max(worst, np.abs(counts - stages.sum_weights(begin)).max())
      assert blocks.number(begin) == number
      assert blocks.number(blocks.first_row(number + 1) - 1) == number
      number, before = number + 1, counts
  assert 0.5 < worst < 1


def test_a_source_rounded_up_before_its_end_does_not_stay_ahead():
  """Two of four sources end at row 2, where each should have had half a row."""
  stages = apportionment.stages(
    [0.25] * 4, [0.25, 0.75, 0, 0], total=4, anneal_at=0.5
  )
  assert stages.sum_weights(2).tolist() == [0.5, 0.5, 0.5, 0.5]
  assert stages.sum_weights(4).tolist() == [1, 2, 0.5, 0.5]
  blocks = apportionment.Blocks(stages, 2)
  assert [blocks.counts(n).tolist() for n in range(3)] == [
    [0, 0, 0, 0],
    [1, 1, 0, 0],
    [1, 2, 1, 0],
  ]

  def largest_fraction(wanted, counts, end):
    """The rule that looks at no deadline, as the contrast."""
    error = wanted - counts
    given = np.floor(error).astype(int)
    order = np.argsort(-(error - given), kind='stable')
    given[order[: end - counts.sum() - given.sum()]] += 1
    return counts + given

  # Of equal fractions it may as well take those that end.
  wanted = [stages.sum_weights(row)[::-1] for row in (2, 4)]
  first = largest_fraction(wanted[0], np.zeros(4, int), 2)
  then = largest_fraction(wanted[1], first, 4)
  assert (then < first).any()  # It takes rows back.


def test_blocks_end_where_a_stage_does():
  stages = apportionment.stages([1], [1], 100, anneal_at=0.5, anneal_over=0.25)
  blocks = apportionment.Blocks(stages, 30)
  assert [blocks.first_row(n) for n in range(7)] == [
    0,
    30,
    50,
    75,
    105,
    135,
    165,
  ]
  assert [blocks.number(n) for n in (0, 29, 30, 49, 50, 74, 75, 104)] == [
    *[0, 0, 1, 1, 2, 2, 3, 3]
  ]


@pytest.mark.parametrize('at, first', [(1.0, 0.25), (0.0, 0.75)])
def test_a_run_may_be_of_one_stage(at, first):
  stages = apportionment.stages([1, 3], [9, 3], 1000, at)
  assert stages.sum_weights(1000).tolist() == [1000 * first, 1000 * (1 - first)]
  blocks = apportionment.Blocks(stages, 1000)
  assert blocks.first_row(1) == 1000
  assert blocks.counts(1).tolist() == [1000 * first, 1000 * (1 - first)]
