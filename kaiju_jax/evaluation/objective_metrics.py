"""Evaluates any objective on unseen rows: its loss and its metrics."""

from collections.abc import Callable
import functools
import itertools
from typing import Any

import jax
import numpy as np

from kaiju_jax.data import loader
from kaiju_jax.evaluation import on_devices
from kaiju_jax.model import transformer
from kaiju_jax.objectives import objective as objective_lib
from kaiju_jax.sharding import collectives
from kaiju_jax.sharding import mesh as mesh_lib
from kaiju_jax.sharding import rules
from kaiju_jax.wire import ternary
from kaiju_jax.wire import ternary_plan


def evaluator(
  model: transformer.Transformer,
  objective: objective_lib.Objective,
  source: loader.RowSource,
  batch: int,
  rows: int,
  mesh: jax.sharding.Mesh | None = None,
) -> Callable[..., dict[str, float]]:
  """Returns (params, replica=None) → {'loss' or a metric's name: mean}.

  Args:
    source: rows with the objective's extras.
    rows: how many of the first are read, in whole batches; at most an epoch.
    mesh: where the parameters are stored; by default the first device.
  """
  mesh = mesh or mesh_lib.single()
  z = objective_lib.ZReg(0.0, 0.0)

  @on_devices.each(mesh)
  def summed(params, held, rows_BL):
    sums = objective.loss(model, {'params': params, **held}, rows_BL, z)
    return jax.tree.map(lambda x: collectives.total(x, 'B', rules.ROWS), sums)

  def evaluate(
    params: Any, replica: ternary.State | None = None
  ) -> dict[str, float]:
    held = ternary_plan.collections(replica)
    count = -(-rows // batch)
    sums = [
      jax.device_get(summed(params, held, rows_BL))
      for rows_BL in itertools.islice(loader.epoch(source, batch), count)
    ]
    total = functools.reduce(functools.partial(jax.tree.map, np.add), sums)
    found = {'loss': (total.loss, total.weight), **total.metrics}
    return {
      name: float(x / by) if by > 0 else 0.0 for name, (x, by) in found.items()
    }

  return evaluate
