"""Sums in 6 bits: exact to the codec, the same everywhere, bytes alone."""

import functools
import math
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest

from kaiju_jax.kernels.squinch import reference
from kaiju_jax.wire import squinch

WORKERS = 8
CODES = [
  {'elements': elements, 'header': header}
  for elements in reference.ELEMENTS
  for header in reference.HEADERS
]


def mesh_of(workers=WORKERS):
  return jax.sharding.Mesh(
    np.asarray(jax.devices()[:workers]),
    ('data',),
    axis_types=(jax.sharding.AxisType.Auto,),
  )


def each(f, workers=WORKERS):
  """f of each worker's own, which stand one after another along axis 0."""

  def local(*args):
    own = jax.tree.map(lambda x: x[0], args)
    return jax.tree.map(lambda x: x[None], f(*own))

  return jax.jit(
    jax.shard_map(
      local,
      mesh=mesh_of(workers),
      in_specs=P('data'),
      out_specs=P('data'),
      check_vma=False,
    )
  )


def gradients(*shape, seed=0):
  """Of eight workers, magnitudes a long way apart."""
  rng = np.random.default_rng(seed)
  octaves = rng.uniform(-12, 0, (1, *shape))
  return (rng.standard_normal((WORKERS, *shape)) * 2**octaves).astype('f4')


@functools.partial(jax.jit, static_argnames=('elements', 'header'))
def round_trip(x_RC, elements, header):
  packed = reference.encode(x_RC, elements, header)
  return reference.decode(packed, elements, header)


def through_the_codec(x_RC, codes):
  return np.asarray(round_trip(x_RC, **codes))


@pytest.fixture(scope='module')
def scattered():
  """What eight workers send, and what their owners get of it by codec."""
  x_NRC = gradients(64, 50)
  reduced = each(
    lambda x: [squinch.reduce_scatter(x, 'data', **codes) for codes in CODES]
  )(x_NRC)
  return x_NRC, {tuple(c.values()): y for c, y in zip(CODES, reduced)}


@pytest.mark.parametrize('codes', CODES, ids=lambda c: '-'.join(c.values()))
def test_the_owner_has_the_float32_sum_of_what_the_codec_gives(
  codes, scattered
):
  x_NRC, reduced = scattered
  got = reduced[tuple(codes.values())]
  expected = np.zeros((64, 50), np.float32)
  for x_RC in x_NRC:
    expected = expected + through_the_codec(x_RC, codes)
  assert got.shape == (8, 8, 50) and got.dtype == jnp.float32
  np.testing.assert_array_equal(got.reshape(64, 50), expected)


@pytest.mark.parametrize('codes', CODES, ids=lambda c: '-'.join(c.values()))
def test_the_error_is_within_the_sum_of_the_bounds(codes, scattered):
  # √|x| is within a share of √maxabs of √|x̂|, and maxabs at most a step above
  # the largest of its eight.
  shares = {
    'zero': 1 / 30,
    'floor': 1 / 16,
    # The least number of the lowest level is the farthest off.
    'fitted': math.sqrt(0.0059) - 1 / 30,
  }
  share = shares[codes['elements']]
  step = {'ln6': math.exp(1 / 6), 'quarter': 2**0.25}[codes['header']]
  x_NRC, reduced = scattered
  largest = np.abs(x_NRC.reshape(8, 8, 8, 50)).max(2)
  miss = share * np.sqrt(np.repeat(largest, 8, axis=1) * step)
  bound = (miss * (2 * np.sqrt(np.abs(x_NRC)) + miss)).sum(0)
  got = reduced[tuple(codes.values())]
  error = np.abs(got.reshape(64, 50) - x_NRC.astype('f8').sum(0))
  assert np.all(error <= bound * 1.00001)
  assert np.any(error > bound / 10)


@pytest.mark.versions
@pytest.mark.parametrize('shape, dimension', [((3, 64, 2), 1), ((5, 128), -1)])
def test_any_dimension_is_split(shape, dimension):
  x = gradients(*shape)
  got = each(lambda x: squinch.reduce_scatter(x, 'data', dimension=dimension))(
    x
  )
  got = np.concatenate(got, axis=dimension)
  first = np.moveaxis(x, dimension % len(shape) + 1, 1)
  expected = each(lambda x: squinch.reduce_scatter(x, 'data'))(first)
  expected = np.concatenate(expected, axis=0)
  np.testing.assert_array_equal(np.moveaxis(got, dimension, 0), expected)


@pytest.mark.versions
def test_two_axes_and_pmap_are_the_same_sum():
  x = gradients(64, 2)
  expected = each(lambda x: squinch.reduce_scatter(x, 'data'))(x)
  both = jax.make_mesh(
    (4, 2), ('a', 'b'), axis_types=(jax.sharding.AxisType.Auto,) * 2
  )
  got = jax.jit(
    jax.shard_map(
      lambda x: squinch.reduce_scatter(x[0], ('a', 'b'))[None],
      mesh=both,
      in_specs=P(('a', 'b')),
      out_specs=P(('a', 'b')),
    )
  )(x)
  np.testing.assert_array_equal(got, expected)
  got = jax.pmap(lambda x: squinch.reduce_scatter(x, 'i'), 'i')(x)
  np.testing.assert_array_equal(got, expected)


def odd_tree(seed=0):
  """Leaves that eight divides first, second, not at all, and one number."""
  return {
    'first': gradients(16, 3, seed=seed),
    'second': gradients(3, 24, 2, seed=seed),
    'none': gradients(3, 7, seed=seed),
    'one': gradients(seed=seed),
    'half': jnp.asarray(gradients(40, seed=seed), jnp.bfloat16),
  }


def rows(x):
  """A leaf's groups of eight, as `squinch.all_reduce` promises them."""
  for dimension, size in enumerate(x.shape):
    if size % 8 == 0:
      return np.moveaxis(x, dimension, 0).reshape(size, -1)
  return np.pad(x.reshape(-1), (0, -x.size % 8))[:, None]


@pytest.mark.parametrize(
  'codes, mean', [(CODES[0], True), (CODES[0], False), (CODES[3], False)]
)
def test_replicas_are_the_same_bits_and_those_of_the_codec(codes, mean):
  tree = odd_tree()
  got = each(lambda t: squinch.all_reduce(t, 'data', mean=mean, **codes))(tree)
  for name, x in tree.items():
    assert got[name].shape == x.shape and got[name].dtype == x.dtype
    replicas = np.asarray(got[name].astype(jnp.float32))
    assert np.all(replicas == replicas[:1]), name
    x = np.asarray(x.astype(jnp.float32))
    total = np.zeros_like(rows(x[0]))
    for own in x:
      total = total + through_the_codec(rows(own), codes)
    second = through_the_codec(total / (8 if mean else 1), codes)
    if name == 'half':
      second = np.asarray(jnp.asarray(second, jnp.bfloat16), np.float32)
    found = rows(replicas[0])
    kept = np.arange(found.size).reshape(found.shape) < x[0].size
    np.testing.assert_array_equal(found[kept], second[kept])


def test_what_is_too_small_for_the_header_is_scaled():
  x = 1e-13 * gradients(64, 2)
  lost = each(lambda x: squinch.all_reduce(x, 'data'))(x)
  assert not np.any(lost)
  kept = each(lambda x: squinch.all_reduce(x, 'data', scale=2.0**40))(x)
  # A power of two changes nothing else.
  plain = each(lambda x: squinch.all_reduce(x, 'data'))(x * 2.0**40)
  np.testing.assert_array_equal(kept, plain / 2.0**40)


def feed_back(tree, residual):
  """Returns the mean over the workers, and the next residual."""
  state = squinch.FeedbackState(jax.tree.map(lambda r: r[None], residual))
  mean, state = squinch.transform('data', error_feedback=True).update(
    tree, state
  )
  return mean, jax.tree.map(lambda r: r[0], state.residual)


def summed_error(reduce, steps=32):
  """|Σ mean − Σ x| over |Σ x|, of gradients that mostly stay."""
  x = gradients(64, 40)
  step = each(reduce)
  residual = np.zeros_like(x)
  total = exact = 0.0
  for i in range(steps):
    noisy = x * (1 + 0.1 * gradients(64, 40, seed=i + 1))
    reduced, residual = step(noisy, residual)
    total = total + np.asarray(reduced, 'f8').reshape(-1, 64, 40)[0]
    exact = exact + noisy.astype('f8').mean(0)
  return np.linalg.norm(total - exact) / np.linalg.norm(exact)


@pytest.mark.slow
def test_error_feedback_cuts_the_summed_error():
  plain = summed_error(
    lambda x, r: (squinch.all_reduce(x, 'data', mean=True), r)
  )
  fed_back = summed_error(feed_back)
  assert 5e-4 < plain < 0.05
  assert plain / fed_back > 10, (plain, fed_back)


def test_feedback_loses_nothing_for_good():
  # One step: what arrived and what is remembered is what was sent.
  tree = odd_tree()
  del tree['half']
  residual = odd_tree(seed=1)
  del residual['half']
  got, left = each(feed_back)(tree, residual)
  for name in tree:
    arrived = 8 * got[name][0] + left[name].sum(0)
    wanted = (tree[name] + residual[name]).sum(0)
    np.testing.assert_allclose(arrived, wanted, rtol=1e-4, atol=1e-5)


def test_what_is_no_number_arrives_as_nan_and_is_not_remembered():
  x = gradients(64, 2)
  x[3, 9, 1], x[0, 17, 0], x[7, 63, 1] = np.nan, np.inf, -np.inf
  groups = [(slice(8, 16), 1), (slice(16, 24), 0), (slice(56, 64), 1)]
  spoilt = np.zeros((64, 2), bool)
  for group in groups:
    spoilt[group] = True
  shard = each(lambda x: squinch.reduce_scatter(x, 'data'))(x)
  np.testing.assert_array_equal(np.isnan(shard.reshape(64, 2)), spoilt)
  residual = gradients(64, 2, seed=1)
  got, left = each(feed_back)(x, residual)
  for replica in got:
    np.testing.assert_array_equal(np.isnan(replica), spoilt)
  assert np.isfinite(left).all()
  for worker, group in zip((3, 0, 7), groups):
    np.testing.assert_array_equal(left[worker][group], residual[worker][group])


def crossing(f, *args):
  """[(collective, dtype, bytes out of a device)] of the compiled program."""
  text = f.lower(*args).compile().as_text()
  found = []
  for types, name in re.findall(
    r'= (.*?) (all-to-all|all-gather|all-reduce|reduce-scatter|'
    r'collective-permute|collective-broadcast|ragged-all-to-all)(?:-start)?\(',
    text,
  ):
    for dtype, shape in re.findall(r'([a-z]+\d*)\[([\d,]*)\]', types):
      count = math.prod(int(n) for n in shape.split(',') if n)
      size = {'u8': 1, 'f32': 4, 'bf16': 2}[dtype]
      found.append((name, dtype, count * size))
  return found


@pytest.mark.versions
def test_six_bits_cross_and_nothing_else():
  x = gradients(256, 24)
  elements = 256 * 24
  scattered = crossing(each(lambda x: squinch.reduce_scatter(x, 'data')), x)
  assert {(name, dtype) for name, dtype, _ in scattered} == {
    ('all-to-all', 'u8')
  }
  assert sum(size for *_, size in scattered) == 0.75 * elements
  assert 0.75 * elements == 0.375 * x[0].astype(jnp.bfloat16).nbytes
  reduced = crossing(each(lambda x: squinch.all_reduce(x, 'data')), x)
  assert {(name, dtype) for name, dtype, _ in reduced} == {
    ('all-to-all', 'u8'),
    ('all-gather', 'u8'),
  }
  assert sum(size for *_, size in reduced) == 2 * 0.75 * elements
  # What the count would see of the sum in full.
  full = crossing(
    each(lambda x: jax.lax.psum_scatter(x, 'data', tiled=True)), x
  )
  assert [(name, dtype) for name, dtype, _ in full] == [
    ('reduce-scatter', 'f32')
  ]


def test_a_tree_crosses_together_padded_at_its_end_alone():
  tree = odd_tree()
  found = crossing(each(lambda t: squinch.all_reduce(t, 'data')), tree)
  # Groups of 6 bytes: 6 + 18 + 3 + 1 + 5 = 33, and 40 over eight owners.
  for name in ('all-to-all', 'all-gather'):
    assert sum(size for n, _, size in found if n == name) == 40 * 6
  assert sum(name == 'all-gather' for name, *_ in found) == 1


def test_one_worker_loses_nothing():
  x = jnp.asarray(gradients(64, 2)[:1], jnp.bfloat16)
  shard = each(lambda x: squinch.reduce_scatter(x, 'data'), 1)(x)
  np.testing.assert_array_equal(shard, x.astype(jnp.float32))
  tree = each(lambda x: squinch.all_reduce({'x': x}, 'data'), 1)(x)
  assert tree['x'].dtype == jnp.bfloat16
  np.testing.assert_array_equal(tree['x'], x)
  assert not crossing(each(lambda x: squinch.all_reduce(x, 'data'), 1), x)


@pytest.mark.parametrize('error_feedback', [False, True])
def test_the_transform_is_the_mean_in_a_chain(error_feedback):
  chain = optax.chain(
    squinch.transform('data', scale=64.0, error_feedback=error_feedback),
    optax.trace(0.9),
  )
  tree = odd_tree()

  def two_steps(tree):
    state = chain.init(tree)
    _, after = chain.update(tree, state)
    assert jax.tree.map(jax.typeof, after) == jax.tree.map(jax.typeof, state)
    updates, after = chain.update(tree, after)
    return updates, after[0]

  updates, state = each(two_steps)(tree)
  first = each(lambda t: squinch.all_reduce(t, 'data', mean=True, scale=64.0))(
    tree
  )
  for name, x in tree.items():
    assert updates[name].dtype == x.dtype
    size = np.abs(np.asarray(x, 'f4')).mean(0).max()
    error = np.abs(
      np.asarray(updates[name], 'f4') - 1.9 * np.asarray(x.mean(0))
    )
    assert np.all(error < 0.5 * size)
    if not error_feedback:
      np.testing.assert_allclose(
        np.asarray(updates[name], 'f4'),
        1.9 * np.asarray(first[name], 'f4'),
        rtol=1e-2,
      )
  if not error_feedback:
    assert not jax.tree.leaves(state)
    return
  for name, x in tree.items():
    left = state.residual[name]
    assert left.shape == (8, 1, *x.shape[1:]) and left.dtype == jnp.float32
    assert np.any(left[0] != left[1])


def test_the_mean_is_the_sum_over_the_workers():
  """To the last bit: eight is a power of the step between these headers."""
  codes = {'elements': 'fitted', 'header': 'quarter'}
  mean, total = each(
    lambda x: [
      squinch.all_reduce(x, 'data', mean=is_mean, scale=2.0**20, **codes)
      for is_mean in (True, False)
    ]
  )(gradients(16, 3))
  np.testing.assert_array_equal(8 * np.asarray(mean), total)
  assert np.any(total)


def test_what_does_not_fit_is_refused():
  def refused(f, x, message):
    with pytest.raises(ValueError, match=message):
      each(f)(x)

  scatter = squinch.reduce_scatter
  x = np.ones((8, 96, 2), np.float32)
  refused(
    lambda x: scatter(x, 'data'),
    x,
    r"dimension 0 of shape \(96, 2\) is 96: .* multiple of 8 × 8, .* 'data'",
  )
  refused(
    lambda x: scatter(x, 'data', dimension=2),
    x,
    r'dimension=2: x of shape \(96, 2\) has none',
  )
  refused(
    lambda x: scatter(x, 'data'),
    np.ones((8, 64), np.int32),
    r'x is int32\(64,\): Squinch takes floats',
  )
  refused(
    lambda x: scatter(x, 'data', header='ln'), x, "header='ln': must be one of"
  )
  refused(
    lambda x: squinch.all_reduce({'count': x}, 'data'),
    np.ones((8, 64), np.int32),
    r"tree\['count'\] is int32\(64,\): Squinch takes floats",
  )
  with pytest.raises(ValueError, match="elements='linear': must be one of"):
    squinch.transform('data', elements='linear')


@pytest.mark.versions
def test_a_gradient_that_jax_has_summed_is_refused():
  def gradient(w, x):
    return squinch.all_reduce(jax.grad(lambda w: (w * x).sum())(w), 'data')

  def step(**check):
    return jax.jit(
      jax.shard_map(
        gradient,
        mesh=mesh_of(),
        in_specs=(P(), P('data')),
        out_specs=P('data'),
        **check,
      )
    )

  w, x = jnp.ones((8,)), jnp.ones((64,))
  with pytest.raises(ValueError, match=r'same on all of .*check_vma=False'):
    step()(w, x)
  np.testing.assert_allclose(step(check_vma=False)(w, x), 8, rtol=0.2)


def test_importing_it_brings_no_model():
  code = (
    'import sys; from kaiju_jax.wire import squinch;'
    ' print(sorted(m for m in sys.modules if m.startswith(("kaiju", "flax"))))'
  )
  done = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, check=True
  )
  assert eval(done.stdout) == [
    'kaiju_jax',
    'kaiju_jax.kernels',
    'kaiju_jax.kernels.dispatch',
    'kaiju_jax.kernels.squinch',
    'kaiju_jax.kernels.squinch.api',
    'kaiju_jax.kernels.squinch.blocks',
    'kaiju_jax.kernels.squinch.reference',
    'kaiju_jax.kernels.timing',
    'kaiju_jax.kernels.tuned',
    'kaiju_jax.wire',
    'kaiju_jax.wire.squinch',
  ]
