"""Compiles modules of plain functions with numba, which is optional.

The modules themselves stay plain Python: tests, routers and
NUMBA_DISABLE_JIT=1 run them as they stand.
"""

from collections.abc import Sequence
import os
import types


class MissingExtra(ValueError):
  """The package that compiles is not installed; the message says how."""


def compile_modules(
  modules: Sequence[types.ModuleType],
) -> list[types.ModuleType]:
  """Returns copies of modules whose functions are compiled when called.

  Under NUMBA_DISABLE_JIT=1 it returns the modules themselves.

  Args:
    modules: each after those of them that it uses. A copy's functions call the
      copies' functions.

  Raises:
    MissingExtra: numba is not installed.
  """
  if os.environ.get('NUMBA_DISABLE_JIT', '0') not in ('', '0'):
    return list(modules)
  try:
    import numba
  except ImportError as error:
    raise MissingExtra(
      "the simulator's compiler is not installed: pip install"
      " 'kaiju_jax[fleet]'; NUMBA_DISABLE_JIT=1 runs it slowly without."
    ) from error
  copies: dict[str, types.ModuleType] = {}
  for module in modules:
    copy = types.ModuleType(module.__name__)
    space = vars(copy)
    space.update(
      (name, copies.get(getattr(value, '__name__', ''), value))
      if isinstance(value, types.ModuleType)
      else (name, value)
      for name, value in vars(module).items()
    )
    for name, value in vars(module).items():
      is_own = getattr(value, '__module__', '') == module.__name__
      if isinstance(value, types.FunctionType) and is_own:
        function = types.FunctionType(
          value.__code__, space, name, value.__defaults__
        )
        space[name] = numba.njit(function)
    copies[module.__name__] = copy
  return list(copies.values())
