"""Runs a Triton kernel on a CPU, by Triton's own interpreter.

    TRITON_INTERPRET=1 python ...

The variable must be set before the kernel's module is imported, because
`triton.jit` reads it: a process either interprets Triton kernels or compiles
them. The interpreter expects tensors of PyTorch, but uses so little of them
that wrapped numpy arrays suffice. It computes in numpy, block by block and
slowly. Its bfloat16 is silently wrong (Triton 3.9), so `run` refuses bfloat16.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# The interpreter keeps the current program's place in the grid in a global.
_LOCK = threading.Lock()


class _Tensor:
  """The part of a PyTorch tensor that the interpreter uses."""

  def __init__(self, array: np.ndarray):
    self.array = array
    self.dtype = array.dtype.name

  def data_ptr(self) -> int:
    return self.array.ctypes.data

  def untyped_storage(self) -> '_Tensor':
    return self

  def cpu(self) -> '_Tensor':
    return self

  def copy_(self, other: '_Tensor') -> None:
    """Does nothing, because the kernel wrote into this very array."""

  def new_empty(self, size: int, device: str) -> '_Tensor':
    return _Tensor(np.empty(size, self.array.dtype))

  def set_(self, storage: '_Tensor', *place: Any) -> None:
    self.array = storage.array

  def storage_offset(self) -> int:
    return 0

  def size(self) -> tuple[int, ...]:
    return self.array.shape

  def stride(self) -> tuple[int, ...]:
    return ()


def run(
  kernel: Any,
  operands: Sequence[jax.Array],
  results: Sequence[jax.ShapeDtypeStruct],
  grid: tuple[int, ...],
  constants: Mapping[str, Any],
) -> list[jax.Array]:
  """Returns the kernel's results; under jit it runs as a callback.

  Args:
    kernel: a function from `triton.jit`; takes the operands, the results, the
      constants.
    operands: arrays.
    results: shapes of the results; places that the kernel does not write hold
      arbitrary values.
    grid: the number of programs along each axis.
    constants: the kernel's constants by name.

  Raises:
    ValueError: TRITON_INTERPRET was not set, or bfloat16.
  """
  if not hasattr(kernel, 'rewrite'):
    raise ValueError(
      'a Triton kernel is interpreted only where TRITON_INTERPRET=1 was set'
      ' before its module was imported.'
    )
  for x in [*operands, *results]:
    if x.dtype == jnp.bfloat16:
      raise ValueError(
        "Triton's interpreter computes wrongly in bfloat16: give it float32 or"
        ' float16.'
      )

  def call(*operands):
    arrays = [np.array(x) for x in operands]
    arrays += [np.zeros(x.shape, x.dtype) for x in results]
    with _LOCK:
      kernel[grid](*map(_Tensor, arrays), **constants)
    return arrays[len(operands) :]

  return jax.pure_callback(call, list(results), *operands)
