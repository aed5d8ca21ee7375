"""Draws against numpy's own reading of the filters, and against chance."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from kaiju_jax.decoding.requests import sampling as sampling_lib

Sampling = sampling_lib.Sampling
drawn = jax.jit(sampling_lib.draw)


def logits(rows, vocab_size, seed=0):
  generator = np.random.default_rng(seed)
  return generator.normal(0, 3, (rows, vocab_size)).astype(np.float32)


def wide(logits_BV, samplings):
  """Returns logits [16, 50] that begin with these, and their settings.

  What is added rules itself out. One shape compiles once.
  """
  B, V = np.shape(logits_BV)
  wide_BV = np.full((16, 50), -np.inf, np.float32)
  wide_BV[:B, :V] = logits_BV
  samplings = [*samplings] + [Sampling(temperature=0)] * (16 - B)
  return wide_BV, sampling_lib.settings(samplings)


def expected(logits_V, sampling):
  """One row's probabilities by sorting, in float64."""
  x_V = np.array(logits_V, np.float64)
  if sampling.temperature == 0:
    return np.eye(len(x_V))[np.argmax(x_V)]
  x_V /= sampling.temperature
  order = np.argsort(-x_V, kind='stable')
  kept = list(order[: sampling.top_k or None])
  p_V = np.zeros_like(x_V)
  p_V[kept] = np.exp(x_V[kept] - x_V.max())
  p_V /= p_V.sum()
  if sampling.top_p < 1:
    before = 0.0
    for token in order:
      mass, p_V[token] = p_V[token], p_V[token] * (before < sampling.top_p)
      before += mass
  p_V[p_V < sampling.min_p * p_V.max()] = 0
  return p_V / p_V.sum()


SAMPLINGS = [
  Sampling(),
  Sampling(temperature=0),
  Sampling(temperature=0.3),
  Sampling(temperature=4.0),
  Sampling(top_k=1),
  Sampling(top_k=5),
  Sampling(top_k=1000),
  Sampling(top_p=0.5),
  Sampling(top_p=0.999),
  Sampling(top_p=1e-6),
  Sampling(min_p=0.1),
  Sampling(min_p=1.0),
  Sampling(temperature=2.0, top_k=20, top_p=0.8, min_p=0.05),
  Sampling(1.5, top_k=7, top_p=0.9, min_p=0.02),
]


def noise(seed, index, count):
  """One row's Gumbel noise by the library's key, in float64."""
  words = np.array([seed, index], np.uint32)
  key = jax.random.wrap_key_data(words, impl='threefry2x32')
  u_V = (np.asarray(jax.random.bits(key, (count,)), np.float64) + 0.5) / 2**32
  return -np.log(-np.log1p(-u_V))


def test_draws_equal_a_plain_implementation():
  count = len(SAMPLINGS)
  logits_BV = logits(count, 50)
  settings = sampling_lib.settings(SAMPLINGS)
  with np.errstate(divide='ignore'):
    log_BV = np.log([*map(expected, logits_BV, SAMPLINGS)])
  for index in range(200):
    token_B, _ = drawn(logits_BV, settings, np.full(count, index, np.int32))
    wanted_BV = (
      log_BV + noise(0, index, 50) * (settings.temperature_B > 0)[:, None]
    )
    np.testing.assert_array_equal(token_B, wanted_BV.argmax(-1))


def test_filters_drawn_out():
  # Probabilities 1/2, 1/4, 1/8, 1/8.
  logits_BV = np.log([[0.5, 0.25, 0.125, 0.125]] * 7).astype(np.float32)
  samplings = [
    Sampling(top_k=2),
    Sampling(top_k=3),
    Sampling(top_p=0.5),
    Sampling(top_p=0.51),
    Sampling(top_p=0.6, top_k=2),
    Sampling(min_p=0.4),
    Sampling(temperature=0),
  ]
  kept_BV = np.zeros((7, 4), bool)
  wide_BV, settings = wide(logits_BV, samplings)
  for index in range(200):
    token_B, _ = drawn(wide_BV, settings, np.full(16, index, np.int32))
    kept_BV[np.arange(7), token_B[:7]] = True
  np.testing.assert_array_equal(
    kept_BV.astype(int),
    [
      [1, 1, 0, 0],
      [1, 1, 1, 1],  # A tie is kept whole.
      [1, 0, 0, 0],
      [1, 1, 0, 0],
      [1, 0, 0, 0],  # 2/3 of what top_k keeps.
      [1, 1, 0, 0],
      [1, 0, 0, 0],
    ],
  )


def test_tokens_come_as_often_as_they_should():
  count, vocab_size = 4000, 12
  sampling = Sampling(temperature=1.3, top_k=9, top_p=0.95)
  logits_V = logits(1, vocab_size)[0] / 3
  seeds = [dataclasses.replace(sampling, seed=i % 40) for i in range(count)]
  token_B, _ = drawn(
    np.tile(logits_V, (count, 1)),
    sampling_lib.settings(seeds),
    np.arange(count, dtype=np.int32) // 40,
  )
  wanted_V = expected(logits_V, sampling)
  seen_V = np.bincount(token_B, minlength=vocab_size)
  kept = wanted_V > 0
  assert not seen_V[~kept].any()
  assert kept.sum() > 5
  test = scipy.stats.chisquare(seen_V[kept], wanted_V[kept] * count)
  assert test.pvalue > 0.01
  # Successive draws of one seed are independent too.
  pairs = np.zeros((vocab_size, vocab_size))
  one_seed = np.asarray(token_B)[3::40]
  np.add.at(pairs, (one_seed[:-1], one_seed[1:]), 1)
  assert np.corrcoef(one_seed[:-1], one_seed[1:])[0, 1] < 0.3


def test_rare_tokens_are_neither_lost_nor_favoured():
  """Noise of few bits lets one of many rare tokens win too often, or never."""
  rows, vocab_size = 200, 20_000
  settings = sampling_lib.settings([Sampling(seed=i) for i in range(rows)])
  index_B = np.zeros(rows, np.int32)
  logits_BV = np.full((rows, vocab_size), np.log(1e-5), np.float32)
  logits_BV[:, 0] = np.log(0.8)  # All others together 0.2.
  token_B, _ = drawn(logits_BV, settings, index_B)
  rare = int((np.asarray(token_B) > 0).sum())
  assert scipy.stats.binomtest(rare, rows, 0.2).pvalue > 0.01
  assert len({int(t) for t in token_B if t}) > 0.95 * rare
  logits_BV[:, 1:] = np.log(1e-8)  # 0.0002.
  token_B, _ = drawn(logits_BV, settings, index_B)
  assert (np.asarray(token_B) > 0).sum() < 3


def test_the_largest_noise_word_rules_no_token_out():
  # Seed 6,468,900 was searched for: its entry 1 has bits 0xffffffdd.
  logits_BV = np.array([[-np.inf, 0.0]], np.float32)
  settings = sampling_lib.settings([Sampling(seed=6_468_900)])
  token_B, _ = drawn(logits_BV, settings, np.zeros(1, np.int32))
  assert token_B.tolist() == [1]


def test_a_row_draws_the_same_in_any_row_beside_any_others():
  samplings = [
    dataclasses.replace(one, seed=7 * i) for i, one in enumerate(SAMPLINGS)
  ]
  rows = len(samplings)
  logits_BV = logits(rows, 50, seed=2)
  index_B = np.arange(rows, dtype=np.int32) + 3
  together_B, own_B = drawn(
    logits_BV, sampling_lib.settings(samplings), index_B
  )
  order = np.random.default_rng(3).permutation(rows)
  moved_B, moved_own_B = drawn(
    logits_BV[order],
    sampling_lib.settings([samplings[i] for i in order]),
    index_B[order],
  )
  np.testing.assert_array_equal(moved_B, together_B[order])
  np.testing.assert_array_equal(moved_own_B, own_B[order])
  for i in range(rows):
    # Beside a greedy row none of the filters' branches runs but this row's.
    alone_B, _ = drawn(
      logits_BV[[i, 0]],
      sampling_lib.settings([samplings[i], Sampling(temperature=0)]),
      index_B[[i, 0]],
    )
    assert alone_B[0] == together_B[i], samplings[i]


def test_seed_and_index_both_change_the_noise():
  logits_BV = np.zeros((64, 1000), np.float32)
  same = sampling_lib.settings([Sampling(seed=5)] * 64)
  index_B = np.arange(64, dtype=np.int32)
  by_index_B, _ = drawn(logits_BV, same, index_B)
  by_seed_B, _ = drawn(
    logits_BV,
    sampling_lib.settings([Sampling(seed=i) for i in range(64)]),
    index_B * 0,
  )
  again_B, _ = drawn(logits_BV, same, index_B)
  assert len(set(by_index_B.tolist())) > 55
  assert len(set(by_seed_B.tolist())) > 55
  np.testing.assert_array_equal(by_index_B, again_B)
  last = sampling_lib.settings([Sampling(seed=2**32 - 1)] * 64)
  by_index_B, _ = drawn(logits_BV, last, index_B)
  assert len(set(by_index_B.tolist())) > 55


def test_log_probabilities_are_the_models_own():
  logits_BV = logits(len(SAMPLINGS), 50)
  index_B = np.zeros(len(SAMPLINGS), np.int32)
  token_B, own_B = drawn(
    logits_BV, sampling_lib.settings(SAMPLINGS), index_B, -logits_BV
  )
  p_BV = np.exp(logits_BV.astype(np.float64))
  p_BV /= p_BV.sum(-1, keepdims=True)
  wanted_B = np.log(p_BV[np.arange(len(SAMPLINGS)), token_B])
  np.testing.assert_allclose(own_B, wanted_B, rtol=1e-5)


def test_logits_without_a_choice_give_no_token():
  logits_BV = np.zeros((6, 4), np.float32)
  logits_BV[0, 2] = np.nan
  logits_BV[1, 0] = np.inf
  logits_BV[2] = -np.inf
  logits_BV[3, :3] = -np.inf
  logits_BV[4] = np.nan
  for sampling in Sampling(temperature=0), Sampling(top_k=2), Sampling():
    wide_BV, rows = wide(logits_BV, [sampling] * 6)
    # All entries of a row are NaN, not only those of the first four.
    wide_BV[4] = np.nan
    token_B, own_B = drawn(wide_BV, rows, np.zeros(16, np.int32))
    own_B = own_B[:6]
    assert token_B[:3].tolist() == [-1, -1, -1]
    assert token_B[3] == 3 and token_B[4] == -1 and 0 <= token_B[5] < 4
    np.testing.assert_array_equal(np.isnan(own_B), [1, 1, 1, 0, 1, 0])


def test_extreme_logits_and_temperatures_draw():
  logits_BV = np.array([[3e38, -3e38, 0.0], [-3e38, -1e38, -3e38]], np.float32)
  for temperature in 0, 1e-6, 1.0:
    wide_BV, settings = wide(logits_BV, [Sampling(temperature)] * 2)
    token_B, _ = drawn(wide_BV, settings, np.zeros(16, np.int32))
    assert token_B[:2].tolist() == [0, 1]


def test_filters_are_skipped_where_no_row_asks():
  text = drawn.lower(
    jnp.zeros((2, 8)),
    sampling_lib.settings([Sampling()] * 2),
    np.zeros(2, np.int32),
  ).as_text()
  # Greedy or not; top_k or not; top_p or not.
  assert text.count('stablehlo.case') + text.count('stablehlo.if') == 3
  assert 'stablehlo.sort' not in text


@pytest.mark.parametrize(
  ('field', 'value', 'error'),
  [
    ('temperature', -0.1, ValueError),
    ('temperature', 1e-9, ValueError),
    ('temperature', float('nan'), ValueError),
    ('temperature', float('inf'), ValueError),
    ('temperature', '1', TypeError),
    ('temperature', True, TypeError),
    ('top_k', -1, ValueError),
    ('top_k', 2.0, TypeError),
    ('top_p', 0.0, ValueError),
    ('top_p', 1.1, ValueError),
    ('min_p', -0.1, ValueError),
    ('min_p', 1.1, ValueError),
    ('repetition_penalty', 0.0, ValueError),
    ('repetition_penalty', float('nan'), ValueError),
    ('repeat_last_n', -2, ValueError),
    ('repeat_last_n', 1025, ValueError),
    ('frequency_penalty', 2.1, ValueError),
    ('frequency_penalty', float('nan'), ValueError),
    ('presence_penalty', -2.1, ValueError),
    ('dry_multiplier', -0.1, ValueError),
    ('dry_base', 0.9, ValueError),
    ('dry_allowed_length', 0, ValueError),
    ('dry_penalty_last_n', 1025, ValueError),
    ('seed', -1, ValueError),
    ('seed', 2**32, ValueError),
    ('seed', None, TypeError),
  ],
)
def test_settings_out_of_range_are_refused(field, value, error):
  with pytest.raises(error, match=f'^{field}={value!r}: must be '):
    Sampling(**{field: value})


def test_other_shapes_are_refused():
  settings = sampling_lib.settings([Sampling()] * 2)
  index_B = np.zeros(2, np.int32)
  with pytest.raises(ValueError, match='logits_BV has shape'):
    sampling_lib.draw(np.zeros(4, np.float32), settings, index_B)
  with pytest.raises(ValueError, match=r'temperature_B has shape \(2,\)'):
    sampling_lib.draw(np.zeros((3, 4), np.float32), settings, index_B)
  with pytest.raises(ValueError, match=r'penalized_BV .* expected \(2, 4\)'):
    sampling_lib.draw(
      np.zeros((2, 4), np.float32), settings, index_B, np.zeros((2, 3))
    )


MANY = 33_003  # No multiple of a group.


def _shapes_of_logits(random):
  """Yields logits [8, MANY]: plain ones, ties, flat rows, and no numbers."""
  for scale in 0.01, 1.0, 3.0, 9.0:
    yield random.normal(0, scale, (8, MANY))
  yield np.round(random.normal(0, 2, (8, MANY)))
  yield np.zeros((8, MANY))
  yield np.sort(random.normal(0, 3, (8, MANY)))
  many = random.normal(0, 3, (8, MANY))
  many[:, ::32] += 6  # One large entry in each group.
  yield many
  bad = np.round(random.normal(0, 3, (8, MANY)), 1)
  bad[:, random.random(MANY) < 0.5] = -np.inf
  bad[0, 5], bad[1, 7], bad[2] = np.nan, np.inf, -np.inf
  yield bad
  far = random.normal(0, 1, (8, MANY))
  yield far * np.array([[1e30, 1e-20, 1e-38, 1, 5, 30, 100, 1e37]]).T


KEPT = 0, 20, 700, 20_000


@pytest.mark.parametrize(
  'is_all', [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_the_nearest_entries_decide_as_the_whole_vocabulary_does(
  monkeypatch, is_all
):
  """Bit for bit, whether or not they suffice."""
  whole_draw = jax.jit(lambda *arguments: sampling_lib.draw(*arguments))
  random = np.random.default_rng(0)
  for number, logits_BV in enumerate(_shapes_of_logits(random)):
    logits_BV = logits_BV.astype(np.float32)
    for kept in KEPT if is_all else KEPT[number % 4 :][:1]:
      samplings = [
        Sampling(
          temperature=random.choice([0.0, 0.3, 0.7, 1.0, 2.5]),
          top_k=kept if row % 2 else 0,
          top_p=random.choice([1.0, 0.95, 0.5, 1e-4]) if kept else 1.0,
          min_p=random.choice([0.0, 0.0, 0.05, 1.0]),
          seed=int(random.integers(2**32)),
        )
        for row in range(8)
      ]
      settings = sampling_lib.settings(samplings)
      index_B = random.integers(0, 9999, 8).astype(np.int32)
      arguments = logits_BV, settings, index_B
      found = drawn(*arguments)
      with monkeypatch.context() as patch:
        patch.setattr(sampling_lib, '_LARGE', MANY + 1)
        wanted = whole_draw(*arguments)
      jax.tree.map(np.testing.assert_array_equal, found, wanted)


def test_the_nearest_entries_are_all_below_their_bound():
  random = np.random.default_rng(1)
  depth_BV = random.exponential(5, (3, MANY)).astype(np.float32)
  near = jax.jit(sampling_lib._nearest)(depth_BV)
  depth_BC, entry_BC, bound_B = map(np.asarray, (*near, near.bound_B))
  for row in range(3):
    inside = set(np.flatnonzero(depth_BV[row] < bound_B[row]).tolist())
    assert len(inside) >= 500 and inside <= set(entry_BC[row].tolist())
    own = np.sort(depth_BV[row])[: len(entry_BC[row])]
    np.testing.assert_array_equal(depth_BC[row], own)
    np.testing.assert_array_equal(depth_BV[row][entry_BC[row]], own)
  assert sampling_lib._nearest(depth_BV[:, :1000]) is None


def test_noise_is_that_of_the_library_s_key():
  words = np.array([7, 12], np.uint32)
  key = jax.random.wrap_key_data(words, impl='threefry2x32')
  u_V = (np.asarray(jax.random.bits(key, (100,)), np.float32) + 0.5) / 2**32
  entry_BC = np.array([[3, 99, 0, 50]], np.int32)
  noise_BC = sampling_lib._gumbel(words[:1], words[1:], entry_BC)
  wanted_C = -np.log(-np.log1p(-u_V[entry_BC[0]]))
  np.testing.assert_allclose(noise_BC[0], wanted_C, rtol=1e-5)
