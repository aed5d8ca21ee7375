"""A model without layers, and an objective's gradient on any mesh.

What an objective makes of hidden states can be tested without a transformer's
layers, whose compilation takes most of a test's time.
"""

import jax
import numpy as np

from kaiju_jax.data import config as data_config
from kaiju_jax.model import config as model_config
from kaiju_jax.model import embedding
from kaiju_jax.model import norm
from kaiju_jax.model import transformer
from kaiju_jax.objectives import config as objective_config
from kaiju_jax.objectives import objective as objective_lib
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.sharding import collectives
from kaiju_jax.sharding import rules
from kaiju_jax.training import experiment as experiment_lib
from tests import meshes

VOCAB = 48
_P = jax.sharding.PartitionSpec
_Z = objective_lib.ZReg(1e-2, 1e-3)


class Shallow(transformer.Transformer):
  """Embeds tokens, norms them, and reads them out."""

  def setup(self):
    self.embedding = embedding.Embedding(self.config)
    self.final_norm = norm.RMSNorm(self.config.norm_epsilon)

  def hidden(self, tokens_BL, visibility, z=0.0):
    del visibility, z
    return self.final_norm(self.embedding(tokens_BL))[0]


def model(quantized: str = 'none', dtype: str = 'float32', **fields) -> Shallow:
  """Returns the model; `quantized` is how its table is used."""
  quantization = quantization_config.none()
  quantization.embedding = quantized
  fields = {'vocab_size': VOCAB, 'd_model': 64} | fields
  return Shallow(
    model_config.ModelConfig(dtype=dtype, quantization=quantization, **fields)
  )


def params(one: Shallow, seed: int = 0):
  """Returns float32 parameters."""
  rng = np.random.default_rng(seed)
  width = one.config.d_model
  names = ['embedding_DV']
  names += [] if one.config.tied_embedding else ['head_DV']
  shape = width, one.config.vocab_size
  return {
    'embedding': {
      name: (rng.normal(size=shape) * width**-0.5).astype(np.float32)
      for name in names
    },
    'final_norm': {'gain_D': np.ones(width, np.float32)},
  }


def experiment(
  name: str = 'language', length: int = 32, sources=(), **objective
) -> experiment_lib.Experiment:
  """Returns a run of one layer on eight rows; `objective` are settings."""
  return experiment_lib.Experiment(
    model=model_config.ModelConfig(
      vocab_size=VOCAB, d_model=64, layout='L0', num_heads=8, head_dim=8,
      d_ff=16, max_length=length, window=5, dtype='float32',
      quantization=quantization_config.none(),
    ),
    data=data_config.DataConfig(length=length, batch=8, sources=sources),
    objective=objective_config.ObjectiveConfig(name, **objective),
  )  # fmt: skip


def gradient_on(one: Shallow, objective, batch, widths=(1, 1)):
  """Returns an objective's sums of one [B, L] batch, and their gradient."""
  mesh = meshes.mesh_of(*widths)
  start = params(one)
  stored = jax.device_put(start, rules.shardings(start, mesh))
  specs = rules.specs(start, mesh)

  def local(params, batch):
    def loss(params):
      sums = objective.loss(one, {'params': params}, batch, _Z)
      return sums.loss, sums

    gradient, sums = jax.grad(loss, has_aux=True)(params)
    sums = jax.tree.map(lambda x: collectives.total(x, 'B', rules.ROWS), sums)
    return sums, collectives.summed_over_copies(gradient)

  of = jax.shard_map(
    local,
    mesh=mesh,
    in_specs=(specs, _P('fsdp')),
    out_specs=(_P(), specs),
    check_vma=False,
  )
  return jax.device_get(jax.jit(of)(stored, batch))


def assert_close(found, expected, limit: float) -> None:
  """Holds each tensor to `limit` of the largest number that is expected."""
  for (path, a), b in zip(
    jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected)
  ):
    assert np.any(b), path
    error = np.abs(a - b).max() / np.abs(b).max()
    assert error <= limit, (jax.tree_util.keystr(path), error)
