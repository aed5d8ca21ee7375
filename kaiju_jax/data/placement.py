"""Chooses the rows that a process draws, and joins them into global arrays.

A row is a pure function of its number, and a batch is rows in order, so that
any number of processes draws the same batches as one process. Each process
draws only the rows that its own devices read: a slice of B where `fsdp` spans
processes, all of B where a tensor group spans them.
"""

from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from kaiju_jax.data import loader
from kaiju_jax.data import packing


def find_own_rows(
  sharding: jax.sharding.Sharding, shape: Sequence[int]
) -> list[int]:
  """Returns the rows of B that this process's devices read, in order.

  `sharding` is that of a batch's arrays, whose shape is (A, B, …).
  """
  held = sharding.addressable_devices_indices_map(tuple(shape)).values()
  return sorted(
    {row for _, rows, *_ in held for row in range(*rows.indices(shape[1]))}
  )


class ShardedBatches(Iterator[packing.Batch]):
  """The loader's batches as arrays that are spread over a mesh.

  Args:
    batches: yields [A, b, …], the b rows of B that `find_own_rows` returns.
    sharding: the sharding of a batch's arrays [A, B, L].
    batch: B.
  """

  def __init__(
    self,
    batches: loader.Batches,
    sharding: jax.sharding.Sharding,
    batch: int,
  ):
    self._batches = batches
    self._sharding = sharding
    self._batch = batch

  def __next__(self) -> packing.Batch:
    return next(self._batches).map(self._placed)

  def get_state(self) -> dict[str, Any]:
    """Returns the state for `set_state`; it is the same on all processes."""
    return self._batches.get_state()

  def set_state(self, state: dict[str, Any]) -> None:
    """Continues from the place of `get_state`, on any mesh."""
    self._batches.set_state(state)

  def _placed(self, drawn: np.ndarray) -> jax.Array:
    count, _, *rest = drawn.shape
    shape = count, self._batch, *rest
    rows = find_own_rows(self._sharding, shape)

    def part(index):
      wanted = range(*index[1].indices(self._batch))
      first = rows.index(wanted[0])
      return drawn[(index[0], slice(first, first + len(wanted)), *index[2:])]

    return jax.make_array_from_callback(shape, self._sharding, part)
