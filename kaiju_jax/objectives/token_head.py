"""Training the token-level head, behind a frozen model or together with it.

The model below the head is its trunk. With the head's loss H, each token's
binary cross-entropy along each dimension,

    H = Σ label weight · (−label · log σ(logit) − (1 − label) · log σ(−logit))

the step minimizes

    frozen trunk   H / Σ label weight
    joint          (Σ weight · CE + coefficient · H) / Σ weight

Label weights allow texts that are labelled only in part. In joint training the
language loss's weight divides both sums, so that every label counts the same,
however many a step has.

The sources say only that there is classifier training after fine-tuning: the
loss and the two modes are our guess.
"""

from collections.abc import Mapping
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp

from kaiju_jax.data import packing
from kaiju_jax.model import batches
from kaiju_jax.model import token_head
from kaiju_jax.objectives import config as objective_config
from kaiju_jax.objectives import language
from kaiju_jax.objectives import objective as objective_lib
from kaiju_jax.sharding import collectives
from kaiju_jax.sharding import rules

# The top-level name of the head's parameters beside the model's.
PARAMETERS = 'token_head'


def make(
  config: objective_config.TokenHeadTraining,
  d_model: int,
  length: int,
  chunk: int = 0,
  breakdown: objective_lib.Breakdown = objective_lib.report_nothing,
) -> objective_lib.Objective:
  """Returns the objective.

  Its batches carry two extras, float32 [B, L, C]: `label_BLC`, 0…1, whether
  the text up to and including a token has a property, and `weight_BLC`, 0 where
  that is unknown and the label is ignored. Its metrics are head_loss,
  language_loss in joint training, and accuracy/NAME per dimension: the weighted
  fraction of labels whose side of ½ the head predicts.

  Args:
    config: the dimensions, the frozen trunk and the coefficient.
    d_model: D of the model.
    length: L of the rows.
    chunk: tokens whose logits over the vocabulary are held at a time in joint
      training; 0 for all.
    breakdown: makes metrics of each token's cross-entropy in joint training.

  Raises:
    ValueError: the dimensions' names are wrong (`model/token_head.check`).
  """
  of_head = token_head.TokenHeadConfig(config.names)
  token_head.check(of_head)
  head = token_head.TokenHead(of_head)
  label_LC = jax.ShapeDtypeStruct((length, len(config.names)), jnp.float32)

  def parameters() -> Mapping[str, Any]:
    hidden_BLD = jnp.zeros((1, 1, d_model))
    return {PARAMETERS: head.init(jax.random.key(0), hidden_BLD)['params']}

  def loss(model, variables, batch, z):
    hidden_BLD = batches.hidden(model, variables, batch, z.attention)
    if config.frozen:
      hidden_BLD = lax.stop_gradient(hidden_BLD)
    params = {'params': variables['params'][PARAMETERS]}
    logits_BLC = head.apply(params, hidden_BLD)
    value, weight, metrics = _judge(logits_BLC, batch, config.names)
    if config.frozen:
      return objective_lib.Sums(value, weight, metrics)
    tokens = jnp.sum(batch.weight_BL)
    said_BL = language.hidden_cross_entropy(
      model, variables, hidden_BLD, batch, z.logits, chunk
    )
    said = jnp.sum(batch.weight_BL * said_BL)
    return objective_lib.Sums(
      said + config.coefficient * value,
      tokens,
      metrics | {'language_loss': (said, tokens)} | breakdown(said_BL, batch),
    )

  return objective_lib.Objective(
    loss,
    extras={'label_BLC': label_LC, 'weight_BLC': label_LC},
    parameters=parameters,
    trained=(PARAMETERS,) if config.frozen else None,
  )


def cross_entropy(
  logits_BLC: jax.Array, label_BLC: jax.Array, weight_BLC: jax.Array
) -> jax.Array:
  """Returns weight · binary cross-entropy, float32 [B, L, C], in nats.

  It is 0 where the weight is 0, whatever the label.
  """
  logits_BLC = logits_BLC.astype(jnp.float32)
  label_BLC = jnp.where(weight_BLC > 0, label_BLC, 0)
  loss_BLC = -label_BLC * jax.nn.log_sigmoid(logits_BLC)
  loss_BLC -= (1 - label_BLC) * jax.nn.log_sigmoid(-logits_BLC)
  return weight_BLC * loss_BLC


def _judge(logits_BLC: jax.Array, batch: packing.Batch, names):
  """Returns the head's loss, the labels' weight, and its metrics.

  The logits cover this device's part of the rows, the labels whole rows.
  """
  label_BLC = collectives.own_rows(batch.extras['label_BLC'])
  weight_BLC = collectives.own_rows(batch.extras['weight_BLC'])
  loss_BLC = cross_entropy(logits_BLC, label_BLC, weight_BLC)
  is_right_BLC = (logits_BLC > 0) == (label_BLC > 0.5)
  value = collectives.total(jnp.sum(loss_BLC), 'L', rules.ROWS)
  right_C, weight_C = (
    collectives.total(jnp.sum(x_BLC, axis=(0, 1)), 'L', rules.ROWS)
    for x_BLC in (weight_BLC * is_right_BLC, weight_BLC)
  )
  weight = jnp.sum(weight_C)
  metrics = {'head_loss': (value, weight)} | {
    f'accuracy/{name}': (right_C[index], weight_C[index])
    for index, name in enumerate(names)
  }
  return value, weight, metrics
