"""Preferences: the reply that a user kept becomes likelier than the others.

The replies of one turn, its *group*, are siblings in a tree row
(`data/turns.py`). With log p(y) the log-probability of a reply's tokens and its
end, and log p_ref(y) that of a frozen reference model, a reply's reward is

    r(y) = β · (log p(y) − log p_ref(y))

and the loss of a group is one of

    kept      −log( e^r(kept) / Σ_group e^r(y) )
    pairs     mean over the swiped ones of −log σ(r(kept) − r(y))
    options   as `kept` without a reference, r(y) = β · log p(y) per token,
              plus nll · (−log p(kept)) per token

For two replies `kept` and `pairs` are DPO (Rafailov et al. 2023). `options` is
like SimPO (Meng et al. 2024), which needs no reference because a reply's length
divides its reward.

From the sources: modified online DPO on swipes. What is modified is not said;
the softmax over all swipes of a turn is our guess.

A group's loss has the weight of its tokens. Z-Reg acts on a group's tokens as
much as it would in a mean over all tokens.
"""

from collections.abc import Mapping
import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp

from kaiju_jax.data import choices
from kaiju_jax.data import packing
from kaiju_jax.model import batches
from kaiju_jax.model import transformer
from kaiju_jax.model import z_reg
from kaiju_jax.objectives import config as objective_config
from kaiju_jax.objectives import objective as objective_lib
from kaiju_jax.objectives import vocabulary_loss


def make(
  config: objective_config.Preference, length: int, chunk: int = 0
) -> objective_lib.Objective:
  """Returns the objective.

  Its batches carry these extras: `reply_BL`, int32, the number of each token's
  reply in its row, from 1 on, 0 for none; and per reply, in Y slots, slot 0
  free: `group_BY`, int32, its group's number, from 1 on, 0 in free slots;
  `kept_BY`, float32, 1 for the one reply of a group that was kept; and, but for
  'options', `reference_BY`, float32, the reference's log-probability.

  Its metrics are accuracy, the fraction of groups whose kept reply has the
  largest reward; margin, its reward minus the largest other one; kept_loss,
  −log p(kept) per token; and, with a reference, drift, the mean over groups of
  log p(kept) − log p_ref(kept).

  Args:
    config: the loss and its factors.
    length: L of the rows.
    chunk: tokens whose logits are held at a time; 0 for all.
  """
  slots = (choices.count_slots(length),)
  extras = {
    choices.REPLY: jax.ShapeDtypeStruct((length,), jnp.int32),
    choices.GROUP: jax.ShapeDtypeStruct(slots, jnp.int32),
    choices.KEPT: jax.ShapeDtypeStruct(slots, jnp.float32),
  }
  if config.loss != 'options':
    extras[choices.REFERENCE] = jax.ShapeDtypeStruct(slots, jnp.float32)

  def loss(model, variables, batch, z):
    group_BY, kept_BY = batch.extras[choices.GROUP], batch.extras[choices.KEPT]
    tokens_BY, weight_BY = _sizes(batch)
    sums = functools.partial(_sum_by, group_BY)
    weight_BG = sums(weight_BY * kept_BY)
    # Each group's share of Z-Reg is spread over the group's tokens.
    spread_BG = weight_BG / jnp.maximum(sums(tokens_BY), 1)
    spread_BY = _pick(spread_BG, group_BY)
    spread_BL = _pick(spread_BY, batch.extras[choices.REPLY]) * _in_reply(batch)
    # A token sees as much of attention's Z-Reg as in a mean over all tokens.
    is_token_BL = batch.limit_BL > batch.start_BL
    part = jnp.sum(weight_BG) / jnp.maximum(jnp.sum(is_token_BL), 1)
    scaled = objective_lib.ZReg(z.attention * part, z.logits)
    log_p_BY = log_probabilities(
      model, variables, batch, scaled, spread_BL, chunk
    )
    reference_BY = batch.extras.get(choices.REFERENCE, jnp.zeros_like(kept_BY))
    found = losses(config, log_p_BY, reference_BY, tokens_BY, group_BY, kept_BY)
    weight = jnp.sum(weight_BG)
    total = jnp.sum(weight_BG * found.loss_BG)
    kept_tokens_BG = jnp.maximum(sums(tokens_BY * kept_BY), 1)
    kept_BG = sums(log_p_BY * kept_BY)
    metrics = {
      'accuracy': found.margin_BG > 0,
      'margin': found.margin_BG,
      'kept_loss': -kept_BG / kept_tokens_BG,
    }
    if config.loss != 'options':
      metrics['drift'] = kept_BG - sums(reference_BY * kept_BY)
    return objective_lib.Sums(
      total,
      weight,
      {
        name: (jnp.sum(weight_BG * value_BG), weight)
        for name, value_BG in metrics.items()
      },
    )

  return objective_lib.Objective(loss, extras=extras)


class Losses(NamedTuple):
  """Each group's loss, and how much its kept reply leads; float32, G slots."""

  loss_BG: jax.Array
  margin_BG: jax.Array


def losses(
  config: objective_config.Preference,
  log_p_BY: jax.Array,
  reference_BY: jax.Array,
  tokens_BY: jax.Array,
  group_BY: jax.Array,
  kept_BY: jax.Array,
) -> Losses:
  """Returns the losses of groups; 0 where a slot has no group.

  Args:
    config: the loss and its factors.
    log_p_BY: log-probability of each reply.
    reference_BY: the reference's.
    tokens_BY: tokens of each reply.
    group_BY: int32, each reply's group; 0 for none.
    kept_BY: 1 for the kept reply of a group.
  """
  sums = functools.partial(_sum_by, group_BY)
  per_token_BY = log_p_BY / jnp.maximum(tokens_BY, 1)
  reward_BY = config.beta * (log_p_BY - reference_BY)
  if config.loss == 'options':
    reward_BY = config.beta * per_token_BY
  is_swiped_BY = (group_BY > 0) & (kept_BY == 0)
  kept_BG = sums(reward_BY * kept_BY)
  # How far each swiped reply is ahead of the kept one.
  ahead_BY = reward_BY - _pick(kept_BG, group_BY)
  ahead_BY = jnp.where(is_swiped_BY, ahead_BY, -jnp.inf)
  has_group_BG, swiped_BG = sums(kept_BY) > 0, sums(is_swiped_BY * 1.0)
  has_choice_BG = has_group_BG & (swiped_BG > 0)
  most_BG = jnp.where(has_choice_BG, _largest_by(group_BY, ahead_BY), 0)
  if config.loss == 'pairs':
    loss_BG = sums(jax.nn.softplus(ahead_BY)) / jnp.maximum(swiped_BG, 1)
  else:
    # −log softmax of the kept reply is log(1 + Σ e^ahead). The sum without the
    # 1 keeps the digits of a small loss.
    around_BG = jax.lax.stop_gradient(most_BG)
    part_BY = jnp.exp(ahead_BY - _pick(around_BG, group_BY))
    total_BG = jnp.where(has_choice_BG, sums(part_BY), 1)
    loss_BG = jax.nn.softplus(jnp.log(total_BG) + around_BG)
    loss_BG = jnp.where(has_choice_BG, loss_BG, 0)
  if config.nll:
    loss_BG -= config.nll * sums(per_token_BY * kept_BY)
  return Losses(jnp.where(has_group_BG, loss_BG, 0), -most_BG)


def log_probabilities(
  model: transformer.Transformer,
  variables: Mapping[str, Any],
  batch: packing.Batch,
  z: objective_lib.ZReg,
  spread_BL: jax.Array | float = 0.0,
  chunk: int = 0,
) -> jax.Array:
  """Returns the log-probability of each reply, float32 [B, Y].

  Args:
    model: the transformer.
    variables: the variables of `model.apply`.
    batch: rows with the extra `reply_BL`.
    z: Z-Reg's coefficients.
    spread_BL: factor of the logits' Z-Reg for each token.
    chunk: tokens whose logits are held at a time; 0 for all.
  """
  hidden_BLD = batches.hidden(model, variables, batch, z.attention)
  found = vocabulary_loss.read(
    model,
    variables,
    batches.predicting(hidden_BLD, batch),
    batch.tokens_BL,
    chunk=chunk,
  )
  loss_BL = z_reg.inject(
    found.lse_BL - found.target_BL, found.lse_BL, z.logits * spread_BL
  )
  return _sum_by_reply(batch, -loss_BL * _in_reply(batch))


def _sizes(batch: packing.Batch) -> tuple[jax.Array, jax.Array]:
  """Returns each reply's tokens, and their mean weight, [B, Y]."""
  tokens_BY = _sum_by_reply(batch, _in_reply(batch))
  weight_BY = _sum_by_reply(batch, batch.weight_BL * _in_reply(batch))
  return tokens_BY, weight_BY / jnp.maximum(tokens_BY, 1)


def _in_reply(batch: packing.Batch) -> jax.Array:
  return (batch.extras[choices.REPLY] > 0).astype(jnp.float32)


def _sum_by_reply(batch: packing.Batch, x_BL: jax.Array) -> jax.Array:
  slots = choices.count_slots(batch.tokens_BL.shape[1])
  one = functools.partial(jax.ops.segment_sum, num_segments=slots)
  return jax.vmap(one)(x_BL, batch.extras[choices.REPLY])


def _sum_by(group_BY: jax.Array, x_BY: jax.Array) -> jax.Array:
  """Returns sums over groups; a group's slot is its number, 0 has none."""
  one = functools.partial(jax.ops.segment_sum, num_segments=group_BY.shape[1])
  return jax.vmap(one)(jnp.where(group_BY > 0, x_BY, 0), group_BY)


def _largest_by(group_BY: jax.Array, x_BY: jax.Array) -> jax.Array:
  one = functools.partial(jax.ops.segment_max, num_segments=group_BY.shape[1])
  return jax.vmap(one)(x_BY, group_BY)


def _pick(x_BG: jax.Array, index: jax.Array) -> jax.Array:
  """Returns the entry of each index, along the second axis."""
  return jnp.take_along_axis(x_BG, index, axis=1)
