"""Measures free memory, and gives back what compilations have left."""

import ctypes
import os
import pathlib

_CGROUP = pathlib.Path('/sys/fs/cgroup')
_MEMORY = pathlib.Path('/proc/meminfo')


def trim() -> None:
  """Returns free memory to the system, where glibc is the allocator."""
  try:
    release = ctypes.CDLL(None).malloc_trim
  except (OSError, AttributeError):
    return  # Another C library, which returns memory as it likes.
  release(0)


def measure_free(devices: int = 1, waiting: int = 0) -> int:
  """Returns the free bytes of the first devices together.

  For a CPU, or several simulated ones, they are the machine's, or those that
  its control group leaves. What cached files occupy counts as free. `waiting`
  are bytes in the machine's memory that the devices take first.
  """
  import jax

  stats = [one.memory_stats() or {} for one in jax.devices()[:devices]]
  if all('bytes_limit' in one for one in stats):
    free = sum(one['bytes_limit'] - one['bytes_in_use'] for one in stats)
    return free - waiting
  return min(_of_machine(), _of_group())


def budget_cache(devices: int = 1, waiting: int = 0) -> int:
  """Returns how many bytes a cache may have by default on the first devices.

  They are at most a quarter of the free memory, and a power of two: programs
  have the cache's shape, so that a later start finds them compiled only if it
  chooses the same size, though somewhat more or less memory is free then.
  """
  free = measure_free(devices, waiting)
  return 1 << max(free // 4, 1).bit_length() - 1


def _of_machine() -> int:
  if not _MEMORY.exists():  # No Linux: half of all there is.
    return os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') // 2
  fields = dict(
    line.split(':') for line in _MEMORY.read_text().splitlines() if line
  )
  return int(fields['MemAvailable'].split()[0]) * 1024


def _of_group() -> float:
  try:
    most = (_CGROUP / 'memory.max').read_text().strip()
    stat = (_CGROUP / 'memory.stat').read_text()
  except OSError:
    return float('inf')
  if most == 'max':
    return float('inf')
  used = dict(line.split() for line in stat.splitlines())
  return max(int(most) - int(used['anon']), 0)
