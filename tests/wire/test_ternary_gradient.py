"""The forward pass reads replicas; gradients come home to the masters."""

import dataclasses
import functools

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import numpy as np
import pytest

from kaiju_jax.data import packing
from kaiju_jax.model import config as model_config
from kaiju_jax.model import transformer
from kaiju_jax.objectives import language
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.quantization import qat
from kaiju_jax.sharding import collectives
from kaiju_jax.sharding import rules
from kaiju_jax.training import state as state_lib
from kaiju_jax.wire import ternary
from kaiju_jax.wire import ternary_plan
from tests import meshes

SMALL = model_config.ModelConfig(
  vocab_size=32,
  d_model=16,
  layout='G0',
  num_heads=8,
  head_dim=4,
  d_ff=32,
  max_length=16,
  window=4,
  dtype='float32',
  quantization=quantization_config.QuantizationConfig(bungee=True),
)


def batch_of(rows, length=16):
  rng = np.random.default_rng(0)
  made = [
    packing.row([packing.Piece(rng.integers(1, 32, length))], length)
    for _ in range(rows)
  ]
  return packing.stack(made)


def test_gradients_come_home_through_the_carriers():
  """On the grid that QAT takes, it is QAT: Bungee and all, on two devices."""
  model = transformer.Transformer(SMALL)
  quantization = dataclasses.replace(
    SMALL.quantization, wire_weights='ternary', wire_gradients='float'
  )
  follower = transformer.Transformer(
    dataclasses.replace(SMALL, quantization=quantization)
  )
  shapes = jax.eval_shape(functools.partial(state_lib.init_params, model), 0)
  rng = np.random.default_rng(1)
  params = jax.tree.map(
    lambda x: rng.normal(0, 0.25, x.shape).astype(np.float32), shapes
  )
  batch = batch_of(8)

  def loss_of(params, batch):
    return language.weighted_cross_entropy(model, params, batch, 1e-3, 1e-4)

  wanted, wanted_gradient = jax.jit(jax.value_and_grad(loss_of))(params, batch)

  plan = ternary.Plan(ternary_plan.layouts(params), 1e-30)
  mesh = meshes.mesh_of(2)
  specs = rules.specs(params, mesh)

  def local(params, batch):
    held = ternary_plan.collections(ternary.start(plan, params, code=127))

    def local_loss(params):
      return language.weighted_cross_entropy(
        follower, params, batch, 1e-3, 1e-4, held
      )

    value, gradient = jax.value_and_grad(local_loss)(params)
    gradient = collectives.summed_over_copies(gradient)
    return lax.psum(value, 'fsdp'), gradient

  run = jax.shard_map(
    local,
    mesh=mesh,
    in_specs=(specs, PartitionSpec('fsdp')),
    out_specs=(PartitionSpec(), specs),
    check_vma=False,
  )
  value, gradient = jax.jit(run)(params, batch)
  assert float(value) == pytest.approx(float(wanted), rel=1e-6)
  flat = jax.tree_util.tree_leaves_with_path(wanted_gradient)
  for (path, w), g in zip(flat, jax.tree.leaves(gradient)):
    assert np.any(w), path
    np.testing.assert_allclose(
      g, w, rtol=1e-3, atol=1e-5 * np.abs(w).max(), err_msg=str(path)
    )


def test_a_start_on_127_is_what_qat_takes():
  rng = np.random.default_rng(0)
  params = {'w_in_DF': rng.standard_normal((16, 24)).astype(np.float32)}
  plan = ternary.Plan(ternary_plan.layouts(params), 1e-30)

  def local(params):
    return ternary.start(plan, params, code=127)

  run = jax.shard_map(
    local,
    mesh=meshes.mesh_of(8),
    in_specs=(PartitionSpec('fsdp'),),
    out_specs=ternary_plan.specs(plan, params),
    check_vma=False,
  )
  state = jax.jit(run)(params)
  wanted = jax.jit(qat.quantize, static_argnums=(1, 2))(
    params['w_in_DF'], (0,), jnp.float32
  )
  np.testing.assert_array_equal(state.codes['w_in_DF'], wanted.codes)
  np.testing.assert_array_equal(state.scales['w_in_DF'], wanted.scales)
