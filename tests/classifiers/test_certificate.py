"""Thresholds of both tiers, in two dimensions, from scores that are planted."""

import numpy as np
import pytest

from kaiju_jax.classifiers import certificate
from kaiju_jax.classifiers import rows as rows_lib
from kaiju_jax.classifiers import train_head
from kaiju_jax.serving.safety import thresholds

NAMES = 'zorb', 'quam'


def _scored(by_tier):
  """Returns texts of each tier and dimension: {tier: [(logits, labels)]}."""
  rows, score = [], []
  for tier, texts in by_tier.items():
    for logits, labels in texts:
      rows.append(rows_lib.Row(f'{len(rows)}', labels, (tier,)))
      score.append(1 / (1 + np.exp(-np.array(logits, float))))
  return certificate.Scored(rows_lib.Rows(NAMES, tuple(rows)), np.array(score))


# Between benign and violating: adults -2…2 and 0…4; minors -6…-2 and 4…8.
SCORED = _scored(
  {
    'adult': [((2, 9), (1, 1)), ((9, 4), (1, 1)), ((-2, 0), (0, 0))],
    'minor': [((-2, 9), (1, 1)), ((9, 8), (1, 1)), ((-6, 4), (0, 0))],
  }
)


def test_a_minors_threshold_is_the_stricter_one_of_each_dimension():
  """The minor's own is stricter in the first, and looser in the second."""
  high = certificate.choose_thresholds(SCORED, 0.95)
  logits = {tier: np.log(x / (1 - x)) for tier, x in high.items()}
  np.testing.assert_allclose(logits['adult'], [0.4, 2.4], atol=1e-6)
  # 40 % of the way up is -4.4 and 5.6.
  np.testing.assert_allclose(logits['minor'], [-4.4, 2.4], atol=1e-6)


def test_lower_thresholds_are_cut_to_the_upper_ones_of_each_tier():
  high = {'adult': np.array([0.6, 0.9]), 'minor': np.array([0.3, 0.7])}
  stage = certificate.count_stage(
    'head 1', SCORED.rows, SCORED, high, 0.95, low_C=[0.5, 0.2]
  )
  for tier, low in ('adult', [0.5, 0.2]), ('minor', [0.3, 0.2]):
    limits = stage.for_tier(tier).limits
    assert [one.name for one in limits] == list(NAMES)
    assert [one.low for one in limits] == pytest.approx(low)
    assert [one.high for one in limits] == pytest.approx(high[tier].tolist())
  assert (
    certificate.count_stage('gate 1', SCORED.rows, SCORED, high, 0.95)
    .for_tier('minor')
    .limits[0]
    .low
    is None
  )


def test_as_many_tokens_are_below_each_lower_threshold():
  """And the part that is below all of them is what was asked for."""
  rng = np.random.default_rng(0)
  shared = rng.normal(size=(4000, 1))
  score_TC = np.concatenate(
    [shared, 0.1 * (shared + rng.normal(size=shared.shape))], axis=1
  )
  for part in 0.3, 0.9:
    is_below_TC = score_TC < train_head.choose_low(score_TC, part)
    assert is_below_TC.all(axis=1).mean() == pytest.approx(part, abs=2e-3)
    first, second = is_below_TC.mean(axis=0)
    assert first == pytest.approx(second, abs=2e-3)
    assert first > part + 0.02


def test_a_text_is_refused_by_either_dimension():
  limit = thresholds.bound_count(0, 600, 0.01, 0.95, False)
  limits = [
    thresholds.Limit(name, None, high, limit, limit)
    for name, high in zip(NAMES, (0.6, 0.9))
  ]
  assert thresholds.find_reached(limits, [0.0, 0.9]) == ('quam', 0.9)
  assert thresholds.find_reached(limits, [0.6, 0.0]) == ('zorb', 0.6)
  assert thresholds.find_reached(limits, [0.59, 0.89]) is None
