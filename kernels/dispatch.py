"""Picks the module that runs a kernel, and imports no other.

An implementation is a module of the kernel's folder with functions of the
same names and signatures as its neighbours. A machine without an accelerator
never imports the accelerator's compiler.
"""

from collections.abc import Mapping
import importlib
import types

import jax

ANYWHERE = ('cpu', 'gpu', 'tpu')


def choose(
  kernel: str, implementation: str, runs_on: Mapping[str, tuple[str, ...]]
) -> types.ModuleType:
  """Imports and returns the module of an implementation.

  Args:
    kernel: the kernel's package, `__package__` of its api.
    implementation: name of the module.
    runs_on: for each implementation the platforms that it compiles for. One
      of another platform is imported too: it may be compiled ahead of time.

  Raises:
    ValueError: an unknown name; lists what this platform can run.
  """
  if implementation not in runs_on:
    platform = jax.default_backend()
    able = [name for name, places in runs_on.items() if platform in places]
    raise ValueError(
      f'implementation={implementation!r} is unknown: {platform} runs'
      f' {", ".join(able)}.'
    )
  return importlib.import_module(f'{kernel}.{implementation}')
