"""What the compilers make of a kernel: registers, spills, matrix instructions.

    for kernel in machine_code.gpu(jitted, arguments):
      kernel.name, kernel.spill_stores, kernel.instructions['wgmma s8']

    counts = machine_code.tpu(make, 'v6e_256')
    counts['attention']['vmatmul s8']

The real compilers run without a device (see `aot`). A GPU's kernel is read as
PTX, which XLA, Mosaic and jax-triton write out on demand and which `ptxas`, the
assembler, turns into the device's code: it reports registers and spills. Its
version may differ from the one of the machine that runs the kernel. A TPU's
kernel is read as the final bundles of libtpu's own assembly.

Instructions are counted in the text, once each however often a loop runs them.
Both are dumps that no one promises to keep: a later compiler may rename them.
"""

import collections
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import functools
import importlib.util
import os
import pathlib
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from typing import Any

import jax

from kaiju_jax.aot import build as aot

Counts = collections.Counter

_ENTRY = re.compile(r'\.entry\s+([\w$]+)')
_MMA = re.compile(r'\b(wgmma|mma)(?:\.mma_async)?\.sync\.aligned\.m\d+([\w.]+)')
_OPERAND = re.compile(r'bf16|tf32|f16|f32|f64|s32|[su][48]|e[45]m[23]|b1')
_SHARED = re.compile(r'(\S+) grid: .*shared_memory: (\d+) bytes')
# What HLO calls for a compiler that is not XLA's, and the files it writes.
_WRITTEN = {'mosaic_gpu': '*.ptxas', 'triton_kernel_call': '*/*.ptx'}
_VMATMUL = re.compile(r'\bvmatmul([\w.]*)')
_BUNDLES = re.compile(r'\d+-(.+?)(?:\.\d+)?-\d+-final_bundles\.txt')


@dataclasses.dataclass(frozen=True)
class Kernel:
  """A GPU kernel, assembled.

  Attributes:
    name: as its author and the compiler called it.
    registers: of a thread.
    spill_stores: bytes that a thread stores for want of registers.
    spill_loads: bytes that it loads back.
    shared_memory: bytes of a block; those of Mosaic GPU and jax-triton do not
      count what a kernel asks for at its launch, which is not written out.
    instructions: matrix instructions by their operands' type, such as
      'wgmma s8', 'wgmma bf16' and (of a single warp) 'mma s8'.
  """

  name: str
  registers: int
  spill_stores: int
  spill_loads: int
  shared_memory: int
  instructions: Counts


def gpu(
  jitted: Any, arguments: Sequence[Any], accelerator: str = 'h100_8'
) -> tuple[Kernel, ...]:
  """Compiles for a GPU, and returns its kernels, XLA's own among them.

  Args:
    jitted: a fresh `jax.jit`: what was traced for another platform stays so.
    arguments: ShapeDtypeStructs or trees of them; those without a sharding are
      on one device.
    accelerator: a GPU slice of `tpu_gpu_configs`.

  Raises:
    aot.MissingPlugin: names the packages that are missing.
    jax.errors.JaxRuntimeError: more shared memory than there is.
    RuntimeError: Mosaic GPU or jax-triton, which compile a kernel once in a
      process, did so before: nothing is written out again.
  """
  device = _device(accelerator, 'gpu')
  ptxas()  # Before minutes of compiling.
  with tempfile.TemporaryDirectory() as folder:
    with _environment(MOSAIC_GPU_DUMP_TO=folder), _jax_triton_to(folder):
      program = aot.build(
        jitted,
        _placed(arguments, device),
        # PTX is an emitter's file; since JAX 0.12 Pallas Triton's is not among
        # those written by default. (All of them are tens of megabytes.)
        {'xla_dump_to': folder, 'xla_dump_emitter_re': 'ptx'},
      )
    _refuse_kept(program, pathlib.Path(folder))
    return _read(pathlib.Path(folder))


def _refuse_kept(program: aot.Program, folder: pathlib.Path) -> None:
  """Raises where a compiler called before wrote nothing this time."""
  for target, written in _WRITTEN.items():
    called = f'custom_call_target="{target}' in program.text
    if called and not any(folder.glob(written)):
      raise RuntimeError(
        f'a kernel of {target} was compiled before in this process, which'
        ' keeps it and wrote nothing out: read it in a fresh process.'
      )


def _read(folder: pathlib.Path) -> tuple[Kernel, ...]:
  dynamic = {}
  for file in folder.glob('*thunk_sequence.txt'):
    dynamic |= dict(_SHARED.findall(file.read_text()))
  found = []
  for file in sorted(folder.rglob('*.ptx')):
    text = file.read_text()
    report = file.with_suffix('.ptxas')  # Mosaic's own; its PTX may be newer.
    said = report.read_text() if report.exists() else _assemble(text)
    for kernel in _kernels(text, said):
      size = kernel.shared_memory + int(dynamic.get(kernel.name, 0))
      found.append(dataclasses.replace(kernel, shared_memory=size))
  return tuple(found)


def of_ptx(text: str) -> tuple[Kernel, ...]:
  """Assembles PTX, and returns its kernels.

  Args:
    text: PTX; shared memory that is asked for at the launch is not in it.

  Raises:
    aot.MissingPlugin: there is no ptxas.
    ValueError: ptxas refuses the text.
  """
  return _kernels(text, _assemble(text))


def _kernels(text: str, said: str) -> tuple[Kernel, ...]:
  starts = list(_ENTRY.finditer(text))
  ends = [start.start() for start in starts[1:]] + [len(text)]
  return tuple(
    Kernel(
      name=start[1],
      **_resources(said, start[1]),
      instructions=_instructions(text[start.end() : end]),
    )
    for start, end in zip(starts, ends)
  )


def _assemble(text: str) -> str:
  """Returns what ptxas says of the kernels in `text`, which may have none."""
  if not _ENTRY.search(text):
    return ''
  target = re.search(r'^\.target (\w+)', text, re.MULTILINE)[1]
  done = subprocess.run(
    [ptxas(), f'-arch={target}', '-v', '-o', os.devnull, '/dev/stdin'],
    input=text,
    capture_output=True,
    text=True,
  )
  if done.returncode:
    raise ValueError(f'{ptxas()} refuses the PTX: {done.stderr}')
  return done.stderr


def _resources(said: str, name: str) -> dict[str, int]:
  """Reads what ptxas -v says of one kernel."""
  start = said.index(f"Compiling entry function '{name}'")
  end = said.find('Compiling entry function', start + 1)
  body = said[start : end if end >= 0 else None]

  def number(pattern: str) -> int:
    match = re.search(pattern, body)
    return int(match[1]) if match else 0

  return {
    'registers': number(r'Used (\d+) registers'),
    'spill_stores': number(r'(\d+) bytes spill stores'),
    'spill_loads': number(r'(\d+) bytes spill loads'),
    'shared_memory': number(r'(\d+) bytes smem'),
  }


def _instructions(body: str) -> Counts:
  counts = Counts()
  for kind, modifiers in _MMA.findall(body):
    # The types of D, A, B (and C): A's is what the instruction is known by.
    types = [part for part in modifiers.split('.') if _OPERAND.fullmatch(part)]
    counts[f'{kind} {types[1]}'] += 1
  return counts


@functools.cache
def ptxas() -> str:
  """Returns the path of NVIDIA's assembler.

  Raises:
    aot.MissingPlugin: names the package.
  """
  for package, path in (
    ('nvidia.cuda_nvcc', 'bin/ptxas'),
    ('triton', 'backends/nvidia/bin/ptxas'),
  ):
    for place in _places(package):
      if (file := pathlib.Path(place, path)).exists():
        return str(file)
  if on_path := shutil.which('ptxas'):
    return on_path
  raise aot.MissingPlugin(
    'reading registers and spills needs ptxas, of the package'
    " nvidia-cuda-nvcc-cu12: pip install 'kaiju_jax[aot-gpu]' (no device, no"
    ' driver).'
  )


def _places(package: str) -> Sequence[str]:
  try:
    spec = importlib.util.find_spec(package)
  except ModuleNotFoundError:
    return ()
  return spec.submodule_search_locations if spec else ()


def tpu(
  make: Callable[[], tuple[Any, Sequence[Any]]], accelerator: str = 'v5p_128'
) -> dict[str, Counts]:
  """Compiles for a TPU, and returns each kernel's matrix instructions by name.

  They are called by their operands' type: 'vmatmul s8', 'vmatmul bf16'. libtpu
  reads where to dump once, when it is loaded, so that a process of its own
  compiles.

  Args:
    make: returns a `jax.jit` and its arguments as in `gpu`. It is pickled: a
      function of a module, or `functools.partial` of one.
    accelerator: a TPU slice of `tpu_gpu_configs`.

  Raises:
    aot.MissingPlugin: names the package that is missing.
    RuntimeError: what the compiler said before it gave up.
  """
  found = collections.defaultdict(Counts)
  with tpu_dump(make, accelerator) as folder:
    for name, file in final_bundles(folder):
      for modifiers in _VMATMUL.findall(file.read_text()):
        types = [t for t in modifiers.split('.') if _OPERAND.fullmatch(t)]
        # Without a type it is float32.
        found[name][f'vmatmul {types[0] if types else "f32"}'] += 1
  return dict(found)


@contextlib.contextmanager
def tpu_dump(
  make: Callable[[], tuple[Any, Sequence[Any]]], accelerator: str
) -> Iterator[pathlib.Path]:
  """Compiles as `tpu` does; yields the folder of what libtpu wrote."""
  _device(accelerator, 'tpu')
  with tempfile.TemporaryDirectory() as folder:
    arguments = os.environ.get('LIBTPU_INIT_ARGS', '')
    done = subprocess.run(
      [sys.executable, '-m', __name__],
      input=pickle.dumps((make, accelerator)),
      capture_output=True,
      env=os.environ
      | {
        'PYTHONPATH': os.pathsep.join(sys.path),
        'LIBTPU_INIT_ARGS': (
          f'{arguments} --xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true'
        ),
      },
    )
    if done.returncode:
      raise RuntimeError(
        f'compiling for {accelerator}: {done.stderr.decode(errors="replace")}'
      )
    yield pathlib.Path(folder)


def final_bundles(folder: pathlib.Path) -> Iterator[tuple[str, pathlib.Path]]:
  """Yields each kernel's name and the file of its final bundles."""
  for file in sorted(folder.iterdir()):
    if match := _BUNDLES.fullmatch(file.name):
      yield match[1], file


def _device(accelerator: str, platform: str) -> jax.Device:
  # Here, for the package's wheel has no slices.
  import tpu_gpu_configs

  device = aot.devices(tpu_gpu_configs.load(accelerator))[0]
  if device.platform != platform:
    raise ValueError(
      f'accelerator={accelerator!r} is a {device.platform}: expected a'
      f' {platform}.'
    )
  return device


def _placed(arguments: Sequence[Any], device: jax.Device) -> Sequence[Any]:
  here = jax.sharding.SingleDeviceSharding(device)
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=getattr(x, 'sharding', None) or here
    ),
    arguments,
  )


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
  """Has jax-triton write to the folder; it reads its variable when imported."""

  def apply():
    if module := sys.modules.get('jax_triton.triton_lib'):
      module._JAX_TRITON_DUMP_DIR = os.environ.get('JAX_TRITON_DUMP_DIR')

  try:
    with _environment(JAX_TRITON_DUMP_DIR=folder):
      apply()
      yield
  finally:
    apply()


def _compile() -> None:
  """Compiles what `tpu` sent."""
  make, accelerator = pickle.load(sys.stdin.buffer)
  jitted, arguments = make()
  aot.build(jitted, _placed(arguments, _device(accelerator, 'tpu')))


if __name__ == '__main__':
  _compile()
