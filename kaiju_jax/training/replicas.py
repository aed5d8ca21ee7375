"""Ternary updates as a mode of the trainer: `wire_weights='ternary'`.

The state then holds int8 replicas beside the f32 masters (the weights that the
optimizer updates). A step reads the replicas, moves the masters, and moves the
replicas by at most one code towards them:

    variables {'params': masters, 'replica': codes and scales}
      → loss and gradient (`fsdp.follow`: nothing is gathered)
      → AdamW on the masters
      → `ternary.update`: 1.6 bits per weight

In all other modes there is no plan and no replica: both are None.
"""

import functools
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from kaiju_jax.objectives import objective as objective_lib
from kaiju_jax.quantization import grid
from kaiju_jax.sharding import rules
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.wire import ternary
from kaiju_jax.wire import ternary_plan


def plan_of(
  experiment: experiment_lib.Experiment, params: Any
) -> ternary.Plan | None:
  """Returns the plan of ternary updates; None in all other modes.

  Args:
    experiment: the experiment.
    params: the parameters or their shapes.

  Raises:
    ValueError: no weight is int8; or see `least_scale`.
  """
  quantization = experiment.model.quantization
  if quantization.wire_weights != 'ternary':
    return None
  return ternary.Plan(
    ternary_plan.layouts(params, quantization.embedding == 'int8'),
    least_scale(experiment),
    check_every=quantization.ternary.check_every,
    events_every=quantization.ternary.events_every,
  )


def least_scale(experiment: experiment_lib.Experiment) -> float:
  """Returns the finest grid's scale: the config's, or the one that never lags.

  Raises:
    ValueError: the optimizer's updates have no bound that a grid could follow
      (`grid.no_lag_scale`).
  """
  given = experiment.model.quantization.ternary.least_scale
  return given or grid.no_lag_scale(**_moves(experiment))


def check(
  experiment: experiment_lib.Experiment, objective: objective_lib.Objective
) -> None:
  """Warns if codes cannot follow the masters on the config's finest grids.

  Raises:
    ValueError: the objective freezes the weights whose updates are ternary.
  """
  if experiment.model.quantization.wire_weights != 'ternary':
    return
  if objective.trained is not None:
    raise ValueError(
      "model.quantization.wire_weights='ternary': a frozen model has no"
      " updates to send; use 'int8', or train the model as well."
    )
  grid.warn_of_lag(least_scale(experiment), **_moves(experiment))


def _moves(experiment: experiment_lib.Experiment) -> dict[str, float]:
  config = experiment.optimizer
  return {
    name: getattr(config, name)
    for name in ('learning_rate', 'b1', 'b2', 'weight_decay')
  }


def start(
  plan: ternary.Plan, params: Any, mesh: jax.sharding.Mesh
) -> ternary.State:
  """Returns replicas made from the masters, both stored on `mesh`."""
  return jax.shard_map(
    functools.partial(ternary.start, plan),
    mesh=mesh,
    in_specs=(rules.specs(params, mesh),),
    out_specs=ternary_plan.specs(plan, params),
    check_vma=False,
  )(params)


def update(
  plan: ternary.Plan,
  state: ternary.State,
  params: Any,
  step: jax.Array,
  mesh: jax.sharding.Mesh,
) -> tuple[ternary.State, dict[str, jax.Array]]:
  """Updates the replicas; returns them, and `ternary.Report` as metrics.

  Args:
    plan: the plan of these parameters.
    state: replicas before the step; donated.
    params: masters after the optimizer.
    step: int32, this step's number, 1 for the first.
    mesh: the mesh that stores masters and replicas.
  """
  replicas = ternary_plan.specs(plan, params)

  def local(state, params, step):
    state, report = ternary.update(plan, state, params, step)
    return state, _over_mesh(report)

  return jax.shard_map(
    local,
    mesh=mesh,
    in_specs=(replicas, rules.specs(params, mesh), PartitionSpec()),
    out_specs=(replicas, PartitionSpec()),
    check_vma=False,
  )(state, params, step)


def _over_mesh(report: ternary.Report) -> dict[str, jax.Array]:
  """Returns the whole mesh's report as float32 scalars."""
  events = lax.psum(jnp.stack([report.doubled, report.halved]), 'tensor')
  every = lax.psum(
    jnp.stack([report.no_number, report.damaged]), ('fsdp', 'tensor')
  )
  found = {
    'lagging': lax.pmean(report.lagging, ('fsdp', 'tensor')),
    'doubled': events[0],
    'halved': events[1],
    'no_number': every[0],
    'damaged': every[1],
    'resent': report.resent,
  }
  return {
    f'replica_{name}': value.astype(jnp.float32)
    for name, value in found.items()
  }
