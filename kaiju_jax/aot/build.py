"""Compiling for hardware that is not here, and what the compiler says of it.

    step = step_lib.make(experiment, mesh)
    program = aot.build(step, step_lib.abstract(experiment, mesh), flags)
    program.memory.needed, aot.collectives(program, mesh)

The real compilers of H100 and TPU run on any machine: they need a description
of the device, not the device. So bytes of memory and bytes on the wire are
facts here; seconds on the device are not.

What the compilers keep to themselves: a GPU's never refuses a program that does
not fit (`Memory` is what to assert on), leaves cuBLAS's and NCCL's buffers out,
and picks its matmul tiles without measuring. A TPU's refuses.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import functools
import importlib.util
import os
import sys
import tempfile
import time
from typing import Any

import jax
from jax.experimental import topologies
from jax.experimental.compilation_cache import compilation_cache
import jax.numpy as jnp

from kaiju_jax.aot.hlo import collectives as collectives_lib
from kaiju_jax.aot.hlo import matmuls as matmuls_lib
from kaiju_jax.aot.hlo import text as text_lib
from kaiju_jax.costs import accelerator as accelerator_lib
from kaiju_jax.kernels import dispatch

_ENVIRONMENT = {
  # Else the plug-in looks for a driver, and is not registered without one.
  'JAX_SKIP_CUDA_CONSTRAINTS_CHECK': '1',
  # libtpu asks its cloud for what these say, and refuses a second process.
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

# What the compilers say only on standard error.
COMPLAINTS = (
  'Involuntary full rematerialization',
  "Can't reduce memory use below",
)


class MissingPlugin(ImportError):
  """The compiler of a platform is not installed."""


@dataclasses.dataclass(frozen=True)
class Memory:
  """Bytes of one device.

  Attributes:
    arguments: state and batch.
    outputs: of the step.
    aliased: outputs that take their argument's place, by donation.
    temporary: everything in between, at its peak.
  """

  arguments: int
  outputs: int
  aliased: int
  temporary: int

  @property
  def needed(self) -> int:
    """Arguments, temporaries, and outputs that take nobody's place."""
    return self.arguments + self.temporary + self.outputs - self.aliased


@dataclasses.dataclass(frozen=True)
class Program:
  """A compiled program.

  Attributes:
    text: its scheduled, partitioned HLO.
    memory: bytes of one device.
    lower_seconds: tracing and lowering.
    compile_seconds: the rest.
    complaints: lines of the compiler's with one of COMPLAINTS.
  """

  text: str
  memory: Memory
  lower_seconds: float
  compile_seconds: float
  complaints: tuple[str, ...]

  @functools.cached_property
  def module(self) -> text_lib.Module:
    return text_lib.parse(self.text)


def devices(
  accelerator: accelerator_lib.Accelerator,
) -> Sequence[jax.Device]:
  """Returns a slice's devices, which need not be here ('cpu' ones must).

  They serve `sharding.mesh.make`, and nothing but compiling.

  Raises:
    MissingPlugin: names the packages that are missing.
    ValueError: fewer CPU devices than the slice has.
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
      ' without it. Import kaiju_jax.aot before JAX makes its first array, or'
      ' set JAX_PLATFORMS=cpu.'
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


def check_flags(accelerator: accelerator_lib.Accelerator) -> None:
  """Refuses XLA flags that this JAX does not know.

  In XLA_FLAGS an unknown flag ends the process; here it is an error. A TPU's
  flags are known to libtpu alone, so that they need it.

  Raises:
    ValueError: names the slice, the flag and the version.
    MissingPlugin: see `devices`.
  """
  if not accelerator.flags:
    return
  device = jax.devices('cpu')[0]  # Its compiler knows the GPU's flags.
  if accelerator.chip.platform == 'tpu':
    device = devices(accelerator)[0]
  x = jax.ShapeDtypeStruct(
    (8, 128),
    jnp.float32,
    sharding=jax.sharding.SingleDeviceSharding(device),
  )
  lowered = jax.jit(lambda x: x + 1).lower(x)
  for name, value in accelerator.flags.items():
    try:
      with _uncached():
        lowered.compile(compiler_options={name: value})
    except jax.errors.JaxRuntimeError as error:
      reason = str(error).partition(': ')[2]
      raise ValueError(
        f'accelerator {accelerator.name}: flag {name}={value}: JAX'
        f' {jax.__version__} says: {reason}'
      ) from error


@contextlib.contextmanager
def tracing_for(device: jax.Device) -> Iterator[None]:
  """Kernels traced within it are chosen and written for `device`."""
  cores = 'core_count' if device.platform == 'gpu' else 'num_cores'
  kind = jax.sharding.AbstractDevice(
    device.device_kind, getattr(device, cores, None), device.platform
  )
  # An abstract mesh without axes: Pallas asks it for the device, where it
  # would otherwise look for a real one.
  mesh = jax.sharding.AbstractMesh((), (), abstract_device=kind)
  with (
    dispatch.compiling_for(device.platform),
    jax.sharding.use_abstract_mesh(mesh),
  ):
    yield


def build(
  jitted: Any, arguments: Sequence[Any], flags: Mapping[str, Any] | None = None
) -> Program:
  """Compiles a jitted function for the devices of its arguments' shardings.

  Args:
    jitted: of `jax.jit`.
    arguments: ShapeDtypeStructs with shardings, or trees of them.
    flags: XLA flags, such as an accelerator's.
  """
  with _said() as said:
    start = time.perf_counter()
    with tracing_for(_device(arguments)):
      lowered = jitted.lower(*arguments)
    middle = time.perf_counter()
    with _uncached():
      compiled = lowered.compile(compiler_options=dict(flags or {}))
    end = time.perf_counter()
  analysis = compiled.memory_analysis()
  return Program(
    text=compiled.as_text(),
    memory=Memory(
      arguments=analysis.argument_size_in_bytes,
      outputs=analysis.output_size_in_bytes,
      aliased=analysis.alias_size_in_bytes,
      temporary=analysis.temp_size_in_bytes,
    ),
    lower_seconds=middle - start,
    compile_seconds=end - middle,
    complaints=tuple(
      line for line in said if any(word in line for word in COMPLAINTS)
    ),
  )


def _device(arguments) -> jax.Device:
  """Returns a device of the first argument."""
  first = jax.tree.leaves(arguments)[0]
  return min(first.sharding.device_set, key=lambda device: device.id)


def collectives(
  program: Program, mesh: jax.sharding.Mesh
) -> tuple[collectives_lib.Collective, ...]:
  """Returns every collective of a program that was built for `mesh`."""
  return collectives_lib.read(program.module, mesh.shape)


def matmuls(program: Program) -> tuple[matmuls_lib.Matmul, ...]:
  """Returns every matmul of a program."""
  return matmuls_lib.read(program.module)


@contextlib.contextmanager
def _uncached() -> Iterator[None]:
  """Compiles within it are compiles, whatever JAX has kept on disk.

  A program that is read back takes no time, brings no complaint and writes no
  dump; and where its device is not here, JAX cannot read it back.
  """
  was = jax.config.jax_enable_compilation_cache
  jax.config.update('jax_enable_compilation_cache', False)
  compilation_cache.reset_cache()  # JAX asks whether there is one but once.
  try:
    yield
  finally:
    jax.config.update('jax_enable_compilation_cache', was)
    compilation_cache.reset_cache()


@contextlib.contextmanager
def _said() -> Iterator[list[str]]:
  """Collects what is written to standard error, C++ included.

  It is passed on only where an error is raised.
  """
  lines = []
  sys.stderr.flush()
  kept = os.dup(2)
  with tempfile.TemporaryFile(mode='w+', errors='replace') as file:
    os.dup2(file.fileno(), 2)
    try:
      yield lines
    except BaseException:
      os.dup2(kept, 2)
      file.seek(0)
      sys.stderr.write(file.read())
      raise
    finally:
      sys.stderr.flush()
      os.dup2(kept, 2)
      os.close(kept)
    file.seek(0)
    lines += file.read().splitlines()
