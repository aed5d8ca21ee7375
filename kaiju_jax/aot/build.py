"""Compiling for hardware that is not here, and what the compiler says of it.

    step = step_lib.make(experiment, mesh)
    program = build.build(step, step_lib.abstract(experiment, mesh), flags)
    program.memory.needed, build.collectives(program, mesh)

The bytes of memory and the bytes on the wire are the real compiler's and so are
facts. Seconds on the device are not known here.

What the compilers do not tell: a GPU's compiler never refuses a program that
does not fit, so assert on `Memory`. It leaves out cuBLAS's and NCCL's buffers
and picks its matmul tiles without measuring. A TPU's compiler does refuse.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import functools
import os
import sys
import tempfile
import time
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from kaiju_jax.aot.hlo import collectives as collectives_lib
from kaiju_jax.aot.hlo import matmuls as matmuls_lib
from kaiju_jax.aot.hlo import text as text_lib
from kaiju_jax.kernels import dispatch

# Lines that the compilers write to standard error alone.
COMPLAINTS = (
  'Involuntary full rematerialization',
  "Can't reduce memory use below",
)


@dataclasses.dataclass(frozen=True)
class Memory:
  """Bytes on one device.

  Attributes:
    arguments: what goes in, such as the state and the batch.
    outputs: what comes out.
    aliased: outputs that take the place of a donated argument.
    temporary: everything in between, at its peak.
  """

  arguments: int
  outputs: int
  aliased: int
  temporary: int

  @property
  def needed(self) -> int:
    """Arguments, temporaries, and outputs that need a place of their own."""
    return self.arguments + self.temporary + self.outputs - self.aliased


@dataclasses.dataclass(frozen=True)
class Program:
  """A compiled program.

  Attributes:
    text: its scheduled, partitioned HLO.
    memory: bytes on one device.
    lower_seconds: time of tracing and lowering.
    compile_seconds: time of everything after that.
    complaints: the compiler's lines that hold one of COMPLAINTS.
  """

  text: str
  memory: Memory
  lower_seconds: float
  compile_seconds: float
  complaints: tuple[str, ...]

  @functools.cached_property
  def module(self) -> text_lib.Module:
    return text_lib.parse(self.text)


@contextlib.contextmanager
def tracing_for(device: jax.Device) -> Iterator[None]:
  """Within it, kernels are chosen and traced for `device`."""
  cores = 'core_count' if device.platform == 'gpu' else 'num_cores'
  kind = jax.sharding.AbstractDevice(
    device.device_kind, getattr(device, cores, None), device.platform
  )
  # Pallas asks this mesh, which has no axes, for the device. Without it Pallas
  # looks for a real one.
  mesh = jax.sharding.AbstractMesh((), (), abstract_device=kind)
  with (
    dispatch.compiling_for(device.platform),
    jax.sharding.use_abstract_mesh(mesh),
  ):
    yield


def build(
  jitted: Any, arguments: Sequence[Any], flags: Mapping[str, Any] | None = None
) -> Program:
  """Compiles a jitted function for the devices that its arguments are on.

  Args:
    jitted: what `jax.jit` returns.
    arguments: ShapeDtypeStructs with shardings, or trees of them.
    flags: XLA flags, such as those of an accelerator.
  """
  with _collect_messages() as said:
    start = time.perf_counter()
    with tracing_for(_device(arguments)):
      lowered = jitted.lower(*arguments)
    middle = time.perf_counter()
    with bypass_cache():
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
def bypass_cache() -> Iterator[None]:
  """Within it, JAX compiles and does not read programs back from its cache.

  A program that is read back takes no time, brings no complaint and writes no
  dump. JAX cannot read one back whose device is not here.
  """
  was = jax.config.jax_enable_compilation_cache
  jax.config.update('jax_enable_compilation_cache', False)
  compilation_cache.reset_cache()  # JAX asks only once whether there is one.
  try:
    yield
  finally:
    jax.config.update('jax_enable_compilation_cache', was)
    compilation_cache.reset_cache()


@contextlib.contextmanager
def _collect_messages() -> Iterator[list[str]]:
  """Collects the lines written to standard error, C++ included.

  They are passed on only where an error is raised.
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
