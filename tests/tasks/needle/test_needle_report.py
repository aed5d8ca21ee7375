"""What is quoted of records, from records small enough to add up by hand."""

import re

import numpy as np
import pytest

from kaiju_jax.experiments.studies import needle_figure
from kaiju_jax.reporting import statistics
from kaiju_jax.tasks.needle import questions as needle
from kaiju_jax.tasks.needle import report
from tests import printing

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


RECORDS = [
  record(arm, seed, depth, distance, accuracy)
  for arm, seed, accuracies in (
    ('full', 0, (0.9, 1.0, 1.0, 1.0, 0.8)),
    ('full', 1, (1.0, 1.0, 1.0, 1.0, 1.0)),
    ('local', 0, (0.0, 0.1, 0.5, 0.9, 0.7)),
  )
  for (depth, distance), accuracy in zip(
    ((0.0, 61), (50.0, 31), (80.0, 13), (100.0, 1), (93.44, 5)), accuracies
  )
] + [
  record('local', 0, 0.0, 61, 0.3, distractors=1),
  record('local', 0, 93.44, 5, 0.1, distractors=1),
  record('local', 0, 0.0, 29, 0.2, length=32),
]


def test_summary_adds_up_questions():
  found = report.summarize(RECORDS, 'full', SETTING)
  assert (found.all.right, found.all.total) == (79, 80)
  assert found.all.mean == pytest.approx(0.9875)
  assert found.all.worst == pytest.approx(0.975)
  assert found.all.interval == statistics.wilson(79, 80)
  assert found.beyond[:2] == (39, 40) and found.beyond.worst == 0.95
  assert found.within[:2] == (40, 40)
  assert found.near[:2] == (38, 40) and found.near.worst == 0.9
  assert found.easy is None
  assert found.lost.points == 0.0


def test_a_cell_weighs_what_it_asked():
  cells = [
    record('full', 0, 0.0, 61, 1.0)._replace(count=30),
    record('full', 0, 50.0, 31, 0.0),
  ]
  assert report.score(cells) == (30, 40, 0.75)


def test_what_is_lost_is_paired_by_seed():
  found = report.summarize(RECORDS, 'local', SETTING)
  assert found.all.mean == pytest.approx(0.375)
  # Only seed 0 has both arms: 97.5 − 37.5.
  assert found.lost.points == pytest.approx(60.0)
  _, (low, high) = statistics.newcombe((39, 40), (15, 40))
  assert found.lost[1:3] == pytest.approx((100 * low, 100 * high))
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
  assert found.lost.points == pytest.approx(5.0)
  assert found.lost.most == pytest.approx(10.0)
  assert found.all.worst == pytest.approx(0.9)


@pytest.mark.parametrize(
  'right, total, said',
  [
    # 0.9 points below in both: what decides is how many were asked.
    (698, 704, r'0\.9 points below full \(0\.1 … 1\.8\): within 2 points;'),
    (349, 352, r'0\.9 points below full .*: undecided whether within 2; ask'),
    (680, 704, r'3\.4 points below full \(2\.\d … 5\.0\): more than 2 points'),
    (704, 704, r'0\.0 points below full \(−0\.5 … 0\.5\): within 2 points;'),
  ],
)
def test_the_interval_decides_what_is_within_two_points(right, total, said):
  def one(arm, right):
    cell = record(arm, 0, 0.0, 1, right / total)
    return cell._replace(count=total)

  line = report.verdict(
    [one('full', total), one('kaiju', right)], 'kaiju', SETTING, None
  )
  assert re.search(said, line), line


def test_a_variant_is_held_against_full_attention_of_its_own_kind():
  toys = [one._replace(arm=f'{one.arm}_toy') for one in RECORDS]
  found = report.summarize(RECORDS[:10] + toys[10:], 'local_toy', SETTING)
  assert found.lost is None
  lost = report.summarize(toys, 'local_toy', SETTING).lost
  assert lost.points == pytest.approx(60)


def test_table_quotes_accuracies_intervals_and_the_note():
  text = printing.printed(report.table(RECORDS, SETTING))
  words = [line.split() for line in text.split('\n') if line.strip()]
  rows = {first: number for number, (first, *_) in enumerate(words)}
  #                  length 32, 64, 1 d., near, > 28, lost
  assert words[rows['local']][1:] == [
    '20.0', '37.5', '30.0', '80.0', '5.0', '60.0'
  ]  # fmt: skip
  assert words[rows['local'] + 1] == [
    '5–51', '24–53', '10–61', '58–92', '0–24', '41–74'
  ]  # fmt: skip
  assert words[rows['full']][1:] == ['98.8', '95.0', '97.5', '0.0']
  assert words[rows['full'] + 1] == ['93–100', '83–99', '87–100', '−6–6']
  assert words[rows['full'] + 2] == ['97.5', '90.0', '95.0']  # The worst seed.
  assert 'Trained somehow.' in text


def test_the_table_of_five_lengths_fits_a_terminal():
  records = [
    one._replace(arm=f'{arm}_standard', length=length, distractors=distractors)
    for arm in ('full', 'interleaved')
    for one in RECORDS[:5]
    for length in (8, 16, 32, 64, 128)
    for distractors in (1, 8)
  ]
  text = printing.printed(report.table(records, SETTING))
  lines = [line.split() for line in text.split('\n')]
  assert '…' not in text
  (arm,) = [line for line in lines if line[:1] == ['interleaved']]
  #         five lengths, 1 d., near, > 28, lost
  assert arm[1:] == ['97.5'] * 6 + ['90.0', '95.0', '0.0']
  below = lines[lines.index(arm) + 1]
  assert below[0] == '_standard' and len(below) == 10


@pytest.mark.parametrize(
  'arms, said',
  [
    ({'full': 'induction', 'local': 'induction'}, 'suggests induction: '),
    ({'full': 'standard'}, 'standard initialization'),
    (
      {'full': 'induction', 'full_standard': 'standard'},
      'induction (all but full_standard): ',
    ),
    (
      {'full': 'induction', 'kaiju_previous': 'previous'},
      'suggested to kaiju_previous.',
    ),
  ],
)
def test_note_names_the_initialization_of_every_arm(arms, said):
  assert said in report.note(arms)


def test_figure_marks_where_reach_ends():
  drawn = needle_figure.page(RECORDS, SETTING, {'full': None, 'local': 28})
  heatmaps = [axes for axes in drawn.get_axes() if axes.images]
  full, local = heatmaps[:2]
  assert full.get_title() == 'full\n' and local.get_title() == 'local\n'
  assert not full.lines
  # Among the depths that were asked, 0 and 50 lie beyond 28 tokens at length
  # 64, and 0 does at length 32.
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
