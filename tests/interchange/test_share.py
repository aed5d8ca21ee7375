"""A fitted start loses no more than any other map that folds as it does."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from kaiju_jax.data import packing
from kaiju_jax.interchange import plain
from kaiju_jax.interchange.surgery import calibrate
from kaiju_jax.interchange.surgery import least_squares
from kaiju_jax.interchange.surgery import pool
from kaiju_jax.interchange.surgery import rank
from kaiju_jax.interchange.surgery import share
from kaiju_jax.model import transformer
from tests.interchange import toys

TEACHER = toys.changed(
  toys.PLAIN,
  num_kv_heads=4,
  num_heads=8,
  layout='G0 G1 G2',
  feedforward='swiglu',
)
MERGED = {'layout': 'G0 G1 G1', 'num_kv_heads': 2}
RNG = np.random.default_rng


def batch_of(seed):
  """Two documents in a row, with padding behind them."""
  rng = RNG(seed)
  rows = [
    [packing.Piece(rng.integers(0, 260, n), source=n) for n in (31, 20)]
    for _ in range(2)
  ]
  return packing.stack([packing.row(pieces, 60) for pieces in rows])


TEXT = [batch_of(seed) for seed in (1, 2)]


def inputs_of(weights, config):
  """Returns attention's inputs over the text, [I, T, D], without padding."""
  read = calibrate.make_reader(weights, config)
  return np.concatenate(
    [np.asarray(read(one))[:, one.source_BL >= 0] for one in TEXT], axis=1
  ).astype(np.float64)


def start_of(config, weights, **changes):
  student = dataclasses.replace(config, **changes)
  pairs = calibrate.pairs_of(student.layers())
  statistics = calibrate.measure(weights, config, TEXT, pairs)
  return (
    student,
    statistics,
    share.student(weights, config, student, statistics),
  )


def logits_of(params, config):
  batch = TEXT[0]
  model = transformer.Transformer(config)
  found = jax.jit(model.apply)(
    {'params': params}, batch.tokens_BL, batch.visibility()
  )
  return np.asarray(found)[batch.source_BL >= 0]


def drawn(config, seed=0):
  weights = plain.weights(toys.params_of(config, seed), config)
  if not config.qkv_bias:
    return weights
  rng = RNG(seed)
  layers = [
    layer._replace(
      **{
        name: rng.normal(size=getattr(layer, name).shape).astype(np.float32)
        for name in ('bias_q_HK', 'bias_k_UK', 'bias_v_UK')
      }
    )
    for layer in weights.layers
  ]
  return weights._replace(layers=tuple(layers))


def reckon(weights, config, owner, members, x_ITE, w_EK, fold, kind):
  """Returns Σ over tokens of a fit's weighted error, from the definition.

  Args:
    w_EK: the head's projection.
    fold: {member: a}; None for 1.
    kind: 'keys' or 'values'.
  """
  made = x_ITE[owner] @ w_EK
  size = config.num_heads // config.num_kv_heads
  total = 0.0
  for member in members:
    layer = weights.layers[member.layer]
    q, k, v = calibrate.project(layer, x_ITE[member.layer], config)
    heads = range(member.head * size, (member.head + 1) * size)
    a = None if fold is None else fold[member]
    if kind == 'values':
      got = made if a is None else made @ a
      error = v[:, member.head] - got
      for h in heads:  # As behind w_o.
        total += np.sum((error @ layer.w_o_DHK[:, h].T.astype(float)) ** 2)
      continue
    half = made.shape[1] // 2
    got = made[:, :half] + 1j * made[:, half:]
    want = k[:, member.head, :half] + 1j * k[:, member.head, half:]
    error = want - (got if a is None else got * a)
    # All but what the keys that a query sees have in common on average.
    common = np.abs(error.mean(0)) ** 2 * ignored(config)
    error = np.sum(np.abs(error) ** 2 - common, 0)
    for h in heads:  # As large as the queries are in each pair.
      energy = np.sum(q[:, h, :half] ** 2 + q[:, h, half:] ** 2, 0)
      total += np.sum(error * energy)
  return total


def ignored(config):
  """Returns |mean of exp(i · rate · distance)|² over what tokens see, [K/2]."""
  half = config.head_dim // 2
  rate = config.rope_global ** -(np.arange(half) / half)
  positions = np.concatenate(
    [one.position_BL[one.source_BL >= 0] for one in TEXT]
  )
  distances = np.arange(round(np.mean(positions + 1)))
  return np.abs(np.exp(1j * distances[:, None] * rate).mean(0)) ** 2


def mean_head(weights, config, members, owner):
  """Returns {kind: the projection of means, [E, K]}."""
  out = {}
  gain_D = weights.layers[owner].attention_gain_D
  for kind, name, bias in (
    ('keys', 'w_k_DUK', 'bias_k_UK'),
    ('values', 'w_v_DUK', 'bias_v_UK'),
  ):
    layers = [(weights.layers[m.layer], m.head) for m in members]
    w_DK = np.mean(
      [
        getattr(one, name)[:, head] * (one.attention_gain_D / gain_D)[:, None]
        for one, head in layers
      ],
      axis=0,
    )
    if config.qkv_bias:
      rows = np.mean([getattr(one, bias)[head] for one, head in layers], axis=0)
      w_DK = np.concatenate([w_DK, rows[None]])
    out[kind] = w_DK
  return out


CASES = {
  'heads': ({}, {'num_kv_heads': 1}),
  'layers': ({}, {'layout': 'G0 G1 G1'}),
  'both': ({}, MERGED),
  'biases': ({'qkv_bias': True}, MERGED),
}


def merged(student):
  """Yields each owner with the members of a head that has several."""
  layers = student.layers()
  for owner in sorted({one.kv_from for one in layers}):
    readers = [i for i, one in enumerate(layers) if one.kv_from == owner]
    for members in share.merge(readers, 4, student.num_kv_heads):
      if len(members) > 1:
        yield owner, members


@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('kind', ['keys', 'values'])
def test_a_fit_loses_less_than_means_and_than_any_neighbour(case, kind):
  """On the text that it was fitted to, for every head that is merged."""
  teacher, _ = CASES[case]
  config = dataclasses.replace(TEACHER, **teacher)
  weights, rng = drawn(config), RNG(5)
  student, statistics, x_ITE = measured(case)
  fit = share.fit_keys if kind == 'keys' else share.fit_values
  for owner, members in merged(student):
    found = fit(weights, config, statistics, owner, members)
    size = np.abs(found.w_EK).mean()
    moved = [
      (
        found.w_EK + 1e-3 * size * rng.normal(size=found.w_EK.shape),
        {
          m: a * (1 + 1e-3 * rng.normal(size=a.shape))
          for m, a in found.folds.items()
        },
      )
      for _ in range(4)
    ]
    means = mean_head(weights, config, members, owner)[kind]
    maps = [
      (found.w_EK, found.folds),
      (0 * found.w_EK, None),
      (means, None),
      *((w_EK, found.folds) for w_EK, _ in moved),
      *((found.w_EK, folds) for _, folds in moved),
    ]
    lost, nothing, *others = (
      reckon(weights, config, owner, members, x_ITE, *one, kind) for one in maps
    )
    assert found.residual == pytest.approx(lost / nothing, abs=1e-9)
    # The least: no small step of any part is better.
    assert lost < min(others)


@functools.cache
def measured(case):
  """Returns the student, the statistics and the inputs [I, T, E]."""
  teacher, changes = CASES[case]
  config = dataclasses.replace(TEACHER, **teacher)
  weights = drawn(config)
  student, statistics, _ = start_of(config, weights, **changes)
  inputs = inputs_of(weights, config)
  return student, statistics, [calibrate.extend(x, config) for x in inputs]


def foldable(config, weights, seed=3):
  """Returns the weights with every head changed by maps that fold away.

  Values by any matrix, keys by a complex factor per pair.
  """
  rng = RNG(seed)
  size = config.num_heads // config.num_kv_heads
  half = config.head_dim // 2
  layers = []
  for layer in weights.layers:
    parts = {
      name: getattr(layer, name).astype(np.float64)
      for name in ('w_q_DHK', 'w_k_DUK', 'w_v_DUK', 'w_o_DHK')
    }
    for u in range(config.num_kv_heads):
      heads = slice(u * size, (u + 1) * size)
      map_KK = np.eye(8) + 0.3 * rng.normal(size=(8, 8))
      parts['w_v_DUK'][:, u] = parts['w_v_DUK'][:, u] @ map_KK
      parts['w_o_DHK'][:, heads] = (
        parts['w_o_DHK'][:, heads] @ np.linalg.inv(map_KK).T
      )
      factor = (1 + rng.random(half)) * np.exp(6j * rng.random(half))
      for name, place, a in (
        ('w_k_DUK', u, factor),
        ('w_q_DHK', heads, 1 / factor.conj()),
      ):
        x = parts[name][:, place]
        turned = (x[..., :half] + 1j * x[..., half:]) * a
        parts[name][:, place] = np.concatenate([turned.real, turned.imag], -1)
    layers.append(
      layer._replace(**{n: x.astype(np.float32) for n, x in parts.items()})
    )
  return weights._replace(layers=tuple(layers))


def hold_alike(config, weights, others, rtol):
  """Holds teachers, and students, to each other; returns a student's config."""
  want = logits_of(plain.params(weights, config), config)
  close = {'atol': rtol * np.abs(want).max()}
  found = logits_of(plain.params(others, config), config)
  np.testing.assert_allclose(found, want, **close)
  student, _, params = start_of(config, weights, **MERGED)
  _, _, again = start_of(config, others, **MERGED)
  found = logits_of(params, student)
  np.testing.assert_allclose(logits_of(again, student), found, **close)
  return student, want


def test_maps_that_fold_away_change_no_start():
  """And they are the teacher's own: its logits stay."""
  weights = drawn(TEACHER)
  turned = foldable(TEACHER, weights)
  student, want = hold_alike(TEACHER, weights, turned, 2e-5)
  # Means do not survive it.
  one, other = (
    logits_of(pool.student(each, student), student)
    for each in (weights, turned)
  )
  assert np.abs(one - other).max() > 1e-2 * np.abs(want).max()


@pytest.mark.parametrize('base', [0.0, 1e30], ids=['not turned', 'turned'])
def test_what_all_keys_have_in_common_changes_no_start(base):
  """A softmax ignores it where keys turn slowly, or not at all."""
  config = dataclasses.replace(TEACHER, qkv_bias=True, rope_global=base)
  weights, rng = drawn(config), RNG(7)
  layers = []
  for layer in weights.layers:
    bias = layer.bias_k_UK + 30 * rng.normal(size=layer.bias_k_UK.shape)
    # The first pair turns by 1 per position, the others by 3e-8 and less.
    bias[:, ::4] = layer.bias_k_UK[:, ::4]
    layers.append(layer._replace(bias_k_UK=bias.astype(np.float32)))
  moved = weights._replace(layers=tuple(layers))
  hold_alike(config, weights, moved, 1e-3)


@pytest.mark.parametrize(
  'changes',
  [{}, {'rope_global': 0.0}, {'norms': 'both'}, {'qk_norm': 'head'}],
  ids=['turned', 'not turned', 'norm behind', 'QK-norm'],
)
def test_heads_that_are_one_head_in_disguise_are_merged_exactly(changes):
  """Each pair of heads is one head, changed by maps that fold away."""
  config = dataclasses.replace(TEACHER, **changes)
  weights = drawn(config)
  same = tuple(
    layer._replace(
      **{n: getattr(layer, n)[:, [0, 0, 2, 2]] for n in ('w_k_DUK', 'w_v_DUK')}
    )
    for layer in weights.layers
  )
  weights = weights._replace(layers=same)
  if config.qk_norm == 'none' and config.rope_global:
    weights = foldable(config, weights)
  want = logits_of(plain.params(weights, config), config)
  student, _, params = start_of(config, weights, num_kv_heads=2)
  np.testing.assert_allclose(
    logits_of(params, student), want, atol=1e-5 * np.abs(want).max()
  )


@pytest.mark.parametrize('norm, axes', [('head', (-1,)), ('all', (-2, -1))])
def test_queries_that_weigh_an_error_are_normalized_as_the_model_does(
  norm, axes
):
  config = dataclasses.replace(TEACHER, qk_norm=norm, norm_epsilon=0.5)
  layer = drawn(config).layers[0]
  gain = RNG(1).normal(size=layer.q_gain.shape) + 3
  layer = layer._replace(q_gain=gain)
  x_TE = RNG(2).normal(size=(7, config.d_model))
  found, keys, _ = calibrate.project(layer, x_TE, config)
  q_THK = np.einsum('TE,EHK->THK', x_TE, layer.w_q_DHK)
  shrunk = q_THK / (found / gain)
  # One factor for all that is normalized together.
  np.testing.assert_allclose(
    shrunk**2,
    np.broadcast_to(np.mean(q_THK**2, axes, keepdims=True) + 0.5, shrunk.shape),
  )
  np.testing.assert_allclose(
    keys, np.einsum('TE,EUK->TUK', x_TE, layer.w_k_DUK), atol=1e-12
  )


def test_a_student_built_as_its_teacher_has_its_bits():
  weights = drawn(TEACHER)
  _, _, params = start_of(TEACHER, weights)
  again = plain.weights(params, TEACHER)
  for ours, theirs in zip(again.layers, weights.layers):
    for one, other in zip(ours, theirs):
      np.testing.assert_array_equal(one, other)


def test_the_common_map_is_the_best_of_rank_one():
  """Beside a descent that knows nothing of singular values."""
  rng = RNG(0)
  x_TE = rng.normal(size=(200, 5)) * [1, 3, 0.2, 1, 0]  # One has no token.
  y_TN = x_TE @ rng.normal(size=(5, 3, 2)).view().reshape(5, 6)
  y_TN = y_TN[:, :3] + 1j * y_TN[:, 3:] + rng.normal(size=(200, 3))
  weights_N = np.array([1.0, 0.1, 4.0])

  def lost(w_E, a_N):
    return np.sum(weights_N * np.abs(y_TN - (x_TE @ w_E)[:, None] * a_N) ** 2)

  inputs = least_squares.whiten(x_TE.T @ x_TE / 200)
  w_E, a_N = least_squares.fit_common(inputs, x_TE.T @ y_TN / 200, weights_N)
  assert w_E[4] == 0 and np.sum(weights_N * a_N).imag == pytest.approx(0)
  best = np.inf
  for seed in range(3):  # Each half of the problem is linear.
    a = RNG(seed).normal(size=3) + 1j
    for _ in range(300):
      mixed = (y_TN * (weights_N * a.conj())).sum(1)
      w = np.linalg.lstsq(x_TE, mixed / np.sum(weights_N * np.abs(a) ** 2))[0]
      made = x_TE @ w
      a = made.conj() @ y_TN / np.sum(np.abs(made) ** 2)
    best = min(best, lost(w, a))
  assert lost(w_E, a_N) == pytest.approx(best, rel=1e-9)
  # All errors counting alike, the fit is another one, and worse.
  blind = least_squares.fit_common(inputs, x_TE.T @ y_TN / 200, np.ones(3))
  assert lost(*blind) > lost(w_E, a_N) * 1.01


def test_the_reduced_map_is_the_best_of_its_rank():
  rng = RNG(1)
  x_TE, noise = rng.normal(size=(100, 6)), rng.normal(size=(100, 4))
  y_TY = x_TE @ rng.normal(size=(6, 4)) + noise
  inputs = least_squares.whiten(x_TE.T @ x_TE)
  w_EK, a_KY = least_squares.reduce_rank(inputs, x_TE.T @ y_TY, 2)
  # The oracle: the fitted values' own two largest directions.
  fitted = x_TE @ np.linalg.lstsq(x_TE, y_TY)[0]
  left, sizes, right = np.linalg.svd(fitted, full_matrices=False)
  np.testing.assert_allclose(
    x_TE @ w_EK @ a_KY, left[:, :2] * sizes[:2] @ right[:2], atol=1e-9
  )
  w_EK, a_KY = least_squares.reduce_rank(inputs, x_TE.T @ y_TY, 5)
  assert w_EK.shape == (6, 5) and a_KY.shape == (5, 4)
  np.testing.assert_allclose(x_TE @ w_EK @ a_KY, fitted, atol=1e-9)


def test_layers_that_lose_least_share_and_the_first_never():
  assert rank.candidates('GLGLLG') == [(1, 3), (3, 4), (2, 5)]
  lost = {(1, 2): 0.2, (2, 3): 0.1, (3, 4): 0.3, (4, 5): 0.4}
  assert rank.draw('LLLLLL', lost) == 'L0 L1 L2 L2 L4 L4'
  assert rank.draw('LLL', {}) == 'L0 L1 L2'


def test_a_layer_that_repeats_another_is_chosen():
  """Layers 2 and 3 have the same projections, and nearly the same inputs."""
  config = dataclasses.replace(TEACHER, layout='G0 G1 G2 G3')
  weights = drawn(config)
  first, second, third, last = weights.layers
  last = last._replace(
    w_k_DUK=third.w_k_DUK,
    w_v_DUK=third.w_v_DUK,
    attention_gain_D=third.attention_gain_D,
  )
  third = third._replace(
    w_o_DHK=0.01 * third.w_o_DHK, w_out_DF=0.01 * third.w_out_DF
  )
  weights = weights._replace(layers=(first, second, third, last))
  pairs = rank.candidates('GGGG')
  statistics = calibrate.measure(weights, config, TEXT, pairs)
  lost = rank.residuals(weights, config, statistics, pairs)
  assert lost[2, 3] < 0.1 < lost[1, 2]
  assert rank.draw('GGGG', lost) == 'G0 G1 G2 G2'


def test_a_text_without_tokens_and_broken_teachers_are_refused():
  weights = drawn(TEACHER)
  with pytest.raises(ValueError, match='the text has no token'):
    calibrate.measure(weights, TEACHER, [], ())
  broken = weights._replace(embedding_DV=np.nan * weights.embedding_DV)
  with pytest.raises(ValueError, match='activations are not finite'):
    calibrate.measure(broken, TEACHER, TEXT, ())


def test_sinks_are_among_the_keys_that_a_query_sees():
  def ignored(layout):
    config = toys.changed(toys.PLAIN, layout=layout)
    return share._ignored(config, 10.2, 0)

  whole, window = ignored('L0:10 G1 G2'), ignored('L0:4 G1 G2')
  np.testing.assert_array_equal(ignored('L0:4+6 G1 G2'), whole)
  np.testing.assert_array_equal(ignored('L0:10+3 G1 G2'), whole)
  for sinks in range(1, 6):
    found = ignored(f'L0:4+{sinks} G1 G2')
    assert (found != window).any() and (found != whole).any()
