"""Compiles for hardware that is not here, and returns the compiler's figures.

    step = step_lib.make(experiment, mesh)
    program = build.build(step, step_lib.abstract(experiment, mesh), flags)
    program.memory.needed, build.collectives(program, mesh)

The real compiler plans the bytes of memory and the bytes on the wire, so both
are facts. It does not know seconds on the device.

A GPU's compiler never refuses a program that does not fit into memory, so the
caller must check `Memory`. The figures leave out cuBLAS's and NCCL's buffers,
and the compiler chooses its matmul tiles without measuring. A TPU's compiler
does refuse.
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

# Warnings that the compilers write to standard error and nowhere else.
COMPLAINTS = (
  'Involuntary full rematerialization',
  "Can't reduce memory use below",
)


@dataclasses.dataclass(frozen=True)
class Memory:
  """Bytes on one device."""

  arguments: int  # The arguments, such as the state and the batch.
  outputs: int  # The results.
  aliased: int  # The results that reuse the memory of a donated argument.
  temporary: int  # All intermediate values, at their peak.

  @property
  def needed(self) -> int:
    """Returns the bytes of arguments, temporaries and outputs not aliased."""
    return self.arguments + self.temporary + self.outputs - self.aliased


@dataclasses.dataclass(frozen=True)
class Program:
  """A compiled program."""

  text: str  # Its scheduled, partitioned HLO.
  memory: Memory  # Bytes on one device.
  lower_seconds: float  # Time of tracing and lowering.
  compile_seconds: float  # Time of compiling.
  # The compiler's lines that hold one of COMPLAINTS.
  complaints: tuple[str, ...]

  @functools.cached_property
  def module(self) -> text_lib.Module:
    return text_lib.parse(self.text)


@contextlib.contextmanager
def tracing_for(device: jax.Device) -> Iterator[None]:
  """Makes functions traced inside it choose kernels for `device`."""
  cores = 'core_count' if device.platform == 'gpu' else 'num_cores'
  kind = jax.sharding.AbstractDevice(
    device.device_kind, getattr(device, cores, None), device.platform
  )
  # Pallas reads the device from this mesh, which has no axes. Without it Pallas
  # looks for a real device.
  mesh = jax.sharding.AbstractMesh((), (), abstract_device=kind)
  with (
    dispatch.compiling_for(device.platform),
    jax.sharding.use_abstract_mesh(mesh),
  ):
    yield


def build(
  jitted: Any, arguments: Sequence[Any], flags: Mapping[str, Any] | None = None
) -> Program:
  """Compiles a jitted function for the devices of its arguments.

  Args:
    jitted: a result of `jax.jit`.
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
  """Makes JAX compile programs inside it, instead of reading its cache.

  A program from the cache shows no compile time, no complaint and no dump. And
  JAX cannot load one whose device is not here.
  """
  was = jax.config.jax_enable_compilation_cache
  jax.config.update('jax_enable_compilation_cache', False)
  compilation_cache.reset_cache()  # JAX checks only once whether there is one.
  try:
    yield
  finally:
    jax.config.update('jax_enable_compilation_cache', was)
    compilation_cache.reset_cache()


@contextlib.contextmanager
def _collect_messages() -> Iterator[list[str]]:
  """Collects the lines that Python and C++ write to standard error.

  It prints them only if the body raises an error.
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
