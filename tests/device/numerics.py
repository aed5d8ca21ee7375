"""Does every kernel compute what its definition says, on this device?

Each check compiles one implementation for one shape and compares it with the
definition on the CPU: the largest error, and whether NaN and infinities stand
where they belong. Those of all kernels take turns, so that whatever the time
allows, each kernel was looked at.
"""

from collections.abc import Callable
import functools
import itertools
from typing import Any
from typing import NamedTuple

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import timing

from .. import setting as setting_lib
from . import attention
from . import checks
from . import codec
from . import decode
from . import products

# By the kernel's folder.
_KERNELS = {
  'visibility_attention': attention,
  'int8_matmul': products,
  'paged_decode': decode,
  'squinch': codec,
}


class Case(NamedTuple):
  """A check of a kernel."""

  kernel: str
  check: checks.Check


def _checks(setting: setting_lib.Setting) -> dict[str, Case]:
  made = [
    [(name, Case(kernel, check)) for name, check in found]
    for kernel, found in (
      (kernel, module.make(dispatch.platform(), setting.dry))
      for kernel, module in _KERNELS.items()
    )
  ]
  turns = itertools.zip_longest(*made)
  return {pair[0]: pair[1] for turn in turns for pair in turn if pair}


def cases(
  setting: setting_lib.Setting,
) -> dict[str, tuple[float, Case]]:
  """Returns the checks, kernels in turn."""
  found = _checks(setting)
  if setting.dry:
    # The first check of each kernel: interpreters take seconds for each.
    first = {name.partition(',')[0]: name for name in reversed(found)}
    found = {name: found[name] for name in found if name in first.values()}
  return {name: (each.check.estimate, each) for name, each in found.items()}


def measure(setting: setting_lib.Setting, case: Case) -> dict[str, Any]:
  """Returns the check's errors."""
  del setting
  with timing.trial(f'{case.kernel}, {case.check.implementation}'):
    return {'kernel': case.kernel, **checks.measure(case.check)}


def programs(
  setting: setting_lib.Setting, device: Any
) -> dict[str, Callable[[], tuple[Any, tuple]]]:
  """Returns what each check compiles."""
  del device
  return {
    name: functools.partial(checks.program, each.check)
    for name, each in _checks(setting).items()
  }
