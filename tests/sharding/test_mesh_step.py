"""The mesh does not change the step: the same mathematics on each of them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.quantization import int8
from kaiju_jax.sharding import rules
from kaiju_jax.training import checkpoint
from kaiju_jax.training import optimizer
from kaiju_jax.training import state as state_lib
from kaiju_jax.training import step as step_lib
from kaiju_jax.wire import codec
from kaiju_jax.wire import fsdp
from tests import meshes
from tests import toys
from tests.model import params as params_lib
from tests.objectives import shallow
from tests.sharding import mesh_steps


@functools.cache
def on_one_device(arm):
  return mesh_steps.gradient_on(mesh_steps.experiment(**ARMS[arm]), (1, 1))


ARMS = {
  'plain': mesh_steps.PLAIN,
  'int8': {'wire_gradients': 'float', 'bungee': True, 'embedding': 'int8'},
  'all int8': {
    'wire_gradients': 'float',
    'embedding': 'int8',
    'kv_scale': 'channel',
    'clamp_hidden': 'input_std',
  },
}
# A sum in another order may round an activation to the next code: then one
# term of a gradient differs by a step.
LOSS = {'plain': 1e-6, 'int8': 1e-4, 'all int8': 1e-3}
GRADIENT = {'plain': 1e-5, 'int8': 3e-2, 'all int8': 3e-2}


# Quick: floats where both axes are split. Codes and single axes are slow.
@pytest.mark.versions
@pytest.mark.parametrize(
  ('arm', 'widths'),
  [
    ('plain', (4, 2)),
    *(
      pytest.param(arm, widths, marks=pytest.mark.slow)
      for arm, widths in (
        ('plain', (8, 1)),
        ('plain', (1, 8)),
        ('int8', (2, 4)),
        ('int8', (8, 1)),
        ('int8', (1, 8)),
        ('all int8', (2, 2)),
      )
    ),
  ],
)
def test_loss_and_gradients_are_those_of_one_device(arm, widths):
  want_loss, want, want_weight = on_one_device(arm)
  loss, gradient, weight = mesh_steps.gradient_on(
    mesh_steps.experiment(**ARMS[arm]), widths
  )
  np.testing.assert_allclose(loss, want_loss, rtol=LOSS[arm])
  assert weight == want_weight
  shallow.assert_close(gradient, want, GRADIENT[arm])


def families():
  """All that other libraries' models have and a mesh can split."""
  one = mesh_steps.experiment(**mesh_steps.PLAIN)
  one.model = dataclasses.replace(
    one.model,
    layout='L0+2s N1s',
    num_kv_heads=2,
    feedforward='swiglu',
    norms='both',
    qk_norm='head',
    qkv_bias=True,
    scaled_embedding=False,
  )
  return one


def test_gates_biases_and_norms_are_those_of_one_device():
  want_loss, want, _ = mesh_steps.gradient_on(families(), (1, 1))
  loss, gradient, _ = mesh_steps.gradient_on(families(), (2, 2))
  np.testing.assert_allclose(loss, want_loss, rtol=1e-6)
  shallow.assert_close(gradient, want, 1e-5)


def test_a_norm_over_all_heads_is_refused_where_devices_split_them():
  one = families()
  one.model.qk_norm = 'all'
  with pytest.raises(ValueError, match=r"qk_norm='all': .* mesh\.tensor=2"):
    step_lib.make(one, meshes.mesh_of(1, 2))


def test_squinch_errs_by_about_a_twentieth():
  """The error of a whole tensor; the collective's test has each element's."""
  _, exact, _ = on_one_device('plain')
  arm = ARMS['plain'] | {'wire_gradients': 'squinch'}
  _, squinched, _ = mesh_steps.gradient_on(mesh_steps.experiment(**arm), (4, 2))
  for (path, g), expected in zip(
    jax.tree_util.tree_leaves_with_path(squinched), jax.tree.leaves(exact)
  ):
    name = rules.name_of(path)
    error = np.linalg.norm(g - expected) / np.linalg.norm(expected)
    if name.startswith('w_') or name == 'embedding_DV':
      assert 0.01 < error < 0.1, (path, error)
    else:
      assert error < 1e-3, (path, error)


@pytest.mark.parametrize('contract', ['D', 'F'])
def test_codes_and_scales_are_those_of_one_device(contract):
  w = jax.random.normal(jax.random.key(0), (64, 32)) ** 3
  wire = fsdp.Wire('DF', contract, 'float32', True)
  want = fsdp.gather(w, wire)
  for widths in ((8, 1), (2, 4)):
    mesh = meshes.mesh_of(*widths)
    P = jax.sharding.PartitionSpec
    scale_spec = P(None, 'tensor') if contract == 'D' else P(None, None)
    codes, scales = jax.shard_map(
      lambda w: fsdp.gather(w, wire)[:2],
      mesh=mesh,
      in_specs=P('fsdp', 'tensor'),
      out_specs=(P(None, 'tensor'), scale_spec),
      check_vma=False,
    )(w)
    np.testing.assert_array_equal(codes, want.codes)
    np.testing.assert_array_equal(scales, want.scales)


@pytest.mark.slow
def test_logits_do_not_change_by_a_bit_with_the_fsdp_width():
  """With the same rows per device; and with two rows or more, any number."""
  one = mesh_steps.experiment(embedding='int8')
  model = step_lib.model_of(one)
  first = jax.tree.map(lambda x: x[0], mesh_steps.batch())
  P = jax.sharding.PartitionSpec

  def on(width, rows):
    mesh = meshes.mesh_of(width, 1)
    params = params_lib.drawn(model, mesh)
    logits = jax.jit(
      jax.shard_map(
        lambda params, rows: model.apply(
          {'params': params}, rows.tokens_BL, rows.visibility()
        ),
        mesh=mesh,
        in_specs=(rules.specs(params, mesh), P('fsdp')),
        out_specs=P('fsdp'),
        check_vma=False,
      )
    )
    return np.asarray(logits(params, rows))

  together = on(1, first)
  np.testing.assert_array_equal(on(4, first), together)
  alone = np.concatenate(
    [on(1, jax.tree.map(lambda x, i=i: x[i : i + 1], first)) for i in (0, 5)]
  )
  np.testing.assert_array_equal(on(8, first)[[0, 5]], alone)


@pytest.mark.versions
def test_a_step_is_the_step_of_one_device_and_stays_where_it_was():
  one = mesh_steps.experiment(**mesh_steps.PLAIN)
  one.model.layout = 'L0'
  made = {}
  for widths in ((1, 1), (4, 2)):
    mesh = meshes.mesh_of(*widths)
    params = params_lib.drawn(step_lib.model_of(one), mesh)
    state = state_lib.create(params, optimizer.make(one.optimizer), mesh)
    stored = jax.tree.map(lambda x: x.sharding, state)
    step = step_lib.make(one, mesh)
    for _ in range(2):
      state, metrics = step(state, mesh_steps.batch())
    assert step.compilations == 1
    assert jax.tree.map(lambda x: x.sharding, state) == stored
    made[widths] = jax.device_get((state.params, metrics))
  (params, metrics), (want, want_metrics) = made[4, 2], made[1, 1]
  for name in metrics:
    np.testing.assert_allclose(metrics[name], want_metrics[name], rtol=1e-5)
  # Adam's first steps follow signs: where a gradient is nothing but rounding,
  # they may differ by the whole rate.
  near = [
    np.abs(a - b) < 1e-5
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(want))
  ]
  assert np.mean(np.concatenate([x.ravel() for x in near])) > 0.999


@pytest.mark.versions
def test_a_checkpoint_restores_onto_another_mesh(tmp_path):
  one = mesh_steps.experiment()
  optimizer_of = optimizer.make(one.optimizer)

  def start(widths, seed):
    mesh = meshes.mesh_of(*widths)
    params = params_lib.drawn(step_lib.model_of(one), mesh, seed)
    return state_lib.create(params, optimizer_of, mesh)

  state = start((4, 2), seed=1)
  want = jax.device_get(state)
  with checkpoint.Checkpoints(tmp_path, 1) as checkpoints:
    checkpoints.save(3, state, toys.NoBatches())
  for widths in ((1, 8), (1, 1)):
    with checkpoint.Checkpoints(tmp_path, 1) as checkpoints:
      other = start(widths, seed=2)
      stored = jax.tree.map(lambda x: x.sharding, other)
      restored, number = checkpoints.restore(other, toys.NoBatches())
    assert number == 3
    assert jax.tree.map(lambda x: x.sharding, restored) == stored
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(restored), want)


@pytest.mark.versions
@pytest.mark.parametrize(
  'change, widths, message',
  [
    ({'data.batch': 4}, (8, 1), 'data.batch=4: .* mesh.fsdp=8'),
    ({'model.num_heads': 6}, (2, 4), 'model.num_heads=6: .* mesh.tensor=4'),
    ({'data.length': 30}, (2, 4), 'data.length=30: .* mesh.tensor=4'),
    ({'model.vocab_size': 50}, (1, 8), 'model.vocab_size=50'),
    ({'model.d_ff': 100}, (1, 8), 'model.d_ff=100'),
    ({'model.d_model': 32}, (8, 1), 'multiple of 64'),
  ],
)
def test_what_does_not_divide_is_refused(change, widths, message):
  one = mesh_steps.experiment()
  for name, value in change.items():
    room, field = name.split('.')
    setattr(getattr(one, room), field, value)
  with pytest.raises(ValueError, match=message):
    step_lib.make(one, meshes.mesh_of(*widths))


def test_the_carrier_is_what_is_reduced():
  """Reading the codes alone gives a weight no gradient."""
  w = jnp.ones((16, 4))
  wire = fsdp.Wire('DF', 'D', 'float32', True, gradients=codec.FLOAT)
  P = jax.sharding.PartitionSpec

  def loss(w):
    return jnp.sum(int8.dequantize(fsdp.gather(w, wire)) ** 2)

  def carried(w):
    return jnp.sum(fsdp.gather(w, wire).carrier * 3.0)

  for function, want in ((loss, 0.0), (carried, 6.0)):
    gradient = jax.shard_map(
      jax.grad(function),
      mesh=meshes.mesh_of(2, 1),
      in_specs=P('fsdp'),
      out_specs=P('fsdp'),
      check_vma=False,
    )(w)
    np.testing.assert_array_equal(gradient, np.full((16, 4), want))
