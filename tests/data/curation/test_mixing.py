"""Weights of sources: planted truths, and optima checked by another solver."""

import numpy as np
import pytest
from scipy import optimize

from kaiju_jax.data.curation import mixing
from kaiju_jax.data.curation import similarity
from tests.data import planted

SOLVED = 'em', 'least_squares'
TRUTH = np.array([0.5, 0.3, 0.2, 0, 0])
# The first source's documents are ten times as long as the others'.
LENGTHS = np.array([1000, 100, 100, 100, 100])


def drawn(words, seed):
  """Returns (target, sources), each a (texts, words per text).

  Args:
    words: of the target, and of each source.
    seed: of the texts.
  """
  rng = np.random.default_rng(seed)
  shares = planted.distributions(5, seed, planted.PHRASES)
  sources = [
    (planted.texts(share, words // length, length, rng), length)
    for share, length in zip(shares, LENGTHS)
  ]
  target = [
    (planted.texts(share, round(words * weight) // length, length, rng), length)
    for share, length, weight in zip(shares, LENGTHS, TRUTH)
    if weight
  ]
  return target, sources


def means_of(embedder, words, seed):
  """Returns the `Mean` of the target and of each source, in tokens."""
  target, sources = drawn(words, seed)
  texts = [text for part, _ in [*target, *sources] for text in part]
  vectors = embedder.embed(texts)
  ends = np.cumsum([0, *(len(part) for part, _ in [*target, *sources])])
  sizes = np.concatenate(
    [np.full(len(part), length) for part, length in [*target, *sources]]
  )
  split = ends[len(target)]
  return mixing.Mean(vectors[:split], sizes[:split]), [
    mixing.Mean(vectors[begin:end], sizes[begin:end])
    for begin, end in zip(ends[len(target) :], ends[len(target) + 1 :])
  ]


@pytest.fixture(scope='module')
def quick():
  return means_of(similarity.Ngrams(), 40_000, 0)


def error(mix):
  return np.max(np.abs(mix.weights - TRUTH))


def by_documents(mean):
  return mean._replace(tokens=np.ones(len(mean.tokens)))


@pytest.mark.parametrize('method', SOLVED)
def test_a_planted_mix_is_found(quick, method):
  target, sources = quick
  mix = mixing.mix(method, target, sources, resamples=20)
  assert error(mix) < 0.03
  assert mix.gap < 1e-5
  assert np.all(mix.low <= mix.weights) and np.all(mix.weights <= mix.high)
  assert np.all(mix.high - mix.low < 0.2)
  assert mix.distance < mix.pooled < np.max(mix.distances)
  # The contrast: where documents count, not their tokens, long ones lose.
  wrong = mixing.mix(method, by_documents(target), sources, resamples=2)
  assert error(wrong) > 0.1


def test_the_bootstrap_is_seeded_and_widens_with_fewer_documents(quick):
  target, sources = quick
  one, same = (
    mixing.mix('least_squares', target, sources, resamples=40, seed=3)
    for _ in range(2)
  )
  np.testing.assert_array_equal(one.low, same.low)
  few = mixing.Mean(target.vectors[::8], target.tokens[::8])
  wide = mixing.mix('least_squares', few, sources, resamples=40, seed=3)
  assert np.sum(wide.high - wide.low) > 1.3 * np.sum(one.high - one.low)


def objective(method, target_D, means_SD):
  """Returns what is minimized, as an independent solver gets it."""
  if method == 'em':
    return lambda w: (
      -np.sum(target_D * np.log(np.maximum(w @ means_SD, 1e-300)))
    )
  return lambda w: 1e3 * np.sum((target_D - w @ means_SD) ** 2)


@pytest.mark.parametrize('method', SOLVED)
@pytest.mark.parametrize('seed', range(6))
def test_the_weights_are_the_best_within_their_bounds(method, seed):
  rng = np.random.default_rng(seed)
  means_SD = rng.dirichlet(np.full(12, 0.5), 6) + 1e-3
  means_SD /= means_SD.sum(axis=1, keepdims=True)
  # Within the hull, on a face of it, and outside.
  truth = rng.dirichlet(np.ones(6) if seed % 3 else np.full(6, 0.2))
  target_D = truth @ means_SD if seed % 3 else rng.dirichlet(np.ones(12))
  bounds_S = np.ones(6) if seed < 3 else rng.uniform(0.18, 0.5, 6)
  solved = mixing.solve(method, target_D, means_SD, bounds_S)
  assert np.all(solved.weights >= 0) and np.all(solved.weights <= bounds_S)
  assert np.sum(solved.weights) == pytest.approx(1)
  value = objective(method, target_D, means_SD)
  found = optimize.minimize(
    value,
    mixing.fill(np.ones(6), bounds_S),
    bounds=[(0, bound) for bound in bounds_S],
    constraints={'type': 'eq', 'fun': lambda w: np.sum(w) - 1},
    method='SLSQP',
    options={'maxiter': 500, 'ftol': 1e-13},
  )
  assert value(solved.weights) <= found.fun + 2e-6
  assert solved.gap < (1e-12 if method == 'least_squares' else 1.01e-6)


def test_least_squares_leaves_bounds_that_it_met_on_the_way():
  rng = np.random.default_rng(0)
  for _ in range(200):
    count = int(rng.integers(2, 12))
    means_SD = rng.standard_normal((count, 8))
    bounds_S = np.minimum(1, rng.uniform(1, 4, count) / count)
    target_D = rng.standard_normal(8) / 2
    solved = mixing.least_squares(target_D, means_SD, bounds_S)
    assert solved.gap < 1e-9
    assert np.all(solved.weights <= bounds_S) and np.all(solved.weights >= 0)
    assert np.sum(solved.weights) == pytest.approx(1)


def test_the_gap_bounds_what_weights_lack():
  """At other weights than the best it is at least the difference in value."""
  rng = np.random.default_rng(0)
  means_SD = rng.dirichlet(np.ones(30), 4)
  target_D = rng.dirichlet(np.ones(30))
  value = objective('em', target_D, means_SD)
  best = mixing.em(target_D, means_SD, np.ones(4), tolerance=1e-9)
  for steps in 1, 3, 10:
    early = mixing.em(target_D, means_SD, np.ones(4), most=steps)
    # The gap is that of the weights before the last step.
    assert (
      early.gap >= value(early.weights) - value(best.weights) - 1e-12 >= -1e-9
    )


def test_sources_that_are_the_same_leave_a_mix_that_is_best():
  rng = np.random.default_rng(0)
  means_SD = rng.dirichlet(np.ones(8), 3)[[0, 1, 1, 2, 2]]
  target_D = np.array([0.2, 0.5, 0, 0.3, 0]) @ means_SD
  for method in SOLVED:
    solved = mixing.solve(method, target_D, means_SD)
    np.testing.assert_allclose(
      solved.weights @ means_SD, target_D, atol=2e-3 if method == 'em' else 1e-9
    )


def test_one_source_has_all_the_weight():
  means_SD = np.array([[0.5, 0.5]])
  for method in SOLVED:
    assert mixing.solve(method, np.array([0.1, 0.9]), means_SD).weights == [1]


@pytest.mark.slow
@pytest.mark.parametrize('name', ['em', 'least_squares', 'lsa'])
@pytest.mark.parametrize('seed', [1, 2, 3])
def test_a_planted_mix_is_found_at_size(name, seed):
  embedder = similarity.Lsa() if name == 'lsa' else similarity.Ngrams()
  target, sources = means_of(embedder, 60_000, seed)
  method = 'least_squares' if name == 'lsa' else name
  mix = mixing.mix(method, target, sources, resamples=50)
  wrong = mixing.mix(method, by_documents(target), sources, resamples=2)
  assert error(mix) < 0.03 and error(wrong) > 0.1


def test_bounds_are_epochs_of_a_source_in_the_run():
  np.testing.assert_allclose(
    mixing.bounds([100, 1000, 10], 1000, 4), [0.4, 1, 0.04]
  )
  np.testing.assert_array_equal(mixing.bounds([1, 2], 0, 4), [1, 1])
  with pytest.raises(ValueError, match=r'--tokens=5,000: .* hold 1,110 tokens'):
    mixing.bounds([100, 1000, 10], 5000, 4)


@pytest.mark.parametrize(
  'shares, bounds, filled',
  [
    ([6, 3, 1], [0.4, 1, 1], [0.4, 0.45, 0.15]),
    # A bound can follow from another one.
    ([6, 3, 1], [0.4, 0.4, 1], [0.4, 0.4, 0.2]),
    # What a share of 0 leaves goes where there is room.
    ([1, 0, 0], [0.5, 0.75, 0.25], [0.5, 0.375, 0.125]),
  ],
)
def test_filled_keeps_proportions_below_the_bounds(shares, bounds, filled):
  found = mixing.fill(np.array(shares, float), np.array(bounds))
  np.testing.assert_allclose(found, filled)


def test_the_interval_holds_the_middle_95_percent_of_the_resamples(
  quick, monkeypatch
):
  target, sources = quick
  solved = iter([0.5, *np.random.default_rng(0).permutation(401) / 400])

  def solve(*_):
    weight = next(solved)
    rest = (1 - weight) / (len(sources) - 1)
    return mixing.Solved(np.array([weight, *[rest] * (len(sources) - 1)]), 0.0)

  monkeypatch.setattr(mixing, 'solve', solve)
  mix = mixing.mix('em', target, sources, resamples=401)
  assert mix.low[0] == pytest.approx(0.025)
  assert mix.high[0] == pytest.approx(0.975)
