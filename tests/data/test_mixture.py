"""Rows of several sources, by weights that count tokens."""

import json

import numpy as np
import pytest
from scipy import special

from kaiju_jax.data import loader
from kaiju_jax.data import mixture as mixture_lib
from kaiju_jax.data import packing
from kaiju_jax.data import text as text_lib
from tests.data import toys

LENGTH = 16


def _corpus(letter, documents=9, size=40):
  return toys.corpus(*[letter * size] * documents)


def _part(name, weight, anneal=None, corpus=None):
  corpus = corpus or _corpus(name)
  rows = text_lib.Rows(corpus, LENGTH, seed=3)
  anneal = weight if anneal is None else anneal
  return mixture_lib.Part(name, rows, weight, anneal)


def _mixture(*parts, total=400, **options):
  parts = parts or (_part('a', 0.5, 0.1), _part('b', 0.3), _part('c', 0.2))
  options = {'anneal_at': 0.5, 'anneal_over': 0.25, 'block': 32} | options
  return mixture_lib.Mixture(parts, total, seed=5, **options)


def _components(mixture, rows):
  return np.array([mixture[n].extras[packing.COMPONENT] for n in range(rows)])


def _assert_equal(one, other):
  """Compares two batches to the bit."""
  fields = ((*x[:-1], x.extras[packing.COMPONENT]) for x in (one, other))
  for a, b in zip(*fields):
    np.testing.assert_array_equal(a, b)
    assert a.dtype == b.dtype


def test_a_mixture_of_one_source_is_that_source():
  part = _part('a', 2.0)
  mixture = _mixture(part, anneal_at=1.0)
  for index in range(100):
    *fields, extras = mixture[index]
    for found, wanted in zip(fields, part.rows[index]):
      np.testing.assert_array_equal(found, wanted)
    assert extras == {packing.COMPONENT: 0}


def test_each_source_gives_its_rows_in_its_own_order():
  mixture = _mixture()
  seen = [0, 0, 0]
  for index in range(450):
    row = mixture[index]
    part = int(row.extras[packing.COMPONENT])
    own = mixture.parts[part].rows[seen[part]]
    np.testing.assert_array_equal(row.tokens, own.tokens)
    np.testing.assert_array_equal(row.weight, own.weight)
    seen[part] += 1
    assert mixture.counts(index + 1).tolist() == seen
  # The first half by one set of weights, a quarter by their mean.
  wanted = np.array([0.5, 0.3, 0.2]) * 200
  wanted += 100 * (np.array([0.5, 0.3, 0.2]) + np.array([1, 3, 2]) / 6) / 2
  assert np.abs(mixture.counts(300) - wanted).max() < 1


def test_rows_are_a_pure_function_of_their_number():
  straight, jumping = _mixture(), _mixture()
  rows = [packing.stack([straight[n]]) for n in range(120)]
  for index in np.random.default_rng(0).permutation(120).tolist():
    _assert_equal(packing.stack([jumping[index]]), rows[index])
  other = mixture_lib.Mixture(straight.parts, 400, block=32, seed=6)
  assert (_components(other, 32) != _components(straight, 32)).any()


def _uniformity(is_there):
  """Returns the p-value of a uniform order: bool[blocks, Q], equal counts."""
  blocks, size = is_there.shape
  share = is_there.mean()
  excess = is_there.sum(0) - blocks * share
  # Without replacement: the excesses of a block sum to 0.
  value = (excess**2).sum() / (blocks * share * (1 - share))
  return special.chdtrc(size - 1, value * (size - 1) / size)


def test_the_order_within_blocks_is_uniform():
  mixture = _mixture(
    _part('a', 0.25), _part('b', 0.75), block=16, anneal_at=1.0, total=2560
  )
  drawn = _components(mixture, 2560).reshape(160, 16) == 0
  assert (drawn.sum(1) == 4).all()
  assert _uniformity(drawn) > 1e-3
  # The contrast: an order that is not drawn, or drawn but once.
  assert _uniformity(np.sort(drawn, axis=1)) < 1e-6
  assert _uniformity(np.repeat(drawn[:1], 160, axis=0)) < 1e-6


def _p_of_share(shares, wanted):
  """Returns the p-value of a mean, by Student's t over batches."""
  error = np.std(shares, ddof=1) / np.sqrt(len(shares))
  t = abs(np.mean(shares) - wanted) / max(error, 1e-12)
  return 2 * special.stdtr(len(shares) - 1, -t)


def test_weights_count_tokens_and_not_documents():
  """Two sources of equal weight, of documents of 400 and of 4,000 tokens."""
  short, long = _corpus('a', 20, 399), _corpus('b', 20, 3999)
  parts = _part('a', 1, corpus=short), _part('b', 1, corpus=long)
  mixture = _mixture(*parts, block=40, anneal_at=1.0)
  rng = np.random.default_rng(0)
  of_rows, of_documents = [], []
  for batch in range(30):
    tokens = np.zeros(2)
    for index in range(batch * 50, batch * 50 + 50):
      row = mixture[index]
      tokens[row.extras[packing.COMPONENT]] += (row.source >= 0).sum()
    of_rows.append(tokens[0] / tokens.sum())
    drawn = rng.random(50) < 0.5
    sizes = np.where(drawn, 400, 4000)
    of_documents.append(sizes[drawn].sum() / sizes.sum())
  assert _p_of_share(of_rows, 0.5) > 1e-3
  assert _p_of_share(of_documents, 0.5) < 1e-6
  assert np.mean(of_documents) < 0.2


@pytest.mark.parametrize('microbatches', [1, 2])
def test_a_resumed_loader_gives_the_same_rows(microbatches):
  """Inside a block, inside the annealing, and with another batch size."""
  straight = loader.batches(_mixture(), batch=2)
  states, rows = [], []
  for _ in range(160):
    states.append(json.loads(json.dumps(straight.get_state())))
    rows.append(next(straight))
  straight.close()
  for begin in (5, 99, 101, 125, 147):
    resumed = loader.batches(_mixture(), batch=2, microbatches=microbatches)
    resumed.set_state(states[begin])
    for step in range(begin, begin + 4, microbatches):
      batch = next(resumed)
      for n in range(microbatches):
        _assert_equal(batch.map(lambda x, n=n: x[n : n + 1]), rows[step + n])
    resumed.close()
  assert states[101]['account']['c'] == {'rows': 40}


@pytest.mark.parametrize(
  'changed, message',
  [
    (lambda: (_part('a', 3), _part('b', 1)), r"'a' gave .*\(20 then, 30 now"),
    (lambda: (_part('a', 1), _part('d', 1)), r"'d' gave .* \(no record then"),
  ],
)
def test_other_counts_of_rows_than_at_the_checkpoint_are_refused(
  changed, message
):
  options = {'anneal_at': 1.0, 'block': 8}
  before = loader.batches(
    _mixture(_part('a', 1), _part('b', 1), **options), batch=2, start=40
  )
  after = loader.batches(_mixture(*changed(), **options), batch=2)
  with pytest.raises(ValueError, match=message):
    after.set_state(before.get_state())
  for one in (before, after):
    one.close()


def test_parts_keep_the_extras_of_their_rows():
  part = _part('a', 1)

  class Beside:
    def __len__(self):
      return len(part.rows)

    def __getitem__(self, index):
      return part.rows[index]._replace(extras={'label_BL': np.arange(LENGTH)})

  mixture = _mixture(part._replace(rows=Beside()))
  batch = packing.stack([mixture[0], mixture[1]])
  assert batch.extras['label_BL'].shape == (2, LENGTH)
  assert batch.extras[packing.COMPONENT].tolist() == [0, 0]


def test_a_run_and_its_shares():
  mixture = _mixture()
  assert len(mixture) == 400
  assert mixture.shares.sum() == pytest.approx(1)
  assert mixture.shares[0] == pytest.approx(
    0.5 * 0.5 + 0.25 * (0.5 + 1 / 6) / 2 + 0.25 / 6
  )
  with pytest.raises(IndexError, match='row -1'):
    mixture[-1]
