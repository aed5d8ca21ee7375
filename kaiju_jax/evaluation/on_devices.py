"""Runs a model's evaluation on every device that holds a part of it."""

from collections.abc import Callable

import jax
from jax.sharding import PartitionSpec

from kaiju_jax.sharding import rules
from kaiju_jax.wire import ternary_plan


def each(mesh: jax.sharding.Mesh) -> Callable[[Callable], Callable]:
  """Returns a decorator that runs a function on each device's rows.

  The function takes (params, what `ternary_plan.collections` returns, rows_BL),
  B split over fsdp. Its result must be the same on all devices.
  """

  def decorate(function):
    def run(params, held, rows_BL):
      specs = rules.specs(params, mesh), ternary_plan.specs_of(held)
      return jax.shard_map(
        function,
        mesh=mesh,
        in_specs=(*specs, PartitionSpec('fsdp')),
        out_specs=PartitionSpec(),
        check_vma=False,
      )(params, held, rows_BL)

    return jax.jit(run)

  return decorate
