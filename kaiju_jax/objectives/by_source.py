"""Metrics per source of a data mix, from the losses of its rows' tokens.

    loss/NAME    Σ weight · loss / Σ weight, over the tokens of the source
    share/NAME   Σ weight, over the tokens of the source / Σ weight

Each row names its source (`packing.COMPONENT`), so that the metrics do not read
the data and serve every objective whose loss is a sum over tokens. In a step
without a row of a source, the source's loss is 0 / 0 and is not recorded; its
share is 0.
"""

from collections.abc import Sequence
import dataclasses

import jax
import jax.numpy as jnp

from kaiju_jax.data import packing
from kaiju_jax.objectives import objective as objective_lib


def breakdown(names: Sequence[str]) -> objective_lib.Breakdown:
  """Returns a function from a microbatch's token losses to metrics per source.

  Args:
    names: the sources' names, in the order of the rows' components.
  """

  def metrics(loss_BL: jax.Array, batch: packing.Batch):
    weighted_B = jnp.sum(batch.weight_BL * loss_BL, axis=1)
    weight_B = jnp.sum(batch.weight_BL, axis=1)
    total = jnp.sum(weight_B)
    found = {}
    for index, name in enumerate(names):
      is_own_B = batch.extras[packing.COMPONENT] == index
      weight = jnp.sum(jnp.where(is_own_B, weight_B, 0))
      loss = jnp.sum(jnp.where(is_own_B, weighted_B, 0))
      found[f'loss/{name}'] = loss, weight
      found[f'share/{name}'] = weight, total
    return found

  return metrics


def reading(objective: objective_lib.Objective) -> objective_lib.Objective:
  """Returns the objective with each row's source among its extras."""
  component = {packing.COMPONENT: jax.ShapeDtypeStruct((), jnp.int32)}
  return dataclasses.replace(
    objective, extras={**objective.extras, **component}
  )
