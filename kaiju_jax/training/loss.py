"""Cross-entropy of each token given its predecessor.

In a tree a token with several children has several targets, so the loss reads

    Σ weight[t] · CE(logits[predecessor[t]], token[t])  /  Σ weight

and the predecessor is t − 1 in a plain document.
"""

import jax
import jax.numpy as jnp

from kaiju_jax.data import packing
from kaiju_jax.model import transformer
from kaiju_jax.model import z_reg


def weighted_cross_entropy(
  model: transformer.Transformer,
  params,
  batch: packing.Batch,
  z_attention: jax.Array | float,
  z_logits: jax.Array | float,
) -> jax.Array:
  """Returns Σ weight · CE of one [B, L] batch, a float32 scalar (nats).

  Args:
    model: the transformer.
    params: its parameters.
    batch: one microbatch.
    z_attention: Attention Z-Reg's coefficient, already divided by the number
      of tokens that the caller divides the loss by, and times it again (this
      sum is not divided yet): the coefficient of the config.
    z_logits: the same for the output logits.

  Z-Reg changes gradients alone, never this value.
  """
  hidden_BLD = model.apply(
    {'params': params},
    batch.tokens_BL,
    batch.visibility(),
    z_attention,
    method='hidden',
  )
  hidden_BLD = jnp.take_along_axis(
    hidden_BLD, batch.predecessor_BL[:, :, None], axis=1
  )
  logits_BLV = model.apply({'params': params}, hidden_BLD, method='logits')
  lse_BL = jax.nn.logsumexp(logits_BLV, axis=-1)
  target_BL = jnp.take_along_axis(
    logits_BLV, batch.tokens_BL[:, :, None], axis=-1
  )[:, :, 0]
  loss_BL = z_reg.inject(lse_BL - target_BL, lse_BL, z_logits * batch.weight_BL)
  return jnp.sum(batch.weight_BL * loss_BL)
