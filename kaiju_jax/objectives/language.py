"""Language modelling: the cross-entropy of each token.

The logits of a token's predecessor predict it. In a tree a token with several
children predicts each of them, so the loss is

    Σ weight[t] · CE(logits[predecessor[t]], token[t])  /  Σ weight

The predecessor is t − 1 in a plain document. Both pre-training and supervised
fine-tuning use this objective; fine-tuning rows have weight 0 at tokens that
the model should not learn.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from kaiju_jax.data import packing
from kaiju_jax.model import batches
from kaiju_jax.model import transformer
from kaiju_jax.model import z_reg
from kaiju_jax.objectives import objective as objective_lib
from kaiju_jax.objectives import vocabulary_loss


def make(
  chunk: int = 0,
  breakdown: objective_lib.Breakdown = objective_lib.report_nothing,
) -> objective_lib.Objective:
  """Returns the objective.

  Args:
    chunk: tokens whose logits are held at a time; 0 for all.
    breakdown: makes metrics of each token's loss.
  """

  def sums(model, variables, batch, z):
    hidden_BLD = batches.hidden(model, variables, batch, z.attention)
    loss_BL = hidden_cross_entropy(
      model, variables, hidden_BLD, batch, z.logits, chunk
    )
    return objective_lib.Sums(
      jnp.sum(batch.weight_BL * loss_BL),
      jnp.sum(batch.weight_BL),
      breakdown(loss_BL, batch),
    )

  return objective_lib.Objective(sums)


OBJECTIVE = make()


def weighted_cross_entropy(
  model: transformer.Transformer,
  params: Any,
  batch: packing.Batch,
  z_attention: jax.Array | float,
  z_logits: jax.Array | float,
  collections: Mapping[str, Any] | None = None,
  chunk: int = 0,
) -> jax.Array:
  """Returns Σ weight · CE of one [B, L] batch, a float32 scalar (nats).

  Args:
    model: the transformer.
    params: its parameters.
    batch: one microbatch.
    z_attention: Attention Z-Reg's configured coefficient. The caller divides
      the whole gradient, Z-Reg's part included, by the token count.
    z_logits: the same for the output logits.
    collections: the model's variables beside its parameters
      (`ternary_plan.collections`).
    chunk: tokens whose logits are held at a time; 0 for all.

  Z-Reg changes only gradients, never this value.
  """
  variables = {'params': params, **(collections or {})}
  hidden_BLD = batches.hidden(model, variables, batch, z_attention)
  loss_BL = hidden_cross_entropy(
    model, variables, hidden_BLD, batch, z_logits, chunk
  )
  return jnp.sum(batch.weight_BL * loss_BL)


def hidden_cross_entropy(
  model: transformer.Transformer,
  variables: Mapping[str, Any],
  hidden_BLD: jax.Array,
  batch: packing.Batch,
  z_logits: jax.Array | float,
  chunk: int = 0,
) -> jax.Array:
  """Returns each token's cross-entropy [B, L], given the hidden states.

  It is not multiplied by the tokens' weights; Z-Reg's part of its gradient is.
  """
  found = vocabulary_loss.read(
    model,
    variables,
    batches.predicting(hidden_BLD, batch),
    batch.tokens_BL,
    chunk=chunk,
  )
  return z_reg.inject(
    found.lse_BL - found.target_BL, found.lse_BL, z_logits * batch.weight_BL
  )
