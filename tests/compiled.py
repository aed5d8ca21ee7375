"""Kernels compiled for hardware that is not here, for tests of any kernel.

Where a compiler is not installed, the test is skipped with its name.
"""

from collections.abc import Callable
from typing import Any

import pytest

from kaiju_jax.aot import build as aot
from kaiju_jax.aot import machine_code


def gpu(jitted: Any, *arguments: Any) -> dict[str, machine_code.Kernel]:
  """Returns `machine_code.gpu`'s kernels by name."""
  try:
    kernels = machine_code.gpu(jitted, arguments)
  except aot.MissingPlugin as error:
    pytest.skip(str(error))
  return {kernel.name: kernel for kernel in kernels}


def tpu(make: Callable, accelerator: str) -> dict[str, machine_code.Counts]:
  """Returns `machine_code.tpu`'s counts by the kernel's name."""
  try:
    return machine_code.tpu(make, accelerator)
  except aot.MissingPlugin as error:
    pytest.skip(str(error))
