"""Compiles a GPU's kernels without the device, and reads their PTX.

    for kernel in gpu_kernels.read(jitted, arguments):
      kernel.name, kernel.spill_stores, kernel.instructions['wgmma s8']

XLA, Mosaic GPU and jax-triton can dump a kernel's PTX to files, and `ptx`
assembles it. The dumps are no public interface: a later version may rename the
files.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import os
import pathlib
import re
import sys
import tempfile
from typing import Any

from kaiju_jax.aot import build
from kaiju_jax.aot import devices
from kaiju_jax.aot import ptx

_SHARED = re.compile(r'(\S+) grid: .*shared_memory: (\d+) bytes')
# {custom call of a kernel that XLA does not compile: files that are dumped}.
_WRITTEN = {'mosaic_gpu': '*.ptxas', 'triton_kernel_call': '*/*.ptx'}


def read(
  jitted: Any, arguments: Sequence[Any], accelerator: str = 'h100_8'
) -> tuple[ptx.Kernel, ...]:
  """Compiles for a GPU and returns the program's kernels, XLA's too.

  Args:
    jitted: a result of `jax.jit`.
    arguments: ShapeDtypeStructs or trees of them; those without a sharding go
      to one device.
    accelerator: a GPU slice of `tpu_gpu_configs`.

  Raises:
    devices.MissingPlugin: names the packages that are missing.
    jax.errors.JaxRuntimeError: a kernel needs more shared memory than there is.
    RuntimeError: Mosaic GPU or jax-triton compiled the kernel earlier in this
      process, and so dumped nothing this time.
  """
  device = devices.one(accelerator, 'gpu')
  ptx.ptxas()  # Raises before minutes of compiling.
  with tempfile.TemporaryDirectory() as folder:
    with _environment(MOSAIC_GPU_DUMP_TO=folder), _jax_triton_to(folder):
      program = build.build(
        jitted,
        devices.place(arguments, device),
        # An emitter dumps PTX; since JAX 0.12 Pallas Triton's is not dumped by
        # default. (All emitters' files would be tens of megabytes.)
        {'xla_dump_to': folder, 'xla_dump_emitter_re': 'ptx'},
      )
    _refuse_kept(program, pathlib.Path(folder))
    return _read_dump(pathlib.Path(folder))


def _refuse_kept(program: build.Program, folder: pathlib.Path) -> None:
  """Raises if a compiler reused an earlier kernel and so dumped nothing."""
  for target, written in _WRITTEN.items():
    called = f'custom_call_target="{target}' in program.text
    if called and not any(folder.glob(written)):
      raise RuntimeError(
        f'a kernel of {target} was compiled before in this process, which'
        ' keeps it and wrote nothing out: read it in a fresh process.'
      )


def _read_dump(folder: pathlib.Path) -> tuple[ptx.Kernel, ...]:
  dynamic = {}
  for file in folder.glob('*thunk_sequence.txt'):
    dynamic |= dict(_SHARED.findall(file.read_text()))
  found = []
  for file in sorted(folder.rglob('*.ptx')):
    text = file.read_text()
    # Mosaic dumps its own report; its PTX may be too new for our ptxas.
    report = file.with_suffix('.ptxas')
    said = report.read_text() if report.exists() else ptx.report(text)
    for kernel in ptx.kernels(text, said):
      size = kernel.shared_memory + int(dynamic.get(kernel.name, 0))
      found.append(dataclasses.replace(kernel, shared_memory=size))
  return tuple(found)


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
  before: Mapping[str, str | None] = {
    name: os.environ.get(name) for name in variables
  }
  os.environ.update(variables)
  try:
    yield
  finally:
    for name, value in before.items():
      if value is None:
        del os.environ[name]
      else:
        os.environ[name] = value


@contextlib.contextmanager
def _jax_triton_to(folder: str) -> Iterator[None]:
  """Makes jax-triton dump to the folder.

  jax-triton reads its variable at import, so this sets the value in an already
  imported module too.
  """

  def apply():
    if module := sys.modules.get('jax_triton.triton_lib'):
      module._JAX_TRITON_DUMP_DIR = os.environ.get('JAX_TRITON_DUMP_DIR')

  try:
    with _environment(JAX_TRITON_DUMP_DIR=folder):
      apply()
      yield
  finally:
    apply()
