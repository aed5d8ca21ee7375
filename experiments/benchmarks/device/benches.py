"""A kernel's own benchmark as a slice: its shapes are the cases.

A record has the rows of `kernels/report.py`, which `tables` compares with the
ceilings.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from . import setting as setting_lib


def cases(
  setting: setting_lib.Setting,
  shapes: Mapping[str, Any],
  names: Sequence[str],
  seconds: float,
  tiny: Any,
) -> dict[str, tuple[float, dict[str, Any]]]:
  """Returns a benchmark's shapes as cases.

  Args:
    setting: the run's.
    shapes: shapes by name.
    names: those most worth knowing, first of all; the others follow.
    seconds: that one shape may take.
    tiny: the one shape of a rehearsal.
  """
  if setting.dry:
    return {'tiny': (seconds, {'tiny': tiny})}
  return {
    name: (seconds, {name: shapes[name]})
    for name in dict.fromkeys([*names, *shapes])
  }


def measure(
  bench: Any,
  default: Callable[[Any], str],
  setting: setting_lib.Setting,
  case: dict[str, Any],
) -> dict[str, Any]:
  """Returns the benchmark's rows at one shape, and today's default there.

  Args:
    bench: the kernel's module `bench`.
    default: takes a shape and returns an implementation's name.
    setting: the run's.
    case: one shape by its name.
  """
  (shape,) = case.values()
  rows = bench.measure(setting.repeats, case)
  return {'default': default(shape), 'rows': [row._asdict() for row in rows]}
