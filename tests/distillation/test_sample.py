"""Sampled targets: right on average, in few slots, whatever the batch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.distillation import config
from kaiju_jax.distillation import sample
from tests.distillation import estimators

TOKENS, VOCAB, DRAWS = estimators.TOKENS, 32, 500
# N above T: some tokens get N = T, others N.
POINTS, SLOTS, K = 12, 7, 3
METHODS = {
  'systematic': config.Sampling(draws=POINTS, entries=SLOTS),
  'gumbel': config.Sampling('gumbel', k=K, entries=SLOTS),
  'gumbel, one threshold': config.Sampling(
    'gumbel', draws=POINTS, entries=SLOTS
  ),
  'multinomial': config.Sampling('multinomial', draws=SLOTS, entries=SLOTS),
}

DRAW = jax.jit(sample.draw, static_argnames='sampling')


@functools.cache
def teacher():
  return estimators.teacher(TOKENS, VOCAB)


@functools.cache
def functions():
  rng = np.random.default_rng(1)
  student = np.log(teacher()) + rng.normal(size=teacher().shape)
  return estimators.functions(student)


def rms_z(q):
  return estimators.rms_z([q], teacher(), functions())


@pytest.mark.parametrize(
  'name',
  [
    'systematic',
    'gumbel',
    pytest.param('gumbel, one threshold', marks=pytest.mark.slow),
    pytest.param('multinomial', marks=pytest.mark.slow),
  ],
)
def test_loss_and_gradient_are_those_of_the_whole_distribution(name):
  q, entries = estimators.estimates(teacher(), METHODS[name], DRAWS)
  assert entries.max() <= SLOTS
  for what, found in rms_z(q).items():
    assert abs(found - 1) < 0.15, (what, found)


def test_what_biases_them_is_seen():
  made = estimators.mutants(teacher(), POINTS, SLOTS, K)
  for name, mutant in made.items():
    # A random direction hardly sees what dividing by the sum does to the loss.
    assert max(rms_z(mutant(DRAWS, 0)).values()) > 1.5, name


def test_systematic_points_leave_little_to_chance():
  """Each entry has ⌊N·p⌋ or ⌈N·p⌉ points, N of all; its slots suffice."""
  q, entries = estimators.estimates(teacher(), METHODS['systematic'], DRAWS)
  count = (q > 0).sum(axis=-1)
  np.testing.assert_array_equal(entries, count)
  np.testing.assert_allclose(q.sum(axis=-1), 1, rtol=1e-6)
  # A token's smallest step tells its N.
  certain = np.floor(POINTS * teacher())
  most = POINTS - np.maximum(certain - 1, 0).sum(axis=-1)
  points = np.where(most > SLOTS, SLOTS, POINTS)
  assert set(points) == {SLOTS, POINTS}
  spare = 1e-5
  low = np.floor(points[:, None] * teacher() - spare)
  high = np.ceil(points[:, None] * teacher() + spare)
  counts = q * points[:, None]
  assert (low - spare <= counts).all() and (counts <= high + spare).all()


def test_spread_points_meet_each_unit_equally_often():
  """Over all beginnings, exactly: no rounding, whatever N and the total."""
  for total, count in ((37, 5), (64, 7), (10, 9)):
    points = sample._spread(
      np.arange(total)[:, None], np.arange(count)[None], total, count
    )
    met = np.bincount(points.ravel(), minlength=total)
    np.testing.assert_array_equal(met, np.full(total, count))


def test_a_point_on_an_edge_is_the_next_entrys():
  mass = jnp.array([2, 0, 3], jnp.uint32)
  points = jnp.arange(5, dtype=jnp.uint32)
  count = jax.jit(sample._count_met, static_argnums=4)
  found = count(mass, points, jnp.ones(5, bool), jnp.int32(5), 4)
  np.testing.assert_array_equal(found.ids_BLT, [0, 2, 0, 0])
  np.testing.assert_array_equal(found.counts_BLT, [2, 3, 0, 0])


def test_bits_become_numbers_below_a_limit():
  bits = np.array([0, 1, 2**31, 2**32 - 1, 123_456_789], np.uint32)
  limit = np.array([2**31 + 12_345], np.uint32)
  want = bits.astype(object) * int(limit[0]) // 2**32
  found = sample._scale_down(jnp.asarray(bits), jnp.asarray(limit))
  np.testing.assert_array_equal(found, want.astype(np.uint32))


def test_a_tokens_entries_depend_on_its_number_alone():
  logits = jnp.log(jnp.asarray(teacher(), jnp.float32))
  number = jnp.arange(TOKENS, dtype=jnp.uint32) + 7
  order = np.random.default_rng(0).permutation(TOKENS)
  sampling = METHODS['systematic']

  def drawn(logits, number):
    return DRAW(logits.reshape(10, 20, VOCAB), number.reshape(10, 20), sampling)

  whole, parts = drawn(logits, number), drawn(logits[order], number[order])
  for name in ('ids_BLT', 'counts_BLT'):
    found = getattr(parts, name).reshape(TOKENS, -1)
    want = getattr(whole, name).reshape(TOKENS, -1)[order]
    np.testing.assert_array_equal(found, want)
  other = drawn(logits, number + 1)
  assert (other.ids_BLT != whole.ids_BLT).any(axis=-1).mean() > 0.5


@pytest.mark.parametrize(
  'method',
  ['systematic', pytest.param('gumbel', marks=pytest.mark.slow)],
)
def test_slots_are_in_order_and_hold_what_there_is(method):
  """An entry of probability 1; as many as there are; and no distribution."""
  logits = np.full((1, 4, 5), -np.inf, np.float32)
  logits[0, 0, 3] = 0
  logits[0, 1] = [0, -np.inf, 0, 0, 0]
  logits[0, 2, 1] = np.nan
  sampling = config.Sampling(method, draws=40, entries=6)
  found = DRAW(logits, np.arange(4)[None], sampling)
  np.testing.assert_array_equal(found.entries_BL, [[1, 4, -1, -1]])
  np.testing.assert_array_equal(
    found.ids_BLT[0], [[3, *[0] * 5], [0, 2, 3, 4, 0, 0], [0] * 6, [0] * 6]
  )
  np.testing.assert_allclose(found.values_BLT[0, 0], [1, *[0] * 5])
  # Gumbel's one threshold leaves an entry's chance at 1 − e^−10.
  np.testing.assert_allclose(
    found.values_BLT[0, 1], [*[0.25] * 4, 0, 0], rtol=1e-4
  )


def test_everything_and_the_largest():
  logits = jnp.log(jnp.asarray(teacher(), jnp.float32))[None]
  number = jnp.zeros((1, TOKENS), jnp.uint32)
  full = DRAW(
    2 * logits,
    number,
    config.Sampling('full', temperature=2.0, entries=VOCAB),
  )
  np.testing.assert_allclose(full.values_BLT[0], teacher(), rtol=1e-5)
  top = DRAW(logits, number, config.Sampling('top_k', k=3, entries=4))
  largest = np.sort(np.argsort(teacher(), axis=-1)[:, -3:], axis=-1)
  np.testing.assert_array_equal(top.ids_BLT[0, :, :3], largest)
  np.testing.assert_allclose(top.values_BLT.sum(-1), np.ones((1, TOKENS)), 1e-6)


@pytest.mark.parametrize(
  'settings, field',
  [
    ({'method': 'top'}, "method='top'"),
    ({'draws': 1}, 'draws=1: must be in 2…65535'),
    ({'draws': 65_536}, 'draws=65536'),
    ({'method': 'gumbel', 'draws': 11}, 'draws=11: must be in 12…65535'),
    ({'method': 'multinomial', 'draws': 51}, 'draws=51: .* entries=50'),
    ({'method': 'top_k'}, 'k=0: must be in 1…50'),
    ({'method': 'gumbel', 'k': 51}, 'k=51: must be in 1…50'),
    ({'k': 3}, "k=3: must be 0 for method='systematic'"),
    ({'temperature': 0.0}, 'temperature=0.0'),
    ({'temperature': float('nan')}, 'temperature=nan'),
    ({'entries': 0}, 'entries=0'),
    ({'seed': -1}, 'seed=-1'),
  ],
)
def test_settings_that_mean_nothing_are_refused(settings, field):
  with pytest.raises(ValueError, match=field):
    config.check(config.Sampling(**settings))


def test_too_few_slots_for_everything_are_refused():
  with pytest.raises(ValueError, match=r'entries=50: must be at least 64'):
    sample.draw(
      jnp.zeros((1, 1, 64)), jnp.zeros((1, 1)), config.Sampling('full')
    )
