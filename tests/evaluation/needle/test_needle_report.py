"""What is quoted of records, from records small enough to add up by hand."""

import numpy as np
import pytest
import rich.console

from kaiju_jax.evaluation.needle import figure as needle_figure
from kaiju_jax.evaluation.needle import questions as needle
from kaiju_jax.evaluation.needle import report

SETTING = report.Setting(
  length=64,
  window=8,
  windows_reach=28,
  nearest=1,
  chance=1 / 64,
  note='Trained somehow.',
)


def record(arm, seed, depth, distance, accuracy, distractors=8, length=64):
  return needle.Record(
    arm, seed, length, depth, distance, distractors, accuracy, 10
  )


# Depths 0 and 50 lie beyond 28 tokens, 80 and 100 within; 93.44 is no depth
# of the grid.
RECORDS = [
  record('full', 0, 0.0, 61, 0.9),
  record('full', 0, 50.0, 31, 1.0),
  record('full', 0, 80.0, 13, 1.0),
  record('full', 0, 100.0, 1, 1.0),
  record('full', 0, 93.44, 5, 0.8),
  record('full', 1, 0.0, 61, 1.0),
  record('full', 1, 50.0, 31, 1.0),
  record('full', 1, 80.0, 13, 1.0),
  record('full', 1, 100.0, 1, 1.0),
  record('full', 1, 93.44, 5, 1.0),
  record('local', 0, 0.0, 61, 0.0),
  record('local', 0, 50.0, 31, 0.1),
  record('local', 0, 80.0, 13, 0.5),
  record('local', 0, 100.0, 1, 0.9),
  record('local', 0, 93.44, 5, 0.7),
  record('local', 0, 0.0, 61, 0.3, distractors=1),
  record('local', 0, 0.0, 29, 0.2, length=32),
]


def test_summary_averages_cells_then_seeds():
  found = report.summarize(RECORDS, 'full', SETTING)
  assert found.all == pytest.approx((0.9875, 0.975, 1.0))
  assert found.beyond == pytest.approx((0.975, 0.95, 1.0))
  assert found.within == pytest.approx((1.0, 1.0, 1.0))
  assert found.near == pytest.approx((0.95, 0.9, 1.0))
  assert found.easy is None
  assert found.lost == 0.0


def test_what_is_lost_is_paired_by_seed():
  found = report.summarize(RECORDS, 'local', SETTING)
  assert found.all.mean == pytest.approx(0.375)
  # Seed 0 alone has both arms: 97.5 − 37.5.
  assert found.lost == pytest.approx(60.0)
  assert found.beyond.mean == pytest.approx(0.05)
  assert found.within.mean == pytest.approx(0.7)
  assert found.near.mean == pytest.approx(0.8)
  assert found.easy.mean == pytest.approx(0.3)
  without = [one for one in RECORDS if one.arm == 'local']
  assert report.summarize(without, 'local', SETTING).lost is None


def test_the_worst_seed_is_not_hidden():
  records = RECORDS + [
    one._replace(arm='kaiju', accuracy=one.accuracy - 0.1 * one.seed)
    for one in RECORDS
    if one.arm == 'full'
  ]
  found = report.summarize(records, 'kaiju', SETTING)
  assert found.lost == pytest.approx(5.0)
  assert found.most_lost == pytest.approx(10.0)
  assert found.all.low == pytest.approx(0.9)


def test_verdicts_say_what_was_seen():
  assert report.verdict(RECORDS, 'full', SETTING, None) == (
    'full, which sees the whole row: 98.8 %; 100.0 % within 28 tokens,'
    ' 97.5 % beyond (chance 1.6 %); 95.0 % at distances 1–8.'
  )
  assert report.verdict(RECORDS, 'local', SETTING, 28) == (
    'local, which sees 28 tokens: 37.5 %, 60.0 points below full; 70.0 % within'
    ' 28 tokens, 5.0 % beyond (chance 1.6 %); 80.0 % at distances 1–8.'
  )


def test_a_variant_is_held_against_full_attention_of_its_own_kind():
  toys = [one._replace(arm=f'{one.arm}_toy') for one in RECORDS]
  found = report.summarize(RECORDS[:10] + toys[10:], 'local_toy', SETTING)
  assert found.lost is None
  assert report.summarize(toys, 'local_toy', SETTING).lost == pytest.approx(60)


def test_table_quotes_the_means_and_the_note():
  console = rich.console.Console(width=80)
  with console.capture() as captured:
    console.print(report.table(RECORDS, SETTING))
  text = captured.get()
  assert '…' not in text
  words = [line.split() for line in text.split('\n') if line.strip()]
  rows = {first: rest for first, *rest in words}
  #                        length 32, 64, 1 distr., near, ≤ 28, > 28, lost
  assert rows['local'] == [
    '20.0',
    '37.5',
    '30.0',
    '80.0',
    '70.0',
    '5.0',
    '60.0',
  ]
  assert rows['full'] == ['98.8', '95.0', '100', '97.5', '0.0']
  assert ['97.5', '90.0', '95.0'] in words  # Of the worst seed.
  assert 'Trained somehow.' in text


def test_note_names_the_initialization_of_every_arm():
  induction = report.note({'full': 'induction', 'local': 'induction'})
  assert 'suggests induction: what is under test is reach' in induction
  assert report.note({'full': 'standard'}) == (
    'Trained from a standard initialization.'
  )
  mixed = report.note({'full': 'induction', 'full_standard': 'standard'})
  assert 'suggests induction (all but full_standard): ' in mixed


def test_figure_marks_where_reach_ends(tmp_path):
  drawn = needle_figure.page(RECORDS, SETTING, {'full': None, 'local': 28})
  heatmaps = [axes for axes in drawn.get_axes() if axes.images]
  full, local = heatmaps[:2]
  assert full.get_title() == 'full\n' and local.get_title() == 'local\n'
  assert not full.lines
  # Of the depths that were asked, 0 and 50 lie beyond 28 tokens at length 64,
  # and 0 does at length 32.
  (line,) = local.lines
  assert line.get_xdata().tolist() == [-0.5, 0.5, 0.5, 1.5]
  assert line.get_ydata().tolist() == [0.5, 0.5, 1.5, 1.5]
  image = np.asarray(local.images[0].get_array(), float)
  np.testing.assert_allclose(image[0], [20.0, 0.0])
  np.testing.assert_allclose(image[10], [np.nan, 90.0])
  labels = [axes.get_xlabel() + axes.get_ylabel() for axes in drawn.get_axes()]
  assert any('depth of the needle' in label for label in labels)
  assert any('length of the row' in label for label in labels)
  assert any('distance from the query' in label for label in labels)
  needle_figure.draw(
    RECORDS, SETTING, {'full': None, 'local': 28}, tmp_path / 'f.png'
  )
  assert (tmp_path / 'f.png').read_bytes().startswith(b'\x89PNG')
