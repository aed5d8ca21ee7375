"""Effects of grids whose truth is planted."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from kaiju_jax.experiments.studies.ablation import effects
from kaiju_jax.training import experiment as experiment_lib

WIDTHS, LAYOUTS, BATCHES = (64, 16, 256), ('L0', 'G0'), (4, 8)


def experiments(rows):
  """{arm: experiment} of (arm, {dotted field: value})."""
  found = {}
  for arm, fields in rows:
    one = found[arm] = experiment_lib.Experiment(seed=len(found))
    for name, value in fields.items():
      owner, field = name.split('.')
      setattr(getattr(one, owner), field, value)
  return found


def grid(*, drop=0):
  cells = itertools.product(WIDTHS, LAYOUTS, BATCHES)
  rows = [
    (
      f'arm{n}',
      # What an arm sets beside its layout varies with it.
      {
        'model.window': width,
        'model.layout': layout,
        'optimizer.warmup': LAYOUTS.index(layout),
        'data.batch': batch,
      },
    )
    for n, (width, layout, batch) in enumerate(cells)
  ]
  return experiments(rows[drop:])


def factors(arms):
  first = next(iter(arms))
  return effects.find_factors(effects.list_fields(arms, first), first)


def rows(table):
  return {row[0]: row[1:] for row in table.rows}


def test_the_fields_that_differ_are_found_and_seeds_do_not_count():
  fields = effects.list_fields(grid(), 'arm5')
  assert list(fields) == [
    *('data.batch', 'model.layout', 'model.window', 'optimizer.warmup'),
  ]
  assert fields['model.window']['arm0'] == 64
  assert fields['model.window']['arm11'] == 256
  assert set(fields['data.batch']) == set(grid())


def test_factors_are_fields_or_fields_that_vary_together():
  batch, window, layout = factors(grid())
  assert (batch.name, batch.first, batch.others) == ('data.batch', '4', ['8'])
  assert (window.first, window.others) == ('64', ['16', '256'])
  assert layout.name == 'model.layout, optimizer.warmup'
  # Named after the arms with the baseline's levels of all other factors.
  assert (layout.first, layout.others) == ('arm0', ['arm2'])


def test_arms_that_are_no_full_grid_have_no_factors():
  assert factors(grid(drop=1)) == []
  one = [(f'arm{n}', {'model.window': n}) for n in (1, 2, 3)]
  assert factors(experiments(one)) == []
  # Half of 2 × 2 × 2: each pair of factors is crossed, and not all three.
  half = [
    (
      f'arm{a}{b}',
      {'model.window': 1 + a, 'data.batch': 1 + b, 'data.length': 1 + (a ^ b)},
    )
    for a, b in itertools.product((0, 1), (0, 1))
  ]
  assert factors(experiments(half)) == []


def test_planted_effects_and_an_interaction_are_found():
  arms = grid()
  widths = dict(zip(WIDTHS, (0.0, 0.5, -0.25)))
  values = {}
  for arm, one in arms.items():
    layout = LAYOUTS.index(one.model.layout)
    batch = BATCHES.index(one.data.batch)
    middle = 3 + widths[one.model.window] + 0.1 * layout - 0.2 * batch
    middle += 0.04 * layout * batch
    # A seed shifts all arms alike.
    values[arm] = {seed: middle + 10 * seed for seed in range(3)}
  found = rows(effects.table(factors(arms), values))
  assert len(found) == 1 + 2 + 1 + 1 * 2 + 1 * 1 + 2 * 1
  together = 'model.layout, optimizer.warmup: arm0 → arm2'
  assert {name: row[0].mean for name, row in found.items()} == pytest.approx(
    {
      'data.batch: 4 → 8': -0.2 + 0.04 / 2,
      'model.window: 64 → 16': 0.5,
      'model.window: 64 → 256': -0.25,
      together: 0.1 + 0.04 / 2,
      'data.batch: 4 → 8 × model.window: 64 → 16': 0,
      'data.batch: 4 → 8 × model.window: 64 → 256': 0,
      f'data.batch: 4 → 8 × {together}': 0.04,
      f'model.window: 64 → 16 × {together}': 0,
      f'model.window: 64 → 256 × {together}': 0,
    },
    abs=1e-9,
  )
  assert max(row[0].half_width for row in found.values()) < 1e-9


@pytest.mark.parametrize('paired', [True, False])
def test_two_by_two_is_the_textbooks(paired):
  random = np.random.default_rng(0)
  cells = {
    f'{a}{b}': {'model.window': 1 + a, 'data.batch': 1 + b}
    for a, b in itertools.product((0, 1), (0, 1))
  }
  draws = {arm: random.normal(int(arm[0]), 1, 5) for arm in cells}
  values = {
    arm: dict(enumerate(draw, 0 if paired else 9 * n))
    for n, (arm, draw) in enumerate(draws.items())
  }
  found = rows(effects.table(factors(experiments(cells.items())), values))
  a, b, both = (
    found['model.window: 1 → 2'],
    found['data.batch: 1 → 2'],
    found['data.batch: 1 → 2 × model.window: 1 → 2'],
  )
  y = draws
  within = {
    'a': (y['10'] + y['11'] - y['00'] - y['01']) / 2,
    'b': (y['01'] + y['11'] - y['00'] - y['10']) / 2,
    'both': y['11'] - y['10'] - y['01'] + y['00'],
  }
  ps = []
  for row, sums in zip((a, b, both), within.values()):
    assert row[0].mean == pytest.approx(sums.mean())
    assert row[1] == (5 if paired else 'Welch')
    ps.append(row[0].p)
    if paired:
      assert row[0].p == pytest.approx(stats.ttest_1samp(sums, 0).pvalue)
    else:
      scale = 1 if sums is within['both'] else 4
      total = sum(np.var(each, ddof=1) for each in y.values()) / 5 / scale
      assert row[0].error == pytest.approx(math.sqrt(total))
  # Three effects share the 5 %.
  assert float(min(a[2], b[2], both[2])) == pytest.approx(3 * min(ps))
  assert a[3] == pytest.approx(a[0].detectable(3))


def test_an_arm_without_values_leaves_its_effects_open():
  arms = grid()
  values = {arm: {0: 1.0, 1: 2.0} for arm in arms} | {'arm11': {}}
  found = rows(effects.table(factors(arms), values))
  assert str(found['model.window: 64 → 256'][0]) == '–'
  assert found['model.window: 64 → 16'][0].how == 'paired'
