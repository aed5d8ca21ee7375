"""Source 003's flags are outcomes of arithmetic: a corrected cell has none."""

import pytest

from kaiju_jax.experiments.studies import economics
from kaiju_jax.fleet import book as book_lib
from kaiju_jax.fleet import claims

SOURCE = economics.load('source')
FINDINGS = claims.findings(SOURCE)
FLAGGED = [one for one in FINDINGS if one.flagged]


def outcome(book, claim):
  (found,) = [one for one in claims.findings(book) if one.claim == claim]
  return found


def test_every_row_but_the_first_is_flagged():
  flagged = {row for row, count, *_ in claims.verdicts(FINDINGS) if count}
  assert flagged == set(claims.ROWS) - {'V1'}
  assert {one.claim.row for one in FINDINGS} == set(claims.ROWS)


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
  ],
)
def test_recomputed_figures(row, cell, recomputed):
  (found,) = [
    one for one in FINDINGS if (one.claim.row, one.claim.cell) == (row, cell)
  ]
  assert found.recomputed == pytest.approx(recomputed, rel=0.01)


@pytest.mark.parametrize(
  'found', FLAGGED, ids=lambda one: f'{one.claim.row}-{one.claim.cell}'
)
def test_a_corrected_cell_loses_its_flag(found):
  """Must fail: a flag that is written down instead of computed."""
  fixed = book_lib.change(SOURCE, **{found.claim.cell: found.recomputed})
  again = outcome(fixed, found.claim)
  assert not again.flagged
  wrong = book_lib.change(fixed, **{found.claim.cell: found.said})
  assert outcome(wrong, found.claim).flagged


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
  def mine(book):
    found = [one for one in claims.findings(book) if one.claim.row == row]
    return [one for one in found if formula in (None, one.claim.formula)]

  assert any(one.flagged for one in mine(SOURCE))
  fixed = mine(book_lib.change(SOURCE, **changed))
  if row == 'V11':
    fixed = [one for one in fixed if one.claim.cell == 'row2_total']
  assert not any(one.flagged for one in fixed)


@pytest.mark.parametrize('cell', ['token_rate', 'hourly', 'mqa_ratio'])
def test_a_right_cell_that_is_spoilt_is_flagged(cell):
  """The other way round: nothing holds by being listed as right."""
  spoilt = book_lib.change(SOURCE, **{cell: 2 * SOURCE[cell].value})
  assert any(one.flagged for one in claims.findings(spoilt) if _is(one, cell))
  assert not any(one.flagged for one in FINDINGS if _is(one, cell))


def _is(one, cell):
  return one.claim.cell == cell


@pytest.mark.parametrize('name', book_lib.NAMES)
def test_every_cell_has_a_label_and_a_source(name):
  book = economics.load(name)
  book_lib.check(book)
  ceilings = {cell for cell, one in book.items() if one.label == 'ceiling'}
  if name != 'source':
    assert {'prefill_rate', 'decode_rate'} <= ceilings
    assert all('not measured' in book[cell].where for cell in ceilings)


@pytest.mark.parametrize(
  'cell, message',
  [
    (book_lib.Cell(1.0, '', 'sure', 'x'), "output: label='sure': must be one"),
    (book_lib.Cell(1.0, '', 'guess', ''), 'output: where is missing'),
    (book_lib.Cell(float('nan'), '', 'guess', 'x'), 'output=nan: must be fin'),
    (book_lib.Cell(3, '', 'guess', 'x', 4, 5), 'output=3: must lie between'),
  ],
)
def test_a_cell_without_label_is_refused(cell, message):
  with pytest.raises(ValueError, match=message):
    claims.findings({**SOURCE, 'output': cell})
