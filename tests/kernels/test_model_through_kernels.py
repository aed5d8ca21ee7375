"""A model trains through the attention kernels as through plain XLA.

The step is the real one, under its fully manual shard_map on two by two
devices: half-int8, a local and a global layer, packed rows. Kernels are
interpreted.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.data import config as data_config
from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import tuned
from kaiju_jax.kernels.visibility_attention import blocks
from kaiju_jax.model import config as model_config
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import step as step_lib
from tests import meshes
from tests.model import params as params_lib
from tests.model import rows

LENGTH = 64


def _experiment(attention):
  return experiment_lib.Experiment(
    model=model_config.ModelConfig(
      vocab_size=48,
      d_model=32,
      layout='L0 G1',
      num_heads=4,
      head_dim=8,
      d_ff=64,
      max_length=LENGTH,
      window=9,
      dtype='float32',
      attention=attention,
      quantization=quantization_config.QuantizationConfig(
        qk='int8', wire_gradients='float'
      ),
    ),
    data=data_config.DataConfig(length=LENGTH, batch=4),
  )


@functools.cache
def _loss_and_gradient(attention):
  one, mesh = _experiment(attention), meshes.mesh_of(2, 2)
  model = step_lib.model_of(_experiment('chunked'))
  params = params_lib.drawn(model, mesh)
  documents = [[64], [5, 30, 20], [33, 31], [1, 40]]
  batch = rows.packed_batch(documents, LENGTH, 48)
  batch = jax.tree.map(lambda x: x[None], batch)
  z = jnp.float32(1e-2), jnp.float32(1e-3)
  with dispatch.interpret(), tuned.trying(blocks.Tiles(32, 16, 4, 2)):
    gradient = jax.jit(
      step_lib.gradient_of(one, mesh),
      compiler_options={'xla_backend_optimization_level': 0},
    )
    sums, gradient = jax.device_get(gradient(params, batch, 1, *z))
  return sums.loss, gradient


@pytest.mark.slow
@pytest.mark.parametrize('attention', ['pallas_gpu', 'pallas_tpu'])
def test_loss_and_gradients_are_those_of_xla(attention):
  want_loss, want = _loss_and_gradient('chunked')
  loss, gradient = _loss_and_gradient(attention)
  np.testing.assert_allclose(loss, want_loss, rtol=1e-3)
  for x, y in zip(jax.tree.leaves(gradient), jax.tree.leaves(want)):
    assert np.abs(x - y).max() <= 2e-2 * np.abs(y).max()
