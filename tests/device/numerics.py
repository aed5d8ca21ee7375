"""The checks of all kernels by name, and what each compiles.

A check compiles one implementation for one shape and compares it with the
definition on the CPU: the largest error, and whether NaN and infinities stand
where they belong. Kernels take turns, so that whatever the time allows, each
was looked at.
"""

from collections.abc import Callable
import functools
import itertools
from typing import Any
from typing import NamedTuple

from tests.device import attention
from tests.device import checks
from tests.device import codec
from tests.device import decode
from tests.device import products

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


def cases(platform: str, small: bool = False) -> dict[str, Case]:
  """Returns the checks by name, those most worth knowing first.

  Args:
    platform: whose implementations are checked.
    small: whether only the smallest shapes are, for interpreted kernels.
  """
  made = [
    [
      (name, Case(kernel, check))
      for name, check in module.make(platform, small)
    ]
    for kernel, module in _KERNELS.items()
  ]
  turns = itertools.zip_longest(*made)
  return {pair[0]: pair[1] for turn in turns for pair in turn if pair}


def programs(platform: str) -> dict[str, Callable[[], tuple[Any, tuple]]]:
  """Returns what each check compiles."""
  return {
    name: functools.partial(checks.program, case.check)
    for name, case in cases(platform).items()
  }
