"""Runs a batch through the model and picks the hidden state before each token.

A batch says which tokens each token sees and which token it follows, so that
objectives and evaluators need no code for packed rows and trees.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from kaiju_jax.data import packing
from kaiju_jax.model import transformer
from kaiju_jax.sharding import collectives


def hidden(
  model: transformer.Transformer,
  variables: Mapping[str, Any],
  batch: packing.Batch,
  z_attention: jax.Array | float = 0.0,
) -> jax.Array:
  """Returns the hidden states of this device's part of the rows."""
  return model.apply(
    variables,
    batch.tokens_BL,
    batch.visibility(),
    z_attention,
    method='hidden',
  )


def predicting(hidden_BLD: jax.Array, batch: packing.Batch) -> jax.Array:
  """Returns the hidden state [B, L, D] that predicts each token.

  The rows are whole on every device of a tensor group.
  """
  # A predecessor may stand in another device's part of the row.
  return jnp.take_along_axis(
    collectives.enter(hidden_BLD), batch.predecessor_BL[:, :, None], axis=1
  )
