"""Token embedding and output head; neither is int8.

A tied model reads one table both ways: the input is scaled by √D, so that rows
of norm 1 serve the head as they are.
"""

from flax import linen as nn
import jax
import jax.numpy as jnp

from kaiju_jax.model import config as model_config


class Embedding(nn.Module):
  """tokens_BL → hidden_BLD, and hidden_BLD → logits_BLV."""

  config: model_config.ModelConfig

  def setup(self):
    config = self.config
    init = jax.nn.initializers.normal(config.d_model**-0.5)
    shape = (config.d_model, config.vocab_size)
    self.embedding_DV = self.param('embedding_DV', init, shape)
    if not config.tied_embedding:
      self.head_DV = self.param('head_DV', init, shape)

  def __call__(self, tokens_BL: jax.Array) -> jax.Array:
    """Returns the embeddings times √D, in the model's dtype."""
    embedding_VD = self.embedding_DV.T * self.config.d_model**0.5
    return embedding_VD.astype(self.config.dtype)[tokens_BL]

  def logits(self, hidden_BLD: jax.Array) -> jax.Array:
    """Returns float32 logits [B, L, V]."""
    tied = self.config.tied_embedding
    table_DV = self.embedding_DV if tied else self.head_DV
    return jnp.einsum(
      'BLD,DV->BLV',
      hidden_BLD,
      table_DV.astype(self.config.dtype),
      preferred_element_type=jnp.float32,
    )
