"""Reading a model on every device that holds a part of it."""

from collections.abc import Callable

import jax
from jax.sharding import PartitionSpec

from kaiju_jax.sharding import rules
from kaiju_jax.wire import ternary_plan


def each(mesh: jax.sharding.Mesh) -> Callable[[Callable], Callable]:
  """Runs (params, held, rows_BL) on each device's rows; all devices agree.

  Args:
    mesh: the mesh that the parameters are stored over; B is split over fsdp.

  Returns:
    A decorator. `held` is what `ternary_plan.collections` returns.
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
