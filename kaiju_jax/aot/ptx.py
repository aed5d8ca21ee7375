"""Assembles PTX and reports its registers, spills and matrix instructions.

    for kernel in ptx.kernels(text, ptx.report(text)):
      kernel.name, kernel.spill_stores, kernel.instructions['wgmma s8']

NVIDIA's `ptxas` turns PTX into the device's code and reports registers and
spills. Its version may differ from that of the machine that runs the kernel.
Instructions are counted in the text: an instruction in a loop counts once.
"""

import collections
from collections.abc import Sequence
import dataclasses
import functools
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess

from kaiju_jax.aot import devices

Counts = collections.Counter

# An operand's type in PTX and in a TPU's assembly.
OPERAND = re.compile(r'bf16|tf32|f16|f32|f64|s32|[su][48]|e[45]m[23]|b1')
_ENTRY = re.compile(r'\.entry\s+([\w$]+)')
_MMA = re.compile(r'\b(wgmma|mma)(?:\.mma_async)?\.sync\.aligned\.m\d+([\w.]+)')


@dataclasses.dataclass(frozen=True)
class Kernel:
  """A GPU kernel, assembled."""

  name: str  # The name in PTX.
  registers: int  # Registers per thread.
  # Bytes that a thread stores because it has too few registers.
  spill_stores: int
  spill_loads: int  # Bytes that it loads back.
  # Bytes per block. For Mosaic GPU and jax-triton it leaves out memory that is
  # requested at the launch, which no dump shows.
  shared_memory: int
  # Matrix instructions by their operands' type, such as 'wgmma s8', 'wgmma
  # bf16' and, for a single warp, 'mma s8'.
  instructions: Counts


def kernels(text: str, said: str) -> tuple[Kernel, ...]:
  """Returns the kernels of PTX.

  Args:
    text: the PTX. It does not show shared memory requested at the launch.
    said: the output of `report` for it.
  """
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


def report(text: str) -> str:
  """Returns the output of `ptxas -v` for PTX; '' where it holds no kernel.

  Raises:
    devices.MissingPlugin: there is no ptxas.
    ValueError: ptxas refuses the text.
  """
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
  """Returns one kernel's registers, spills and shared memory."""
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
    # The types of D, A, B (and C); A's names the instruction.
    types = [part for part in modifiers.split('.') if OPERAND.fullmatch(part)]
    counts[f'{kind} {types[1]}'] += 1
  return counts


@functools.cache
def ptxas() -> str:
  """Returns the path of NVIDIA's assembler.

  Raises:
    devices.MissingPlugin: names the package.
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
  raise devices.MissingPlugin(
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
