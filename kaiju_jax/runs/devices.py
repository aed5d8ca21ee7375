"""Finds the GPUs or TPU chips of this machine, and gives each job its own.

A process that opens a GPU takes most of its memory, and a TPU chip serves one
process. So the process that starts the jobs opens none: it asks the system for
them and imports no jax. Each job sees its own devices alone, by the variables
of its environment; XLA then takes their memory as ever.

Sources: `CUDA_VISIBLE_DEVICES` in NVIDIA's CUDA C++ programming guide, and
`MIG-…` in its MIG user guide (a process sees one slice); the TPU variables as
JAX's own launcher of processes sets them (jax/_src/test_multiprocess.py), and
for processes that do not communicate, as a developer of JAX lists them
(https://gist.github.com/skye/f82ba45d2445bb19d53545538754f9a3).
"""

from collections.abc import Sequence
import importlib.metadata
import importlib.util
import itertools
import os
import pathlib
import re
import subprocess
from typing import NamedTuple

from kaiju_jax.runs import pool

_CUDA = 'CUDA_VISIBLE_DEVICES'
_TPU = 'TPU_VISIBLE_CHIPS', 'TPU_VISIBLE_DEVICES'  # Newer and older name.
# CUDA ends the list at the first name that is none, such as -1.
_GPU_NAME = re.compile(r'(\d+|(GPU|MIG)-.+)$')
_LISTED = re.compile(r'^\s*(GPU|MIG) .*\(UUID: ([^)]+)\)', re.MULTILINE)
_DEV = pathlib.Path('/dev')
_LIST_SECONDS = 60.0
# A job's TPU chips as neighbours: how many → their shape.
_CHIP_BOUNDS = {1: '1,1,1', 2: '1,2,1', 4: '2,2,1', 8: '2,4,1'}
_FIRST_PORT = 8476
_HIDDEN = {'JAX_PLATFORMS': 'cpu'}


class Accelerators(NamedTuple):
  """The devices that jax would use here."""

  kind: str = ''  # 'GPU' or 'TPU'; '' for none.
  # What the environment calls them: numbers, GPU-… or MIG-….
  names: tuple[str, ...] = ()


def probe() -> Accelerators:
  """Returns the accelerators that this process may use, and opens none.

  Raises:
    ValueError: a variable of the environment names one of them twice.
  """
  wanted = os.environ.get('JAX_PLATFORMS', '').split(',')[0]
  if wanted in ('', 'tpu') and _supports('TPU') and (names := _list_chips()):
    return Accelerators('TPU', names)
  cuda = wanted in ('', 'cuda', 'gpu') and _supports('GPU')
  if cuda and (names := _list_gpus()):
    return Accelerators('GPU', names)
  return Accelerators()


def _supports(kind: str) -> bool:
  """Returns whether the installed jax has what it needs for a kind."""
  if kind == 'TPU':
    return importlib.util.find_spec('libtpu') is not None
  plugins = importlib.metadata.entry_points(group='jax_plugins')
  return any(one.name.startswith('xla_cuda') for one in plugins)


def _list_gpus() -> tuple[str, ...]:
  """Returns the names of the visible GPUs, or of their MIG slices."""
  if _CUDA in os.environ:
    return tuple(itertools.takewhile(_GPU_NAME.match, _read_names(_CUDA)))
  try:
    listed = subprocess.run(
      ('nvidia-smi', '-L'),
      capture_output=True,
      text=True,
      timeout=_LIST_SECONDS,
    ).stdout
  except (OSError, subprocess.TimeoutExpired):
    return ()
  names = []
  for kind, name in _LISTED.findall(listed):
    if kind == 'MIG' and names and names[-1].startswith('GPU-'):
      names.pop()  # The GPU whose slices follow.
    names.append(name)
  return tuple(names)


def _list_chips() -> tuple[str, ...]:
  """Returns the numbers of the visible TPU chips."""
  for variable in _TPU:
    if variable in os.environ:
      return tuple(itertools.takewhile(str.isdecimal, _read_names(variable)))
  nodes = [*_DEV.glob('accel[0-9]*')] or [*_DEV.glob('vfio/[0-9]*')]
  return tuple(map(str, range(len(nodes))))


def _read_names(variable: str) -> list[str]:
  """Returns the devices that a variable names."""
  names = [name.strip() for name in os.environ[variable].split(',')]
  if len(set(names)) < len(names):
    raise ValueError(
      f'{variable}={os.environ[variable]}: names a device twice.'
    )
  return names


def find_places(
  runs: int,
  jobs: int | None = None,
  per_job: int | None = None,
  width: int | None = 1,
  on_cpu: int | None = None,
) -> list[pool.Place]:
  """Returns places for jobs, each with devices and cores of its own.

  Args:
    runs: how many there are to run; by default no more places are made.
    jobs: how many at a time; by default as many as the devices suffice for.
    per_job: devices of each job; by default `width`, or one. 0 leaves the
      accelerators alone: jobs run on the CPU.
    width: devices that a job's mesh spreads over; None if that is unknown.
    on_cpu: jobs at a time by default where there is no accelerator; None for
      one per core.

  Raises:
    ValueError: the devices do not suffice, or a job's mesh is of another size.
  """
  found = probe() if per_job != 0 else Accelerators()
  if not found.names:
    if per_job is not None and per_job > 1:
      raise ValueError(
        f'--devices_per_job={per_job}: no GPU or TPU is found here.'
      )
    count = jobs or max(1, min(runs, on_cpu or _count_on_cpu(per_job)))
    return pool.share_cores([_HIDDEN if per_job == 0 else {}] * count)
  per_job = choose_width(per_job, width, found.kind == 'TPU')
  groups = _group(found, per_job)
  if not groups:
    raise ValueError(
      f'--devices_per_job={per_job}: there are {_count(found)} here.'
    )
  if jobs is not None and jobs > len(groups):
    raise ValueError(
      f'--jobs={jobs}: must be at most {len(groups)}, because there are'
      f' {_count(found)} here and --devices_per_job={per_job}.'
    )
  groups = groups[: jobs or max(1, runs)]
  return pool.share_cores([_environment(found.kind, one) for one in groups])


def choose_width(
  per_job: int | None, width: int | None, splits: bool = False
) -> int:
  """Returns how many devices a job has.

  Args:
    per_job: what was asked for, None for as many as `width`.
    width: devices that the job's mesh spreads over; None if that is unknown.
    splits: whether jax may count two devices in one, as in a chip of TPU v3.

  Raises:
    ValueError: the two do not agree.
  """
  if per_job is None or width is None:
    return per_job or width or 1
  if width != per_job and not (splits and width == 2 * per_job):
    # Only commands with flags of a mesh have runs on several.
    flags = ' (--fsdp × --tensor)' if width > 1 else ''
    raise ValueError(
      f'--devices_per_job={per_job}: must be {width}, the devices that each run'
      f' spreads over{flags}.'
    )
  return per_job


def _count_on_cpu(per_job: int | None) -> int:
  """Returns how many jobs go side by side where no GPU or TPU was found."""
  if per_job is None:
    import jax

    if jax.default_backend() != 'cpu':  # Of a kind that is not known here.
      return 1
  return pool.count_cores()


def _count(found: Accelerators) -> str:
  count = len(found.names)
  return f'{count} {found.kind}{"s" if count > 1 else ""}'


def _group(found: Accelerators, per_job: int) -> list[tuple[str, ...]]:
  """Returns the names of each job's devices."""
  names = found.names
  if found.kind == 'TPU' and per_job not in _CHIP_BOUNDS:
    raise ValueError(
      f'--devices_per_job={per_job}: must be 1, 2, 4 or 8, because the TPU'
      ' chips of a job are neighbours in a rectangle.'
    )
  if per_job > 1 and any(name.startswith('MIG-') for name in names):
    raise ValueError(
      f'--devices_per_job={per_job}: must be 1, because a process sees one MIG'
      ' slice.'
    )
  ends = range(per_job, len(names) + 1, per_job)
  groups = [names[end - per_job : end] for end in ends]
  if found.kind == 'TPU':
    for group in groups:
      first = int(group[0]) // per_job * per_job
      if [int(name) for name in group] != [*range(first, first + per_job)]:
        raise ValueError(
          f'--devices_per_job={per_job}: TPU chips {", ".join(group)} are no'
          ' neighbours.'
        )
  return groups


def _environment(kind: str, names: Sequence[str]) -> dict[str, str]:
  """Returns the variables with which a process sees these devices alone."""
  joined = ','.join(names)
  if kind == 'GPU':
    return {_CUDA: joined}
  # Of the chip, so that commands which share a machine's chips share no port.
  port = str(_FIRST_PORT + int(names[0]))
  return {
    **dict.fromkeys(_TPU, joined),
    'TPU_PROCESS_BOUNDS': '1,1,1',
    'TPU_CHIPS_PER_PROCESS_BOUNDS': _CHIP_BOUNDS[len(names)],
    'TPU_PROCESS_ADDRESSES': f'localhost:{port}',
    'TPU_PROCESS_PORT': port,
    'CLOUD_TPU_TASK_ID': '0',
    # libtpu lets one process per machine in, unless it is told of others.
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
  }
