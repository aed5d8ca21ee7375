"""Parameters about as training starts them, without compiling the draws.

The program that draws a model's parameters takes longer to compile than many a
test takes in all. Where it is not what is under test, numpy draws.
"""

from typing import Any

import jax
import numpy as np

from kaiju_jax.model import transformer
from kaiju_jax.sharding import mesh as mesh_lib
from kaiju_jax.sharding import rules


def drawn(model, mesh: jax.sharding.Mesh | None = None, seed: int = 0) -> Any:
  """Returns float32 parameters, stored as `state.init_params` stores them."""
  rng = np.random.default_rng(seed)

  def start(path, leaf):
    name = rules.name_of(path)
    if 'gain' in name:
      return np.ones(leaf.shape, np.float32)
    if name.startswith('bungee'):
      return np.zeros(leaf.shape, np.float32)
    if 'limit' in name:
      return np.full(leaf.shape, 4.0, np.float32)
    # One over the root of what is summed, or of a neighbour of it.
    size = max(leaf.shape[-2:]) ** -0.5
    return (size * rng.standard_normal(leaf.shape)).astype(np.float32)

  params = jax.tree_util.tree_map_with_path(
    start, transformer.parameter_shapes(model.config)
  )
  return jax.device_put(
    params, rules.shardings(params, mesh or mesh_lib.single())
  )
