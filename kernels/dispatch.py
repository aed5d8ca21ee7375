"""Imports the one module that implements a kernel on this platform.

An implementation is a module of the kernel's folder. All implementations of a
kernel have functions of the same names and signatures. A machine without an
accelerator never imports the accelerator's compiler.

    dispatch.platform()                  the platform that will run the kernel
    with dispatch.compiling_for('gpu'):  compile for a device that is not here
    with dispatch.interpret():           run Pallas kernels anywhere, slowly

Both contexts act while JAX traces a function, and are part of the keys of its
caches: a function that was traced outside is traced anew.
"""

from collections.abc import Mapping
import contextlib
import functools
import importlib
import importlib.util
import types

from absl import logging
import jax

ANYWHERE = ('cpu', 'gpu', 'tpu')

_platform = jax.make_user_context(None)
_interpreting = jax.make_user_context(False)


def platform() -> str:
  """Returns the platform to compile for: 'cpu', 'gpu' or 'tpu'."""
  return _platform.value or jax.default_backend()


def compiling_for(name: str) -> contextlib.AbstractContextManager[None]:
  """Makes functions traced inside it choose kernels for platform `name`.

  Args:
    name: one of ANYWHERE.

  Raises:
    ValueError: another platform.
  """
  if name not in ANYWHERE:
    raise ValueError(
      f'compiling_for({name!r}): expected one of {", ".join(ANYWHERE)}.'
    )
  return _platform(name)


def interpreting() -> bool:
  """Returns whether `interpret` is active; kernels pass it to `pallas_call`."""
  return _interpreting.value


def interpret() -> contextlib.AbstractContextManager[None]:
  """Makes Pallas kernels traced inside it run here, in an interpreter."""
  return _interpreting(True)


def choose(
  kernel: str, implementation: str, runs_on: Mapping[str, tuple[str, ...]]
) -> types.ModuleType:
  """Imports and returns the module of an implementation.

  Args:
    kernel: the kernel's package, `__package__` of its api.
    implementation: name of the module.
    runs_on: for each implementation the platforms that it compiles for.

  Raises:
    ValueError: an unknown name, or, outside `interpret`, one that `platform()`
      cannot run; lists what this platform can run.
  """
  here = platform()
  able = [name for name, places in runs_on.items() if here in places]
  if implementation not in runs_on:
    raise ValueError(
      f'implementation={implementation!r} is unknown: {here} runs'
      f' {", ".join(able)}.'
    )
  if implementation not in able and not interpreting():
    raise ValueError(
      f'implementation={implementation!r} runs on'
      f' {", ".join(runs_on[implementation])}: {here} runs {", ".join(able)}.'
    )
  return importlib.import_module(f'{kernel}.{implementation}')


def numba_cpu(kernel: str) -> types.ModuleType | None:
  """Returns a kernel's module `numba_cpu`, None where it cannot be used.

  Args:
    kernel: the kernel's package.
  """
  return _import_numba(kernel) if platform() == 'cpu' else None


@functools.cache
def _import_numba(kernel):
  """Imports `numba_cpu`; logs why it cannot where numba is installed."""
  if importlib.util.find_spec('numba') is None:
    return None
  try:
    return importlib.import_module(f'{kernel}.numba_cpu')
  except Exception as error:  # Of whatever numba refuses, too.
    cause = str(error).partition('\n')[0]
    logging.warning("XLA computes in place of %s's numba: %s", kernel, cause)
    return None
