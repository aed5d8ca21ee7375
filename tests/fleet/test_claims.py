"""Source 003's flags are outcomes of arithmetic: a corrected cell has none."""

import pytest

from kaiju_jax.fleet import book as book_lib
from kaiju_jax.fleet import claims

SOURCE = book_lib.load('source')
FOUND = claims.check(SOURCE)


def claim(book, like):
  """Returns the same claim about another book."""
  key = like.row, like.cell, like.formula
  (found,) = [
    one for one in claims.check(book) if (one.row, one.cell, one.formula) == key
  ]
  return found


def test_every_row_but_the_first_is_flagged():
  flagged = {row for row, count, *_ in claims.verdicts(FOUND) if count}
  assert flagged == set(claims.ROWS) - {'V1'}
  assert {one.row for one in FOUND} == set(claims.ROWS)


@pytest.mark.parametrize(
  'row, cell, recomputed',
  [
    ('V1', 'token_rate', 231_481),
    ('V1', 'message_rate', 451.2),
    ('V2', 'prefill_demand', 10.24e6),
    ('V2', 'prefill_gpus', 51.2),
    ('V2', 'decode_gpus', 92.4),
    ('V5', 'tokens_per_day', 1.106e12),
    ('V5', 'free_ceiling', 0.0037),
    ('V7', 'month_messages', 600),
    ('V9', 'kv_mha', 3.75 * 2**30),
    ('V9', 'mha_gpus', 2_517),
    ('V9', 'mqa_gpus', 79),
    ('V9', 'int8_gpus', 39),
    ('V10', 'rewarm', 2),
    ('V11', 'row1_net', 0),
    ('V11', 'row1_churn', 20_000),
    ('V12', 'v5e_native', 1.995),
    ('V12', 'conversion_share', 0.05),
  ],
)
def test_recomputed_figures(row, cell, recomputed):
  (found,) = [one for one in FOUND if (one.row, one.cell) == (row, cell)]
  assert found.recomputed == pytest.approx(recomputed, rel=0.01)


@pytest.mark.parametrize(
  'found',
  [one for one in FOUND if one.flagged],
  ids=lambda one: f'{one.row}-{one.cell}',
)
def test_a_corrected_cell_loses_its_flag(found):
  """Must fail: a flag that is written down instead of computed."""
  fixed = book_lib.change(SOURCE, **{found.cell: found.recomputed})
  assert not claim(fixed, found).flagged
  wrong = book_lib.change(fixed, **{found.cell: found.said})
  assert claim(wrong, found).flagged


@pytest.mark.parametrize(
  'row, formula, changed',
  [
    ('V2', 'peak/s × 512', {'peak_rate': 50_000}),
    ('V4', None, {'hit_rate': 0.95}),
    ('V5', '25K/s × 512 × 86,400', {'mean_claimed': 451}),
    ('V6', 'all work, 13b on H100', {'hit_rate': 0.62}),
    ('V8', None, {'shard_gpus': 1}),
    ('V9', '32 heads, all layers', {'parameters': 0.2e9}),
    ('V10', None, {'peak_claimed': 833}),
    ('V11', 'the same at 902/s', {'peak_rate': 50_000, 'row2_total': 60_000}),
  ],
)
def test_a_corrected_premise_takes_the_flag_away(row, formula, changed):
  mine = [
    one for one in FOUND if one.row == row and formula in (None, one.formula)
  ]
  assert any(one.flagged for one in mine)
  fixed = book_lib.change(SOURCE, **changed)
  assert not any(claim(fixed, one).flagged for one in mine)


@pytest.mark.parametrize('cell', ['token_rate', 'hourly', 'mqa_ratio'])
def test_a_right_cell_that_is_spoilt_is_flagged(cell):
  """The other way round: nothing holds by being listed as right."""
  spoilt = book_lib.change(SOURCE, **{cell: 2 * SOURCE[cell].value})
  (mine,) = [one for one in FOUND if one.cell == cell]
  assert claim(spoilt, mine).flagged and not mine.flagged


@pytest.mark.parametrize('name', book_lib.NAMES)
def test_ceilings_say_that_they_are_not_measured(name):
  book = book_lib.load(name)
  ceilings = [one for one in book.values() if one.label == 'ceiling']
  assert len(ceilings) >= 2
  assert all('not measured' in one.where for one in ceilings)
