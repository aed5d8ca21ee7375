"""Writes a folder whole or not at all."""

from collections.abc import Iterator
import contextlib
import os
import pathlib
import shutil

from kaiju_jax.storage import addresses
from kaiju_jax.storage import files


@contextlib.contextmanager
def write_whole(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
  """Yields a folder beside `path` and renames it to `path` at the end.

  If writing fails or is interrupted, the folder is removed.

  Raises:
    ValueError: `path` is empty, or an address.
    FileExistsError: `path` exists.
    OSError: the folder cannot be made or written to.
  """
  if not os.fspath(path):
    raise ValueError("folder '': must name a new folder, such as exports/tiny.")
  addresses.refuse(path, f'folder {path}')
  path = pathlib.Path(os.path.abspath(path))
  if os.path.lexists(path):
    raise FileExistsError(f'{path}: exists; must be the name of a new folder.')
  files.make_folder(path.parent)
  partial = path.with_name(f'.{path.name}.{os.getpid()}.partial')
  try:
    partial.mkdir()
    yield partial
    # safetensors makes files that only the user who wrote them may read.
    mode = partial.stat().st_mode & 0o666
    for file in partial.iterdir():
      file.chmod(mode)
    partial.rename(path)
  finally:
    shutil.rmtree(partial, ignore_errors=True)


def user_cache() -> pathlib.Path | None:
  """Returns the user's folder of what can be made again; None without one."""
  try:
    home = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
  except RuntimeError:  # There is no home folder.
    return None
  return pathlib.Path(home) / 'kaiju_jax'


def refuse_existing(out: str) -> None:
  """Refuses a folder of the flag --out that exists, before a command works.

  Raises:
    FileExistsError: names the folder.
    ValueError: an address.
  """
  addresses.refuse(out, f'--out={out}')
  if os.path.lexists(out):
    raise FileExistsError(
      f'--out={out}: exists; must be the name of a new folder.'
    )
