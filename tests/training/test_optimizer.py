"""Schedules over tokens, decay, clipping, Bungee's own rate, the guard."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.training import config as training_config
from kaiju_jax.training import optimizer

PARAMS = {
  'feedforward': {
    'w_in_DF': jnp.ones((1, 4, 3)),
    'bungee_w_in': jnp.zeros((1,)),
  },
  'norm': {'gain_D': jnp.ones((1, 4))},
}


def config(**changes) -> training_config.OptimizerConfig:
  return training_config.OptimizerConfig(**changes)


def updated(made, gradient, state=None, rate=0.1):
  state = made.init(PARAMS) if state is None else state
  return made.update(gradient, state, PARAMS, learning_rate=rate)


def like(value):
  return jax.tree.map(lambda p: jnp.full_like(p, value), PARAMS)


@pytest.mark.parametrize(
  'settings, expected',
  [
    (
      dict(schedule='cosine', warmup=0.2, decay=0.25, final=0.1),
      {0: 0, 100: 0.5, 200: 1, 600: 0.55, 1000: 0.1},
    ),
    (
      dict(schedule='wsd', warmup=0.2, decay=0.25, final=0.1),
      {0: 0, 100: 0.5, 200: 1, 600: 1, 1000: 0.1},
    ),
    (
      dict(schedule='constant', warmup=0.2, decay=0.25, final=0.1),
      {0: 0, 100: 0.5, 200: 1, 600: 1, 1000: 1},
    ),
    (
      dict(schedule='wsd', warmup=0.1, decay=0.2, final=0.0),
      {799: 1, 800: 1, 900: 0.5, 950: 0.25},
    ),
  ],
)
def test_schedules(settings, expected):
  rate = optimizer.shape_of_rate(config(**settings), 1000)
  got = [rate(jnp.float32(tokens)) for tokens in expected]
  np.testing.assert_allclose(got, [*expected.values()], atol=1e-5)


def test_only_matrices_decay():
  made = optimizer.make(config(weight_decay=0.5, clip=0.0))
  updates, _ = updated(made, like(0.0), rate=0.1)
  np.testing.assert_allclose(updates['feedforward']['w_in_DF'], -0.05)
  np.testing.assert_array_equal(updates['feedforward']['bungee_w_in'], 0)
  np.testing.assert_array_equal(updates['norm']['gain_D'], 0)
  for name in 'bias_q_HK', 'bias_k_UK', 'q_gain_HK', 'k_gain_UK', 'bias_v_K':
    assert not optimizer.is_matrix(name)
  assert optimizer.is_matrix('w_gate_DF') and optimizer.is_matrix('head_DV')


def test_bungee_has_its_own_rate_and_no_part_in_the_clip():
  made = optimizer.make(config(weight_decay=0.0, bungee_rate=10.0))
  gradient = like(1e-3)
  small, _ = updated(made, gradient)
  gradient['feedforward']['bungee_w_in'] = jnp.full((1,), 1e6)
  large, _ = updated(made, gradient)
  # A huge Bungee gradient changes no other parameter's update.
  np.testing.assert_array_equal(
    small['feedforward']['w_in_DF'], large['feedforward']['w_in_DF']
  )
  ratio = large['feedforward']['bungee_w_in'] / large['norm']['gain_D'][0, 0]
  np.testing.assert_allclose(ratio, 10, rtol=1e-4)


def test_width_scales_what_adam_does_and_not_the_decay():
  params = {
    'attention': {
      'w_q_DHK': jnp.ones((2, 8, 2, 3)),
      'w_o_DHK': jnp.ones((2, 8, 2, 3)),
    },
    'feedforward': {'w_out_DF': jnp.ones((8, 32))},
    'norm': {'gain_D': jnp.ones((8,))},
  }
  gradient = jax.tree.map(jnp.ones_like, params)

  def moved(**changes):
    made = optimizer.make(config(clip=0.0, **changes))
    found, _ = made.update(
      gradient, made.init(params), params, learning_rate=0.1
    )
    return {k: v for one in found.values() for k, v in one.items()}

  plain = moved(weight_decay=0.0)
  scaled = moved(weight_decay=0.0, transfer='width', transfer_base=4)
  factors = {'w_q_DHK': 4 / 8, 'w_o_DHK': 4 / 6, 'w_out_DF': 4 / 32}
  for name, update in plain.items():
    np.testing.assert_allclose(
      scaled[name], factors.get(name, 1.0) * update, rtol=1e-6
    )
  decayed = moved(weight_decay=0.5, transfer='width', transfer_base=4)
  np.testing.assert_allclose(
    decayed['w_q_DHK'] - scaled['w_q_DHK'], -0.1 * 0.5, rtol=1e-5
  )


def test_a_running_limit_follows_the_sign_by_a_hundredth_of_itself():
  params = {
    'attention': {'k_limit_K': jnp.array([[4.0, 2.0, 8.0]])},
    'norm': {'gain_D': jnp.ones((1, 4))},
  }
  # Its virtual gradient is limit − seen, of any size, and 0 where they agree.
  gradient = {
    'attention': {'k_limit_K': jnp.array([[1e-3, -50.0, 0.0]])},
    'norm': {'gain_D': jnp.zeros((1, 4))},
  }
  made = optimizer.make(config())
  updates, _ = made.update(
    gradient, made.init(params), params, learning_rate=1e-5
  )
  np.testing.assert_allclose(
    updates['attention']['k_limit_K'], [[-0.04, 0.02, 0.0]], rtol=1e-6
  )


def test_the_clip_bounds_what_adam_sees():
  clipped = optimizer.make(config(clip=1e-3, b1=0.0, weight_decay=0.0))
  _, state = updated(clipped, like(1.0))
  squares = [
    float(jnp.sum(x))
    for path, x in jax.tree_util.tree_leaves_with_path(state)
    if '.nu' in jax.tree_util.keystr(path)
    and 'bungee' not in jax.tree_util.keystr(path)
  ]
  norm = np.sqrt(sum(squares) / (1 - config().b2))
  assert norm == pytest.approx(1e-3, rel=1e-4)


def test_the_guard_skips_and_counts_what_is_not_finite():
  made = optimizer.make(config(skip_nonfinite=True))
  _, state = updated(made, like(1.0))
  assert optimizer.skipped_steps(state) == 0
  bad = like(1.0)
  bad['norm']['gain_D'] = jnp.full((1, 4), jnp.nan)
  updates, after = updated(made, bad, state)
  assert all(np.all(u == 0) for u in jax.tree.leaves(updates))
  assert optimizer.skipped_steps(after) == 1
  for old, new in zip(
    jax.tree.leaves(state.inner_state), jax.tree.leaves(after.inner_state)
  ):
    np.testing.assert_array_equal(old, new)


def test_z_reg_follows_the_rate_where_told_to():
  half = jnp.float32(0.5)
  assert optimizer.z_reg_coefficient(1e-3, 'constant', half) == 1e-3
  assert optimizer.z_reg_coefficient(1e-3, 'learning_rate', half) == 5e-4


@pytest.mark.parametrize(
  'changes, field',
  [
    ({'schedule': 'linear'}, "schedule='linear'"),
    ({'learning_rate': 0.0}, 'learning_rate=0.0'),
    ({'warmup': 1.5}, 'warmup=1.5'),
    ({'schedule': 'wsd', 'warmup': 0.9}, '.*together at most 1'),
    ({'schedule': 'cosine', 'warmup': 1.0}, 'warmup=1.0'),
    ({'batch_rate': 'linear'}, "batch_rate='linear'"),
    ({'transfer': 'depth'}, "transfer='depth'"),
    ({'transfer_base': 0}, 'transfer_base=0'),
    ({'b1': 1.0}, 'b1=1.0'),
    ({'b2': 1.0}, 'b2=1.0'),
    ({'clip': -1.0}, 'clip=-1.0'),
  ],
)
def test_errors(changes, field):
  with pytest.raises(ValueError, match=f'optimizer.{field}'):
    training_config.check_optimizer(config(**changes))


@pytest.mark.parametrize(
  'changes',
  [
    {'schedule': 'cosine', 'warmup': 0.999},
    {'schedule': 'wsd', 'warmup': 0.5, 'decay': 0.5},
    {'schedule': 'wsd', 'warmup': 1.0, 'decay': 0.0},
    {'schedule': 'constant', 'warmup': 1.0},
    {'b1': 0.999, 'b2': 0.0},
  ],
)
def test_what_passes_the_check_gives_finite_updates(changes):
  made = config(**changes)
  training_config.check_optimizer(made)
  rates = optimizer.shape_of_rate(made, 1000)
  assert all(0 <= rates(jnp.float32(t)) <= 1 for t in (0, 500, 999, 1000))
  updates, _ = updated(optimizer.make(made), like(1.0))
  assert all(np.isfinite(u).all() for u in jax.tree.leaves(updates))
