"""Language modelling: cross-entropy of each token given its predecessor.

In a tree a token with several children has several targets, so the loss reads

    Σ weight[t] · CE(logits[predecessor[t]], token[t])  /  Σ weight

and the predecessor is t − 1 in a plain document. Pre-training is this
objective, and so is supervised fine-tuning: its rows carry weight 0 wherever
nothing is to be learned.
"""

from collections.abc import Mapping
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp

from kaiju_jax.data import packing
from kaiju_jax.model import transformer
from kaiju_jax.model import z_reg
from kaiju_jax.objectives import objective as objective_lib
from kaiju_jax.sharding import collectives


def sums(
  model: transformer.Transformer,
  variables: Mapping[str, Any],
  batch: packing.Batch,
  z: objective_lib.ZReg,
) -> objective_lib.Sums:
  """Returns a microbatch's Σ weight · CE and Σ weight."""
  hidden_BLD = hidden(model, variables, batch, z.attention)
  loss = of_hidden(model, variables, hidden_BLD, batch, z.logits)
  return objective_lib.Sums(loss, jnp.sum(batch.weight_BL), {})


OBJECTIVE = objective_lib.Objective(sums)


def weighted_cross_entropy(
  model: transformer.Transformer,
  params,
  batch: packing.Batch,
  z_attention: jax.Array | float,
  z_logits: jax.Array | float,
  collections: Mapping[str, Any] | None = None,
) -> jax.Array:
  """Returns Σ weight · CE of one [B, L] batch, a float32 scalar (nats).

  Args:
    model: the transformer.
    params: its parameters.
    batch: one microbatch.
    z_attention: Attention Z-Reg's configured coefficient. The caller divides
      the gradient by the token count, and Z-Reg's part of it as well.
    z_logits: the same for the output logits.
    collections: what the model reads beside its parameters
      (`ternary_plan.collections`).

  Z-Reg changes gradients alone, never this value.
  """
  variables = {'params': params, **(collections or {})}
  hidden_BLD = hidden(model, variables, batch, z_attention)
  return of_hidden(model, variables, hidden_BLD, batch, z_logits)


def hidden(
  model: transformer.Transformer,
  variables: Mapping[str, Any],
  batch: packing.Batch,
  z_attention: jax.Array | float,
) -> jax.Array:
  """Returns the hidden states of this device's part of the rows."""
  return model.apply(
    variables,
    batch.tokens_BL,
    batch.visibility(),
    z_attention,
    method='hidden',
  )


def of_hidden(
  model: transformer.Transformer,
  variables: Mapping[str, Any],
  hidden_BLD: jax.Array,
  batch: packing.Batch,
  z_logits: jax.Array | float,
) -> jax.Array:
  """Returns `weighted_cross_entropy` of hidden states made before."""
  # A predecessor may stand in another device's part of the row.
  hidden_BLD = jnp.take_along_axis(
    collectives.enter(hidden_BLD), batch.predecessor_BL[:, :, None], axis=1
  )
  logits_BLV = model.apply(variables, hidden_BLD, method='logits')
  lse_BL = _logsumexp(logits_BLV)
  target_BL = _at(logits_BLV, batch.tokens_BL)
  loss_BL = z_reg.inject(lse_BL - target_BL, lse_BL, z_logits * batch.weight_BL)
  return jnp.sum(batch.weight_BL * loss_BL)


def _logsumexp(logits_BLV: jax.Array) -> jax.Array:
  """Returns the log-sum-exp over the whole vocabulary, split or not."""
  largest_BL1 = collectives.largest(
    lax.stop_gradient(jnp.max(logits_BLV, axis=-1, keepdims=True)), 'V'
  )
  sum_BL = jnp.sum(jnp.exp(logits_BLV - largest_BL1), axis=-1)
  return jnp.log(collectives.total(sum_BL, 'V')) + largest_BL1[..., 0]


def _at(logits_BLV: jax.Array, tokens_BL: jax.Array) -> jax.Array:
  """Returns each token's own logit, from the device that has its entry."""
  size = logits_BLV.shape[-1]
  index_BL = tokens_BL - collectives.first_of('V', size)
  inside_BL = (index_BL >= 0) & (index_BL < size)
  logit_BL = jnp.take_along_axis(
    logits_BLV, jnp.clip(index_BL, 0, size - 1)[:, :, None], axis=-1
  )[:, :, 0]
  return collectives.total(jnp.where(inside_BL, logit_BL, 0), 'V')
