"""Which block sizes are fastest?

Each case searches one key of a kernel's `tuned.json`: the choice of today
first, then candidates in a fixed random order, as many as its time allows. The
winner goes to OUT/tuned/<kernel>/tuned.json and beside the kernel, where the
slices behind this one find it. A rehearsal writes to OUT alone.
"""

import importlib
import itertools
import pathlib
from typing import Any
from typing import NamedTuple

from kaiju_jax.kernels import tuned
from kaiju_jax.kernels.squinch import bench

from . import setting as setting_lib

_KERNELS = 'visibility_attention', 'paged_decode', 'int8_matmul', 'squinch'
# A rehearsal searches one kernel: interpreters take seconds for each candidate.
_DRY = dict.fromkeys(bench.SHAPES, bench.TINY)


class TuneCase(NamedTuple):
  """One key of a kernel."""

  kernel: str
  key: str
  job: tuned.Job


def _module(kernel: str, name: str):
  return importlib.import_module(f'kaiju_jax.kernels.{kernel}.{name}')


def cases(setting: setting_lib.Setting) -> dict[str, tuple[float, TuneCase]]:
  """Returns the keys of all kernels, in turn."""
  each = []
  for kernel in _KERNELS if not setting.dry else ('squinch',):
    find = _module(kernel, 'autotune').jobs
    jobs = find(_DRY) if setting.dry else find()
    each.append([TuneCase(kernel, key, job) for key, job in jobs.items()])
  found = [x for turn in itertools.zip_longest(*each) for x in turn if x]
  if setting.dry:
    found = [
      x._replace(job=x.job._replace(candidates=x.job.candidates[:2]))
      for x in found[:1]
    ]
  return {f'{x.kernel}: {x.key}': (40, x) for x in found}


def measure(setting: setting_lib.Setting, case: TuneCase) -> dict[str, Any]:
  """Returns the winner, its seconds and those of today's choice."""
  found = tuned.search(case.job.candidates, case.job.prepare(), setting.repeats)
  folders = [pathlib.Path(setting.out) / 'tuned' / case.kernel]
  if not setting.dry:
    folders.append(pathlib.Path(_module(case.kernel, 'api').__file__).parent)
  for folder in folders:
    folder.mkdir(parents=True, exist_ok=True)
    tuned.write(folder, tuned.device_kind(), case.key, found)
  return {
    'kernel': case.kernel,
    'key': case.key,
    'candidates': len(case.job.candidates),
    **found._asdict(),
  }
