"""Thresholds chosen and counted, on scores whose distribution is known."""

import numpy as np
import pytest

from kaiju_jax.classifiers import certificate
from kaiju_jax.classifiers import rows as rows_lib
from kaiju_jax.reporting import statistics
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
  gate = certificate.count_stage('gate', SCORED.rows, SCORED, high, 0.95)
  assert gate.minor.limits[0].low is None


LEVEL = thresholds.confidence_of_tier(0.95)


def logits(*values):
  return 1 / (1 + np.exp(-np.array(values, float)))


def scored(violating, benign):
  """Returns scores and labels of one dimension."""
  score_NC = np.concatenate([violating, benign])[:, None]
  return score_NC, (np.arange(len(score_NC)) < len(violating))[:, None]


def test_the_room_between_the_sets_is_shared():
  score_NC, label_NC = scored(logits(5, 3, 9), logits(-7, -2, -3))
  for place, wanted in (0, -2), (0.4, 0), (1, 3):
    found = certificate.choose(score_NC, label_NC, place, 0.95)
    np.testing.assert_allclose(found, logits(wanted))
  # Scores of 0 and 1 have no logits of their own.
  found = certificate.choose(*scored(np.ones(3), np.zeros(3)), 0.5, 0.95)
  np.testing.assert_allclose(found, 0.5, atol=1e-4)


def test_where_the_sets_overlap_the_bounds_decide():
  """Of 3,000 each, the worst of 15 violating and 15 benign ones overlap."""
  rng = np.random.default_rng(0)
  n, few = 3_000, 15
  violating = logits(*rng.uniform(2, 5, n - few), *[-3.0] * few)
  benign = logits(*rng.uniform(-5, -2, n - few), *[3.0] * few)
  score_NC, label_NC = scored(violating, benign)
  high = certificate.choose(score_NC, label_NC, 0.5, 0.95)
  assert logits(-2) < high < logits(2)
  tier = certificate.count(score_NC, label_NC, ['a'], high, [None], 0.95)
  assert tier.limits[0].blocked.hits == n - few
  assert tier.refused.hits == few
  assert tier.limits[0].blocked.claim == thresholds.BLOCKED


def test_where_nothing_fits_blocking_wins():
  rng = np.random.default_rng(1)
  score_NC, label_NC = scored(rng.random(2_000), rng.random(2_000))
  high = certificate.choose(score_NC, label_NC, 0.5, 0.95)
  tier = certificate.count(score_NC, label_NC, ['a'], high, [None], 0.95)
  assert tier.limits[0].blocked.claim == thresholds.BLOCKED
  assert tier.refused.claim > 0.5
  assert tier.refused.bound == statistics.at_most(
    tier.refused.hits, 2_000, LEVEL
  )


def test_counts_are_drawn():
  """Two dimensions; the fifth text violates both, the last two are benign."""
  score_NC = np.array(
    [[0.9, 0], [0.5, 0], [0, 0.8], [0, 0.2], [0.9, 0.9], [0.7, 0.7], [0, 0]]
  )
  label_NC = np.array(
    [[1, 0], [1, 0], [0, 1], [0, 1], [1, 1], [0, 0], [0, 0]], bool
  )
  tier = certificate.count(
    score_NC, label_NC, ['a', 'b'], [0.5, 0.75], [0.1, 0.2], 0.95
  )
  first, second = tier.limits
  assert (first.blocked.hits, first.blocked.rows) == (3, 3)
  assert (second.blocked.hits, second.blocked.rows) == (2, 3)
  assert (first.refused.hits, second.refused.hits) == (1, 0)
  assert (tier.refused.hits, tier.refused.rows) == (1, 2)
  assert (first.low, second.high) == (0.1, 0.75)
  # Too few to claim what is wanted: what they show is claimed.
  assert first.blocked.claim == first.blocked.bound < thresholds.BLOCKED


def test_false_certificates_are_rare():
  """A classifier that refuses 1 % of the benign is certified in ≤ 2.5 %."""
  rng = np.random.default_rng(2)
  refused = rng.binomial(600, 0.01, 10_000)
  bounds = {
    hits: thresholds.bound_count(hits, 600, 0.01, 0.95, False).bound
    for hits in np.unique(refused).tolist()
  }
  passed = [bounds[hits] <= thresholds.REFUSED for hits in refused.tolist()]
  assert 0.005 < np.mean(passed) <= 0.025


def test_sets_that_are_empty_are_refused():
  score_NC, label_NC = scored(logits(1, 2), logits(-1))
  for rows in slice(2), slice(2, None):
    with pytest.raises(ValueError, match='thresholds need both'):
      certificate.choose(score_NC[rows], label_NC[rows], 0.5, 0.95)
    with pytest.raises(ValueError, match='there is no such text'):
      certificate.count(
        score_NC[rows], label_NC[rows], ['a'], [0.5], [None], 0.95
      )


def test_each_dimension_has_its_own_threshold():
  """As if alone, but that the other one's violating texts are not benign."""
  score_NC = np.array(
    [
      logits(5, 0),
      logits(7, 4),  # Violates the first alone, and looks like the second.
      logits(0, 2),
      logits(6, 3),  # The same the other way round.
      logits(-3, -8),
      logits(-5, -6),
    ]
  )
  label_NC = np.array([[1, 0], [1, 0], [0, 1], [0, 1], [0, 0], [0, 0]], bool)
  for place, wanted in (0, (-3, -6)), (1, (5, 2)), (0.5, (1, -2)):
    found = certificate.choose(score_NC, label_NC, place, 0.95)
    np.testing.assert_allclose(found, logits(*wanted))
  # In another order of dimensions they are the same.
  turned = certificate.choose(score_NC[:, ::-1], label_NC[:, ::-1], 0.5, 0.95)
  np.testing.assert_array_equal(turned, found[::-1])
