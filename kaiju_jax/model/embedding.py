"""Token embedding and output head: one table read both ways, or two.

A tied model scales its input by √D, so that the head can use rows of norm 1 as
they are. Both tables stay float unless `quantization.embedding='int8'`; then a
vocabulary entry has one scale, and the head's matmul is int8 too. (The sources
do not say which.)

The vocabulary is split over devices: each looks up the entries that it has, the
parts are summed, and each makes the logits of its own entries.
"""

import jax
import jax.numpy as jnp

from kaiju_jax.model import config as model_config
from kaiju_jax.model import weighted
from kaiju_jax.quantization import int8
from kaiju_jax.quantization import qat
from kaiju_jax.sharding import collectives


class Embedding(weighted.Weighted):
  """tokens_BL → hidden_BLD, and hidden_BLD → logits_BLV."""

  def setup(self):
    self.embedding_DV = self._table('embedding_DV')
    if not self.config.tied_embedding:
      self.head_DV = self._table('head_DV')

  def _table(self, name: str):
    shape = (self.config.d_model, self.config.vocab_size)
    is_int8 = self.config.quantization.embedding == 'int8'
    return self.gathered(name, shape, is_int8)

  def __call__(self, tokens_BL: jax.Array) -> jax.Array:
    """Returns the embeddings times √D, in the model's dtype.

    If rows are split over devices, this is the device's own part of L.
    """
    first = collectives.first_of('V', self.embedding_DV.shape[1])
    x_BLD = qat.lookup(self.embedding_DV, tokens_BL - first)
    x_BLD = x_BLD * self.config.d_model**0.5
    return collectives.leave(x_BLD.astype(self.config.dtype))

  def head(self) -> jax.Array | int8.Quantized:
    """Returns the head's table [D, V] of this device's vocabulary entries."""
    return self.embedding_DV if self.config.tied_embedding else self.head_DV

  def logits(self, hidden_BLD: jax.Array) -> jax.Array:
    """Returns float32 logits [B, L, V] of this device's vocabulary entries."""
    return logits(self.config, hidden_BLD, self.head())


def logits(
  config: model_config.ModelConfig,
  hidden_BLD: jax.Array,
  table_DV: jax.Array | int8.Quantized,
) -> jax.Array:
  """Returns float32 logits [B, L, V] by a table that was gathered before."""
  return weighted.einsum(
    'BLD,DV->BLV', hidden_BLD, table_DV, config, dtype=jnp.float32
  )
