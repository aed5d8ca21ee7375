"""Ternary updates as a mode of the trainer: `wire_weights='ternary'`.

The state then holds int8 replicas beside the f32 masters (the weights that the
optimizer updates). A step reads the replicas, moves the masters, and moves the
replicas by at most one code towards them:

    variables {'params': masters, 'replica': codes and scales}
      → loss and gradient (`fsdp.follow`: nothing is gathered)
      → AdamW on the masters
      → `ternary.update`: 1.6 bits per weight

In all other modes there are no replicas, and `state.hook_of` imports nothing of
this module.
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


class Hook:
  """The ternary updates of one run, for `state` and `step`."""

  def __init__(
    self, experiment: experiment_lib.Experiment, mesh: jax.sharding.Mesh
  ):
    """Reads nothing.

    Args:
      experiment: one with ternary updates.
      mesh: the mesh that stores masters and replicas.
    """
    self._experiment, self._mesh = experiment, mesh

  def check(self, objective: objective_lib.Objective) -> None:
    """Warns if codes cannot follow the masters on the config's finest grids.

    Raises:
      ValueError: the objective freezes the weights whose updates are ternary;
        or see `least_scale`.
    """
    if objective.trained is not None:
      raise ValueError(
        "model.quantization.wire_weights='ternary': a frozen model has no"
        " updates to send; use 'int8', or train the model as well."
      )
    least = least_scale(self._experiment)
    grid.warn_of_lag(least, **_moves(self._experiment))

  def start(self, params: Any) -> ternary.State:
    """Returns replicas made from the masters, both stored on the mesh.

    Raises:
      ValueError: no weight is int8; or see `least_scale`.
    """
    plan = self._plan(params)
    return jax.shard_map(
      functools.partial(ternary.start, plan),
      mesh=self._mesh,
      in_specs=(rules.specs(params, self._mesh),),
      out_specs=ternary_plan.specs(plan, params),
      check_vma=False,
    )(params)

  def update(
    self, state: ternary.State, params: Any, step: jax.Array
  ) -> tuple[ternary.State, dict[str, jax.Array]]:
    """Updates the replicas; returns them, and `ternary.Report` as metrics.

    Args:
      state: replicas before the step; donated.
      params: masters after the optimizer.
      step: int32, this step's number, 1 for the first.
    """
    plan = self._plan(params)
    replicas = ternary_plan.specs(plan, params)

    def local(state, params, step):
      state, report = ternary.update(plan, state, params, step)
      return state, _over_mesh(report)

    return jax.shard_map(
      local,
      mesh=self._mesh,
      in_specs=(replicas, rules.specs(params, self._mesh), PartitionSpec()),
      out_specs=(replicas, PartitionSpec()),
      check_vma=False,
    )(state, params, step)

  def _plan(self, params: Any) -> ternary.Plan:
    """Returns the plan of parameters, or of their shapes."""
    quantization = self._experiment.model.quantization
    return ternary.Plan(
      ternary_plan.layouts(params, quantization.embedding == 'int8'),
      least_scale(self._experiment),
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


def _moves(experiment: experiment_lib.Experiment) -> dict[str, float]:
  config = experiment.optimizer
  return {
    name: getattr(config, name)
    for name in ('learning_rate', 'b1', 'b2', 'weight_decay')
  }


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
