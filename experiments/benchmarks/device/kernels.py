"""A kernel's own benchmark as a slice: its shapes are the cases.

A record has the rows of `kernels/benchmark.py`, which `tables` compares with
the ceilings, and today's default implementation.
"""

import importlib
from typing import Any

from kaiju_jax.kernels import benchmark

from . import setting as setting_lib


class Bench:
  """The slice of one kernel."""

  def __init__(self, kernel: str, seconds: float):
    """Takes the kernel's folder, and seconds that one shape may take."""
    self._bench = importlib.import_module(f'kaiju_jax.kernels.{kernel}.bench')
    self._seconds = seconds

  def cases(
    self, setting: setting_lib.Setting
  ) -> dict[str, tuple[float, tuple[str, Any]]]:
    """Returns the shapes by name, those most worth knowing first."""
    shapes = self._bench.SHAPES
    if setting.dry:
      shapes = {'tiny': self._bench.TINY}
    names = [name for name in self._bench.FIRST if name in shapes]
    return {
      name: (self._seconds, (name, shapes[name]))
      for name in dict.fromkeys([*names, *shapes])
    }

  def measure(
    self, setting: setting_lib.Setting, case: tuple[str, Any]
  ) -> dict[str, Any]:
    """Returns the rows of one shape, and today's default there."""
    rows = benchmark.measure(self._bench.subjects(*case), setting.repeats)
    return {
      'default': self._bench.default(case[1]),
      'rows': [row._asdict() for row in rows],
    }
