"""Programs and kernels compiled for hardware that is not here.

A test whose compiler is not installed is skipped, with the packages' names.
Such tests carry the marker `aot`: `make aot` runs them, `make test` does not.
"""

from collections.abc import Callable
from collections.abc import Sequence
import contextlib
from typing import Any

import jax
import pytest

from kaiju_jax.aot import devices as devices_lib
from kaiju_jax.aot import gpu_kernels
from kaiju_jax.aot import ptx
from kaiju_jax.aot import tpu_kernels
import tpu_gpu_configs


def on(*places: str) -> list[Any]:
  """Returns parameters for `parametrize`; all but the CPU's are marked `aot`.

  Args:
    *places: names of slices.
  """
  return [
    place if place == 'cpu_8' else pytest.param(place, marks=pytest.mark.aot)
    for place in places
  ]


@contextlib.contextmanager
def installed():
  """Skips the test where the compiler is not installed."""
  try:
    yield
  except devices_lib.MissingPlugin as error:
    pytest.skip(str(error))


def devices(accelerator: str) -> Sequence[jax.Device]:
  """Returns a slice's devices."""
  with installed():
    return devices_lib.find(tpu_gpu_configs.load(accelerator))


def placed(arguments: Any, accelerator: str) -> Any:
  """Returns ShapeDtypeStructs on a slice's first device."""
  return devices_lib.place(arguments, devices(accelerator)[0])


def gpu(jitted: Any, *arguments: Any) -> dict[str, ptx.Kernel]:
  """Returns `gpu_kernels.read`'s kernels by name."""
  with installed():
    return {
      kernel.name: kernel for kernel in gpu_kernels.read(jitted, arguments)
    }


def tpu(make: Callable, accelerator: str) -> dict[str, ptx.Counts]:
  """Returns `tpu_kernels.read`'s counts by the kernel's name."""
  with installed():
    return tpu_kernels.read(make, accelerator)
