"""Every test runs on eight CPU devices, and no array broadcasts by accident.

The settings are environment variables rather than `jax.config`. So tests that
need no jax do not pay for its import, the workers of pytest-xdist and
subprocesses have the same settings, and an accelerator is used only where
JAX_PLATFORMS asks for one.
"""

import collections
import gc
import os
import pathlib
import signal
import sys
import tempfile

import pytest

_COUNT = '--xla_force_host_platform_device_count'
# Where `.ci/run` gathers each folder's seconds.
_SECONDS_FILE = 'TEST_SECONDS_FILE'

if 'jax' in sys.modules:
  raise RuntimeError(
    'jax was imported before tests/conftest.py, whose settings now come too'
    ' late: a pytest plugin or an import on the command line did it.'
  )
if _COUNT not in os.environ.get('XLA_FLAGS', ''):
  os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {_COUNT}=8'
os.environ.setdefault('JAX_PLATFORMS', 'cpu')
os.environ.setdefault('JAX_NUMPY_RANK_PROMOTION', 'raise')

# Much of the suite's time is compiling, and many tests compile the same
# programs: what one worker or subprocess compiles, all others read. The folder
# is new in each run, so that no run tests what another one compiled; the stages
# of `.ci/run` share one.
if 'JAX_COMPILATION_CACHE_DIR' not in os.environ:
  _compiled = tempfile.TemporaryDirectory(prefix='kaiju_jax-compiled-')
  os.environ['JAX_COMPILATION_CACHE_DIR'] = _compiled.name
  os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0')

# Modules and tests stay until the end, so that no collection need look at them,
# and jax's tracing makes little garbage: a twelfth of the suite's time.
gc.disable()


def pytest_collection_modifyitems(items):
  """Begins with what may take long, so that no worker waits for another's."""
  items.sort(key=lambda item: item.get_closest_marker('timeout') is None)


def pytest_collection_finish():
  gc.enable()
  gc.freeze()
  gc.set_threshold(20_000, 20, 20)


# A process of these tests grows by what it compiles, to 5.4 GB over the whole
# suite. Behind a module it forgets that, if it has more than so many bytes; the
# next module reads what it needs again from the folder above.
_FORGETS = 2 * 2**30
# The bytes that a process has at most: what it may keep, and what the largest
# module adds.
_PEAK = 4 * 2**30


@pytest.hookimpl(optionalhook=True)  # Not every run has xdist.
def pytest_xdist_auto_num_workers():
  """Returns how many processes test at once: as many as memory has room for."""
  pages = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
  return max(1, min(os.cpu_count() or 1, pages // _PEAK))


def pytest_runtest_teardown(item, nextitem):
  is_last = nextitem is None or nextitem.path != item.path
  if is_last and 'jax' in sys.modules and _measure_resident() > _FORGETS:
    import jax

    from kaiju_jax.decoding.device import memory

    jax.clear_caches()
    gc.collect()
    memory.trim()


def _measure_resident() -> int:
  """Returns the bytes of this process in memory; 0 where it cannot tell."""
  file = pathlib.Path('/proc/self/statm')
  if not file.exists():
    return 0
  return int(file.read_text().split()[1]) * os.sysconf('SC_PAGE_SIZE')


# A shell's background job ignores Ctrl-C, and so does every process that it
# starts. Here Ctrl-C is under test.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
  signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter):
  """Prints each folder's seconds, summed over its tests: time is a budget."""
  here = pathlib.Path(__file__).parent.name
  seconds = collections.Counter()
  for reports in terminalreporter.stats.values():
    for report in reports:
      if hasattr(report, 'duration'):
        parts = pathlib.PurePosixPath(report.nodeid.partition('::')[0]).parts
        below = parts[parts.index(here) + 1 :] if here in parts else parts
        seconds[below[0] if len(below) > 1 else 'no folder'] += report.duration
  if sum(seconds.values()) >= 60:
    terminalreporter.section('seconds by folder')
    for folder, spent in seconds.most_common():
      terminalreporter.write_line(f'{spent:8.1f} s  {folder}')
    terminalreporter.write_line(f'{sum(seconds.values()):8.1f} s  all')
  if _SECONDS_FILE in os.environ:
    with open(os.environ[_SECONDS_FILE], 'a') as file:
      for folder, spent in seconds.items():
        file.write(f'{spent:.1f} {folder}\n')


@pytest.fixture(scope='module')
def user_cache(tmp_path_factory):
  """A user's cache of the module's own, so that the real one stays as it is."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('XDG_CACHE_HOME', str(tmp_path_factory.mktemp('cache')))
    yield
