"""A training step as something to time."""

from collections.abc import Callable
from typing import Any

from kaiju_jax.training import experiment as experiment_lib


def batch(experiment: experiment_lib.Experiment) -> Any:
  """Returns a step's rows: each one document of random bytes."""
  import numpy as np

  from kaiju_jax.data import packing

  data = experiment.data
  rng = np.random.default_rng(0)
  piece = packing.Piece(tokens=rng.integers(1, 256, data.length))
  rows = [packing.row([piece], data.length)] * data.batch
  return packing.stack(rows).map(lambda field: field[None])


def ours(experiment: experiment_lib.Experiment) -> tuple[Any, Any]:
  """Returns the jitted step and its state; the step takes (state, batch)."""
  from kaiju_jax.training import optimizer
  from kaiju_jax.training import state
  from kaiju_jax.training import step

  params = state.init_params(step.model_of(experiment), 0)
  made = optimizer.make(experiment.optimizer)
  return step.make(experiment), state.create(params, made)


def runner(step: Any, state: Any, rows: Any, steps: int) -> Callable[[], Any]:
  """Returns a call that goes on for `steps` steps from where it was."""
  held = [state]

  def run():
    for _ in range(steps):
      held[0], value = step(held[0], rows)
    return value

  return run
