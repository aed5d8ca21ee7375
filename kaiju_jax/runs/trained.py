"""What a run has learned so far, for tools that use it and do not train."""

import os
from typing import Any
from typing import NamedTuple

import jax

from kaiju_jax.training import checkpoint
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import optimizer
from kaiju_jax.training import replicas
from kaiju_jax.training import state
from kaiju_jax.training import step as step_lib
from kaiju_jax.training import workdir as workdir_lib
from kaiju_jax.wire import ternary_plan


class Trained(NamedTuple):
  """A workdir's latest whole checkpoint.

  Attributes:
    experiment: what was trained.
    params: float32 masters.
    replica: what the forward pass reads instead, where updates are ternary.
    step: optimizer steps taken.
  """

  experiment: experiment_lib.Experiment
  params: Any
  replica: ternary_plan.State | None
  step: int


def load(workdir: str | os.PathLike) -> Trained:
  """Returns what a workdir holds, one that still trains included.

  Raises:
    FileNotFoundError: no workdir, or no checkpoint in it.
    checkpoint.RestoreError: no checkpoint can be read.
    ValueError: an address, or a `config.json` that this code cannot read.
  """
  experiment = workdir_lib.load_experiment(workdir)

  def start():
    params = state.init_params(step_lib.model_of(experiment), experiment.seed)
    plan = replicas.plan_of(experiment, params)
    made = optimizer.make(experiment.optimizer)
    return state.create(params, made, plan=plan)

  restored, step = checkpoint.load(workdir, jax.eval_shape(start))
  return Trained(experiment, restored.params, restored.replica, step)
