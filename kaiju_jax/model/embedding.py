"""Token embedding and output head: one table read both ways, or two.

The embeddings are scaled by √D, so that a tied head can use entries of norm 1
unchanged; models of other libraries may have `scaled_embedding=False`. Both
tables stay float unless `quantization.embedding='int8'`; then each vocabulary
entry has one scale, and the head's matmul is int8 too. (The sources do not say
which.)

Decoding on a CPU holds tables as [V, D] (`decoding/device/weights.py`). This
module reads them in that order without a transpose.

Devices split the vocabulary. Each looks up its own entries, the results are
summed over the devices, and each makes the logits of its own entries.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from kaiju_jax.model import config as model_config
from kaiju_jax.model import weighted
from kaiju_jax.quantization import int8
from kaiju_jax.quantization import qat
from kaiju_jax.sharding import collectives


class _Table(NamedTuple):
  """A table with one entry per vocabulary token."""

  table: jax.Array | int8.Quantized  # [D, V], or [V, D] where `is_turned`.
  is_turned: bool  # Whether V is the first dimension.


class Embedding(weighted.Weighted):
  """tokens_BL → hidden_BLD, and hidden_BLD → logits_BLV."""

  def setup(self) -> None:
    self._input = self._table('embedding')
    is_tied = self.config.tied_embedding
    self._output = self._input if is_tied else self._table('head')

  def _table(self, stem: str) -> '_Table':
    if self.has_variable('params', f'{stem}_VD'):
      return _Table(self.get_variable('params', f'{stem}_VD'), True)
    shape = (self.config.d_model, self.config.vocab_size)
    is_int8 = self.config.quantization.embedding == 'int8'
    return _Table(self.gather(f'{stem}_DV', shape, is_int8), False)

  def __call__(self, tokens_BL: jax.Array) -> jax.Array:
    """Returns the embeddings, times √D if so configured, in the model's dtype.

    If devices split the rows, this is the device's own part of L.
    """
    table, is_turned = self._input
    first = collectives.first_of('V', table.shape[0 if is_turned else 1])
    lookup = qat.lookup_rows if is_turned else qat.lookup
    x_BLD = lookup(table, tokens_BL - first)
    if self.config.scaled_embedding:
      x_BLD = x_BLD * self.config.d_model**0.5
    return collectives.leave(x_BLD.astype(self.config.dtype))

  def head(self) -> jax.Array | int8.Quantized:
    """Returns the head's table [D, V] of this device's vocabulary entries."""
    table, is_turned = self._output
    return jax.tree.map(jnp.transpose, table) if is_turned else table

  def logits(self, hidden_BLD: jax.Array) -> jax.Array:
    """Returns float32 logits [B, L, V] of this device's vocabulary entries."""
    table, is_turned = self._output
    if not is_turned:
      return logits(self.config, hidden_BLD, table)
    return weighted.einsum(
      'BLD,VD->BLV', hidden_BLD, table, self.config, dtype=jnp.float32
    )


def logits(
  config: model_config.ModelConfig,
  hidden_BLD: jax.Array,
  table_DV: jax.Array | int8.Quantized,
) -> jax.Array:
  """Returns float32 logits [B, L, V] for a table that is already gathered."""
  return weighted.einsum(
    'BLD,DV->BLV', hidden_BLD, table_DV, config, dtype=jnp.float32
  )
