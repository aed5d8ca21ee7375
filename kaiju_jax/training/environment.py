"""Describes the versions and devices on which a run's results depend."""

import collections
import datetime
import importlib.metadata
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import sys
from typing import Any

import jax

_PACKAGES = (
  'jax',
  'jaxlib',
  'flax',
  'optax',
  'grain',
  'orbax-checkpoint',
  'numpy',
)


def describe() -> dict[str, Any]:
  """Returns versions, git revision, devices, command and date, for JSON."""
  kinds = collections.Counter(
    (device.platform, device.device_kind) for device in jax.devices()
  )
  return {
    'python': platform.python_version(),
    **{name: _version(name) for name in _PACKAGES},
    **_revision(),
    'devices': [
      {'platform': platform_name, 'kind': kind, 'count': count}
      for (platform_name, kind), count in sorted(kinds.items())
    ],
    'xla_flags': os.environ.get('XLA_FLAGS', ''),
    'command': sys.orig_argv,
    'date': datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds'),
  }


def typed_command() -> str | None:
  """Returns the command of this process as a person types it in a shell.

  A program that lies on PATH goes by its name alone: kaiju for
  /…/bin/python /…/bin/kaiju. None for a program without a file to start again,
  such as `python -c`, a notebook or an interpreter's prompt.
  """
  if not hasattr(sys.modules['__main__'], '__file__'):
    return None
  python, *words = sys.orig_argv
  if words and (name := _name_on_path(words[0])):
    return shlex.join([name, *words[1:]])
  return shlex.join([_name_on_path(python) or python, *words])


def _name_on_path(program: str) -> str | None:
  """Returns the name by which PATH finds this file, None if it does not."""
  name = os.path.basename(program)
  found, file = shutil.which(name), shutil.which(program)
  is_same = found and file and os.path.samefile(found, file)
  return name if is_same else None


def _version(package: str) -> str | None:
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return None


def _revision() -> dict[str, Any]:
  """Returns this code's commit, and whether it was modified since.

  Both are None if git does not track this file, because an installed package
  may lie in another project's repository.
  """
  here = pathlib.Path(__file__).resolve()
  tracked = _git(here.parent, 'ls-files', '--error-unmatch', here.name)
  if tracked is None:
    return {'git_revision': None, 'git_modified': None}
  changes = _git(here.parent, 'status', '--porcelain', '--untracked-files=no')
  return {
    'git_revision': _git(here.parent, 'rev-parse', 'HEAD'),
    'git_modified': bool(changes),
  }


def _git(folder: pathlib.Path, *arguments: str) -> str | None:
  try:
    done = subprocess.run(
      ['git', *arguments],
      cwd=folder,
      capture_output=True,
      text=True,
      timeout=10,
    )
  except (OSError, subprocess.TimeoutExpired):
    return None
  return done.stdout.strip() if done.returncode == 0 else None
