"""Does every kernel compute what its definition says, on this device?

Runs the tests with the marker `device`, each as a case. A test whose assertion
fails is done, and its record says that the definition does not hold.
"""

import contextlib
import io
import pathlib
from typing import Any

from kaiju_jax.kernels import timing

from . import setting as setting_lib

_ROOT = pathlib.Path(__file__).resolve().parents[3]
_TESTS = _ROOT / 'tests' / 'device'
# A child ends what hangs by itself, and writes nothing beside OUT. To find what
# fails unseen, pytest collects garbage ten times: seconds in a large process.
_OFF = (
  *('cacheprovider', 'timeout', 'faulthandler', 'xdist'),
  *('unraisableexception', 'threadexception'),
)


class _Plugin:
  """Keeps a session's tests, the last one's record and its exception."""

  def __init__(self):
    self.items: list[Any] = []
    self.record: dict[str, Any] | None = None
    self.error: BaseException | None = None

  def pytest_collection_finish(self, session):
    self.items = list(session.items)

  def pytest_exception_interact(self, node, call, report):
    del node, report
    self.error = call.excinfo.value

  def pytest_runtest_logreport(self, report):
    self.record = dict(report.user_properties).get('record', self.record)


def _run(where: str, *words: str) -> _Plugin:
  """Runs tests in this process.

  Raises:
    ImportError: there is no pytest, or a test cannot be imported.
  """
  import pytest

  if not _TESTS.exists():
    raise ImportError(f'numerics are tests of a checkout: {_TESTS} is missing.')
  plugin, written = _Plugin(), io.StringIO()
  words = [
    *('-c', str(_ROOT / 'setup.cfg'), '-s', '-W', 'ignore', '--tb=no'),
    # The conftest of the tests beside them is for a CPU.
    *('--confcutdir', str(_TESTS), '-m', 'device'),
    *(word for name in _OFF for word in ('-p', f'no:{name}')),
    *(where, *words),
  ]
  with contextlib.redirect_stdout(written):
    status = pytest.main(words, plugins=[plugin])
  if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
    raise ImportError(f'{status!r}: {plugin.error}\n{written.getvalue()}')
  return plugin


def cases(setting: setting_lib.Setting) -> dict[str, tuple[float, str]]:
  """Returns the tests that this platform has, kernels in turn."""
  found = {}
  for item in _run(str(_TESTS), '--collect-only').items:
    params = getattr(item, 'callspec', None)
    if params is not None and 'case' in params.params:
      estimate = params.params['case'].check.estimate
      found[params.id] = estimate, f'{_ROOT}/{item.nodeid}'
  if setting.dry:
    # The first check of each kernel: interpreters take seconds for each.
    first = {name.partition(',')[0]: name for name in reversed(found)}
    found = {name: found[name] for name in found if name in first.values()}
  return found


def measure(setting: setting_lib.Setting, case: str) -> dict[str, Any]:
  """Returns the test's record.

  Raises:
    DeviceLost: the device computes no more.
    Exception: what the test raised before it had a record.
  """
  del setting
  ran = _run(case)
  if isinstance(ran.error, timing.DeviceLost) or ran.record is None:
    raise ran.error or RuntimeError(f'{case}: was not run')
  return ran.record
