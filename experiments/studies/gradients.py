"""The gradients that workers would send: each its own microbatch's mean.

A worker's gradient is divided by its own loss tokens, as Squinch encodes it.
Every matrix is x_DC: D, along which blocks run, then all other dimensions.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax.data import packing
from kaiju_jax.objectives import language
from kaiju_jax.sharding import rules
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import optimizer
from kaiju_jax.training import state as state_lib
from kaiju_jax.training import step
from kaiju_jax.training import token_count


def capture(
  experiment: experiment_lib.Experiment,
) -> Callable[[state_lib.TrainState, packing.Batch], dict[str, np.ndarray]]:
  """Returns (state, batch [A, B, L]) → {name, as 'w_in_DF': float32[D, C]}.

  The first of the A is the worker's; a name's layers stand side by side.
  """
  model = step.model_of(experiment)
  config = experiment.optimizer
  rate_of = optimizer.shape_of_rate(config, step.total_tokens(experiment))

  @jax.jit
  def gradient(params, tokens, batch):
    microbatch = jax.tree.map(lambda field: jnp.asarray(field)[0], batch)
    rate = rate_of(token_count.to_float(tokens))
    z = [
      optimizer.z_reg_coefficient(peak, config.z_reg.schedule, rate)
      for peak in (config.z_reg.attention, config.z_reg.logits)
    ]
    summed = jax.grad(
      lambda p: language.weighted_cross_entropy(model, p, microbatch, *z)
    )(params)
    weight = jnp.maximum(jnp.sum(microbatch.weight_BL), 1)
    return jax.tree.map(lambda g: g / weight, summed)

  return lambda state, batch: matrices(
    jax.device_get(gradient(state.params, state.tokens, batch))
  )


def matrices(tree: Any) -> dict[str, np.ndarray]:
  """Returns every matrix of a tree of parameters' shape, by kind, as x_DC."""
  kinds = {}
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    name = path[-1].key
    if not optimizer.is_matrix(name):
      continue
    letters = rules.letters_of(name)
    place = leaf.ndim - len(letters) + letters.index('D')
    x_DC = np.moveaxis(np.asarray(leaf, np.float32), place, 0)
    kinds.setdefault(name, []).append(x_DC.reshape(x_DC.shape[0], -1))
  return {name: np.concatenate(parts, 1) for name, parts in kinds.items()}


def join(
  captures: Sequence[Mapping[str, np.ndarray]], across: bool = False
) -> dict[str, np.ndarray]:
  """Returns several workers' matrices side by side, {kind: x_RC}.

  Args:
    captures: one per worker.
    across: whether columns are D, so that blocks run across hidden units.
  """
  kinds = {
    name: np.concatenate([capture[name] for capture in captures], 1)
    for name in captures[0]
  }
  if across:
    return {name: np.ascontiguousarray(x.T) for name, x in kinds.items()}
  return kinds


def pool(gradients: Mapping[str, np.ndarray]) -> np.ndarray:
  """Returns all kinds in one array of blocks of 32 rows, float32[32, C].

  Raises:
    ValueError: a kind whose rows fill no blocks.
  """
  blocks = []
  for name, x_RC in gradients.items():
    rows, columns = x_RC.shape
    if rows % 32:
      raise ValueError(f'{name}: {rows} rows are no multiple of 32.')
    x_GRC = x_RC.reshape(-1, 32, columns)
    blocks.append(np.moveaxis(x_GRC, 1, 0).reshape(32, -1))
  return np.concatenate(blocks, 1)
