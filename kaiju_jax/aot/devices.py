"""Makes devices that are not here, for which the real compilers compile.

    devices.find(tpu_gpu_configs.load('h100_64'))    64 H100, for a mesh
    devices.one('v5p_128', 'tpu')                  one TPU v5p, for a kernel

The compilers of H100 and TPU need only a description of the device. Importing
this module sets the environment variables that they need, so import it before
JAX makes its first array.
"""

from collections.abc import Sequence
import importlib.util
import os
from typing import Any

import jax
from jax.experimental import topologies

from kaiju_jax import tpu_gpu_configs
from kaiju_jax.costs import accelerator as accelerator_lib

_ENVIRONMENT = {
  # Without it the plug-in looks for a driver, and where there is none it does
  # not register itself.
  'JAX_SKIP_CUDA_CONSTRAINTS_CHECK': '1',
  # Without these, libtpu queries its cloud for them, and refuses a second
  # process.
  'TPU_SKIP_MDS_QUERY': '1',
  'TPU_ACCELERATOR_TYPE': 'v5litepod-1',
  'TPU_WORKER_HOSTNAMES': 'localhost',
  'TPU_WORKER_ID': '0',
  'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
  # Where llvm-symbolizer is installed, LLVM starts it over and over while a
  # GPU kernel compiles, which then takes several times as long.
  'LLVM_DISABLE_SYMBOLIZATION': '1',
}
# JAX looks for plug-ins once, when its first backend starts.
for _name, _value in _ENVIRONMENT.items():
  os.environ.setdefault(_name, _value)


class MissingPlugin(ImportError):
  """The compiler of a platform is not installed."""


def find(
  accelerator: accelerator_lib.Accelerator,
) -> Sequence[jax.Device]:
  """Returns a slice's devices for `sharding.mesh.make`.

  GPUs and TPUs are descriptions, which serve only to compile. CPU devices are
  those of this process.

  Raises:
    MissingPlugin: names the packages that are missing.
    ValueError: the slice has more CPU devices than this process.
  """
  platform = accelerator.chip.platform
  if platform == 'cpu':
    return _cpu(accelerator)
  try:
    return _topology(accelerator).devices
  except (NotImplementedError, RuntimeError) as error:
    if _is_missing(error):
      raise MissingPlugin(_missing(accelerator.chip)) from error
    raise


def _cpu(accelerator) -> Sequence[jax.Device]:
  here = jax.devices('cpu')
  if len(here) < accelerator.devices:
    raise ValueError(
      f'{accelerator.name} has {accelerator.devices} devices, but there are'
      f' {len(here)}: set XLA_FLAGS='
      f'--xla_force_host_platform_device_count={accelerator.devices}.'
    )
  return here[: accelerator.devices]


def _topology(accelerator):
  if accelerator.chip.platform == 'tpu':
    return topologies.get_topology_desc(
      platform='tpu', topology_name=accelerator.topology
    )
  return topologies.get_topology_desc(
    platform='cuda',
    topology_name=accelerator.name,
    target_config=accelerator.chip.description,
    topology=f'1x{accelerator.hosts}x{accelerator.devices_per_host}',
  )


def _is_missing(error: Exception) -> bool:
  return 'not implemented for cuda' in str(error) or 'not installed' in str(
    error
  )


def _missing(chip: accelerator_lib.Chip) -> str:
  if chip.platform == 'tpu':
    needs, module, extra = 'the package libtpu', 'libtpu', 'aot-tpu'
  else:
    needs = (
      f'the packages jax-cuda12-plugin=={jax.__version__} and'
      f' jax-cuda12-pjrt=={jax.__version__}'
    )
    module, extra = 'jax_plugins.xla_cuda12', 'aot-gpu'
  if _has(module):
    return (
      f'compiling for {chip.name}: {module} is installed, but JAX started'
      ' without it. Import kaiju_jax.aot.devices before JAX makes its first'
      ' array, or set JAX_PLATFORMS=cpu.'
    )
  return (
    f"compiling for {chip.name} needs {needs}: pip install 'kaiju_jax[{extra}]'"
    ' (no device, no driver).'
  )


def _has(module: str) -> bool:
  try:
    return importlib.util.find_spec(module) is not None
  except ModuleNotFoundError:
    return False


def one(name: str, platform: str) -> jax.Device:
  """Returns one device of a slice.

  Args:
    name: the slice's name in `tpu_gpu_configs`.
    platform: the slice's platform, 'gpu' or 'tpu'.

  Raises:
    MissingPlugin: names the packages that are missing.
    ValueError: there is no such slice, or it is of another platform.
  """
  device = find(tpu_gpu_configs.load(name))[0]
  if device.platform != platform:
    raise ValueError(
      f'accelerator={name!r} is a {device.platform}: expected a {platform}.'
    )
  return device


def place(arguments: Any, device: jax.Device) -> Any:
  """Returns ShapeDtypeStructs on `device`; those with a sharding keep it."""
  here = jax.sharding.SingleDeviceSharding(device)
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=getattr(x, 'sharding', None) or here
    ),
    arguments,
  )
