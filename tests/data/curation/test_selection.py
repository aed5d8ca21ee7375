"""Documents like a target: planted ones are found, and noise draws fairly."""

import numpy as np
import pytest

from kaiju_jax.data.curation import selection
from kaiju_jax.data.curation import similarity
from tests.data import planted


def drawn(total, seed, size=100):
  """Returns (target's texts, source's texts, the places of the planted)."""
  rng = np.random.default_rng(seed)
  like, *others = planted.distributions(4, seed, planted.PHRASES)
  hidden = rng.permutation(total)[: total // 10]
  source = planted.texts(np.mean(others, axis=0), total, size, rng)
  for place, text in zip(hidden, planted.texts(like, len(hidden), size, rng)):
    source[place] = text
  return planted.texts(like, max(100, total // 20), size, rng), source, hidden


def scores_of(method, target, source):
  if method == 'importance':
    counts = similarity.ngram_counts([*target, *source])
    return selection.importance(counts[: len(target)], counts[len(target) :])
  vectors = similarity.Lsa().embed([*target, *source])
  return selection.cosine(vectors[: len(target)], vectors[len(target) :])


def overlap(scores, hidden, noise=1.0):
  """Returns precision, which is recall: as many are chosen as are hidden."""
  chosen = selection.choose(scores, len(hidden), noise)
  return len(set(chosen.indices) & set(hidden)) / len(hidden)


@pytest.mark.parametrize('method', ['importance', 'cosine'])
@pytest.mark.parametrize(
  'total, chance',
  [(1000, 0.2), pytest.param(4000, 0.15, marks=pytest.mark.slow)],
)
def test_planted_documents_are_chosen(total, chance, method):
  target, source, hidden = drawn(total, int(total > 1000))
  assert overlap(scores_of(method, target, source), hidden) >= 0.9
  # The contrast: scores that know nothing.
  assert overlap(np.zeros(len(source)), hidden) < chance


def test_importance_is_the_log_of_how_much_likelier_a_text_is():
  """By the distributions that the texts were drawn from."""
  target, source, _ = drawn(1000, 0)
  like, *others = planted.distributions(4, 0, planted.PHRASES)
  logs = dict(
    zip(planted.PHRASES, np.log(like) - np.log(np.mean(others, axis=0)))
  )
  truth = [
    sum(logs[' '.join(three)] for three in zip(*[iter(text.split())] * 3))
    for text in source
  ]
  scores = scores_of('importance', target, source)
  # The source holds a tenth of the target, and little text smooths.
  assert np.corrcoef(truth, scores)[0, 1] > 0.9
  assert np.all(np.isfinite(scores))


def test_the_draw_is_in_proportion_to_the_exponential_of_the_scores():
  shares = np.array([0.5, 0.3, 0.15, 0.05])
  first = [
    selection.choose(np.log(shares), 1, seed=seed).indices[0]
    for seed in range(3000)
  ]
  found = np.bincount(first, minlength=4) / 3000
  np.testing.assert_allclose(found, shares, atol=0.035)
  # And without replacement: what is left decides the second.
  pairs = [
    tuple(selection.choose(np.log(shares), 2, seed=seed).indices)
    for seed in range(3000)
  ]
  both = 0.5 * 0.3 / 0.5 + 0.3 * 0.5 / 0.7
  assert pairs.count((0, 1)) / 3000 == pytest.approx(both, abs=0.035)


def test_no_noise_takes_the_highest_scores_in_the_sources_order():
  found = selection.choose([1, 5, 3, 4], 2, noise=0)
  assert found.indices.tolist() == [1, 3]


@pytest.mark.parametrize(
  'count, noise, field',
  [(5, 1, '--count=5: '), (0, 1, '--count=0: '), (1, -1, '--noise=-1: ')],
)
def test_what_cannot_be_chosen_is_refused(count, noise, field):
  with pytest.raises(ValueError, match=field):
    selection.choose(np.zeros(4), count, noise)


def test_a_target_of_one_document_has_one_centroid():
  vectors = np.eye(3, dtype=np.float32)
  scores = selection.cosine(vectors[:1], vectors)
  assert np.argmax(scores) == 0 and np.all(np.isfinite(scores))
