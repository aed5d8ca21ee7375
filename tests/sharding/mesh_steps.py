"""Loss and gradient of one step on a mesh."""

import functools

import jax
import jax.numpy as jnp

from kaiju_jax.data import config as data_config
from kaiju_jax.model import config as model_config
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import step as step_lib
from tests import meshes
from tests.model import params as params_lib
from tests.model import rows


def experiment(**quantization) -> experiment_lib.Experiment:
  """Windows, sharing, two repeats of a block, rows packed across shards."""
  return experiment_lib.Experiment(
    model=model_config.ModelConfig(
      vocab_size=48,
      d_model=64,
      layout='L0 L0 L2 L2',
      num_heads=8,
      head_dim=8,
      d_ff=128,
      max_length=32,
      window=5,
      dtype='float32',
      quantization=quantization_config.QuantizationConfig(**quantization),
    ),
    data=data_config.DataConfig(length=32, batch=8),
  )


PLAIN = dict(vars(quantization_config.none()))


@functools.cache
def batch():
  documents = [
    [32],
    [5, 6],
    [2, 3, 20],
    [16, 16],
    [30],
    [1, 2, 3],
    [8, 8, 8, 8],
    [31],
  ]
  packed = rows.packed_batch(documents, 32, 48)
  return jax.tree.map(lambda x: x[None], packed)


def gradient_on(one, widths):
  mesh = meshes.mesh_of(*widths)
  params = params_lib.drawn(step_lib.model_of(one), mesh)
  gradient = jax.jit(step_lib.gradient_of(one, mesh))
  z = jnp.float32(1e-2), jnp.float32(1e-3)
  sums, gradient = jax.device_get(gradient(params, batch(), 1, *z))
  return sums.loss, gradient, sums.weight
