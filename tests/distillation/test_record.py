"""Records: drawn, exact there and back, and unbiased where they round."""

import dataclasses

import numpy as np
import pytest
import zstandard

from kaiju_jax.distillation import config as config_lib
from kaiju_jax.distillation import record as record_lib

Targets = record_lib.Targets


def _counts(rng, tokens, form, most=None):
  """Random targets: any number of entries per token, none among them."""
  ids_NT = np.zeros((tokens, form.entries), np.int32)
  counts_NT = np.zeros((tokens, form.entries), np.int32)
  for token in range(tokens):
    held = int(rng.integers(0, form.entries + 1))
    slots = rng.choice(form.entries, held, replace=False)
    ids_NT[token, slots] = rng.choice(form.vocab_size, held, replace=False)
    counts_NT[token, slots] = rng.integers(1, (most or form.largest) + 1, held)
  return Targets(ids_NT, counts_NT)


def _dense(targets, vocab_size):
  dense_NV = np.zeros((len(targets.ids_NT), vocab_size))
  for token, (ids, weights) in enumerate(zip(*targets)):
    held = weights > 0
    dense_NV[token, ids[held]] = weights[held]
  return dense_NV


def test_a_record_drawn():
  """Token 0: 5 twice, 700 once. Token 1: none. Token 2: 9 and 1, once each."""
  targets = Targets(
    np.array([[700, 5, 0], [0, 0, 0], [9, 0, 1]]),
    np.array([[1, 2, 0], [0, 0, 0], [1, 0, 1]]),
  )
  form = record_lib.Form(vocab_size=1000, entries=3)
  low, high = [5, 700 % 256, 1, 9], [0, 700 // 256, 0, 0]
  expected = [3, 0, 0, 0, *(2, 0, 2), *(1, 0, 0), *low, *high, 2]
  assert list(record_lib.planes(targets, form)) == expected
  ids_NT, values_NT = record_lib.decode(record_lib.encode(targets, form), form)
  assert ids_NT.tolist() == [[5, 700, 0], [0, 0, 0], [1, 9, 0]]
  np.testing.assert_array_equal(
    values_NT, np.float32([[2 / 3, 1 / 3, 0], [0, 0, 0], [0.5, 0.5, 0]])
  )
  assert ids_NT.dtype == np.int32 and values_NT.dtype == np.float32


@pytest.mark.parametrize(
  'form',
  [
    record_lib.Form(300, 12, largest=12),
    record_lib.Form(70_000, 12, largest=300),
    record_lib.Form(2000, 260, largest=260),
  ],
)
def test_counts_come_back_exactly(form):
  rng = np.random.default_rng(0)
  targets = _counts(rng, 50, form)
  found = record_lib.decode(record_lib.encode(targets, form), form)
  expected_NV = _dense(targets, form.vocab_size)
  expected_NV /= np.maximum(expected_NV.sum(1, keepdims=True), 1)
  np.testing.assert_array_equal(
    _dense(found, form.vocab_size), expected_NV.astype(np.float32)
  )


def test_floats_come_back_to_their_precision_and_without_bias():
  rng = np.random.default_rng(1)
  form = record_lib.Form(5000, 8, 'float16')
  ids_NT = np.sort(rng.choice(5000, (40, 8)), axis=1)
  values_NT = np.exp(rng.uniform(np.log(1e-4), 0, (40, 8)))
  targets = Targets(ids_NT, values_NT)
  found = record_lib.decode(record_lib.encode(targets, form), form)
  np.testing.assert_array_equal(found.ids_NT, ids_NT)
  np.testing.assert_allclose(found.weights_NT, values_NT, rtol=5e-4)

  form = dataclasses.replace(form, coding='log8')
  draws = 400
  kept = [
    record_lib.decode(record_lib.encode(targets, form, noise), form).weights_NT
    for noise in range(draws)
  ]
  assert record_lib.encode(targets, form, 3) == record_lib.encode(
    targets, form, 3
  )
  relative = np.array(kept) / values_NT - 1
  assert np.abs(relative).max() < 0.06
  assert relative.std() < 0.03
  above = np.exp2(np.ceil(np.log2(values_NT) * 12) / 12)
  below = above * np.exp2(-1 / 12)
  spread = np.sqrt((above - values_NT) * (values_NT - below) / draws)
  spread /= values_NT
  z = relative.mean(0) / spread
  assert 0.85 < np.sqrt(np.mean(z**2)) < 1.15
  mutant = below / values_NT - 1
  assert np.sqrt(np.mean((mutant / spread) ** 2)) > 5  # The mutant: no chance.


def test_the_smallest_values_stay():
  form = record_lib.Form(10, 3, 'log8')
  targets = Targets(np.array([[1, 2, 3]]), np.array([[1.0, 1e-9, 1e-4]]))
  found = record_lib.decode(record_lib.encode(targets, form), form)
  np.testing.assert_allclose(
    found.weights_NT, [[1, 4e-7, 1e-4]], rtol=0.06, atol=1e-8
  )


@pytest.mark.parametrize('k', [1, 2, 4, 7, 8])
def test_a_record_keeps_the_mass_of_gumbels_values(k):
  """Of an open distribution, where q̂ is often above 1 for a small k."""
  rng = np.random.default_rng(k)
  sampling = config_lib.Sampling('gumbel', k=k, entries=10)
  # The (k + 1)-th largest of many Gumbel variables is −log of a Gamma one.
  values_NT = np.zeros((20_000, 10))
  values_NT[:, :k] = 1 / rng.gamma(k + 1, size=(20_000, 1))
  ids_NT = np.tile(np.arange(10), (20_000, 1))
  form = record_lib.form_of(sampling, 64)
  held = 0.0
  for number, block in enumerate(record_lib.blocks(Targets(ids_NT, values_NT))):
    encoded = record_lib.encode(block, form, number)
    held += record_lib.decode(encoded, form).weights_NT.sum(dtype=np.float64)
  assert held == pytest.approx(values_NT.sum(), rel=1e-3)


def test_a_value_that_float16_cannot_hold_is_its_largest():
  form = record_lib.Form(10, 1, 'float16')
  targets = Targets(np.array([[3]]), np.array([[1e6]]))
  found = record_lib.decode(record_lib.encode(targets, form), form)
  assert found.weights_NT.tolist() == [[65_504]]


def test_each_method_has_its_coding():
  for method, coding in (
    ('systematic', 'counts'),
    ('multinomial', 'counts'),
    ('gumbel', 'log8'),
    ('top_k', 'log8'),
    ('full', 'float16'),
  ):
    sampling = config_lib.Sampling(method, draws=300, k=0, entries=40)
    form = record_lib.form_of(sampling, 1024)
    assert form == record_lib.Form(1024, 40, coding, 300)


def test_bytes_per_token_are_those_of_the_records():
  form = record_lib.Form(4096, 20, largest=20)
  targets = _counts(np.random.default_rng(2), 1500, form, most=3)
  before, after = record_lib.bytes_per_token(targets, form)
  blocks = list(record_lib.blocks(targets))
  assert [len(block.ids_NT) for block in blocks] == [1024, 476]
  encoded = [record_lib.encode(block, form) for block in blocks]
  assert after == sum(map(len, encoded)) / 1500
  assert before == sum(len(zstandard.decompress(e)) for e in encoded) / 1500
  held = (targets.weights_NT > 0).sum()
  heads = (targets.weights_NT > 1).sum()
  assert before == (2 * 4 + 2 * 1500 + 2 * held + heads) / 1500
  assert after < before


def test_what_a_record_cannot_hold():
  form = record_lib.Form(100, 2, largest=5)
  with pytest.raises(ValueError, match=r'ids 3…100: must lie in 0…99'):
    record_lib.planes(Targets(np.array([[3, 100]]), np.ones((1, 2), int)), form)
  with pytest.raises(ValueError, match='a count of 6: must be at most 5'):
    record_lib.planes(Targets(np.array([[3, 4]]), np.array([[6, 1]])), form)
  whole = record_lib.encode(
    Targets(np.array([[3, 4]]), np.array([[2, 1]])), form
  )
  raw = zstandard.decompress(whole)
  for broken in (whole[:-3], zstandard.compress(raw[:-1]), b''):
    with pytest.raises(ValueError, match='not a record of Form'):
      record_lib.decode(broken, form)
  with pytest.raises(ValueError, match='1 bytes are left over'):
    record_lib.decode(zstandard.compress(raw + b'\0'), form)
