"""Files that a kill or a full disk leaves whole: the old one or the new one."""

from collections.abc import Iterator
import contextlib
import json
import os
import pathlib
from typing import Any


@contextlib.contextmanager
def writing(what: str) -> Iterator[None]:
  """Adds to an OSError what was being written, and what to do.

  The error keeps its number and its type, because callers look at them.
  """
  try:
    yield
  except OSError as error:
    raise OSError(
      error.errno,
      f'{error.strerror}, writing {what}. What was written before is kept;'
      ' once the cause is removed, the same command goes on',
    ) from error


def make_folder(path: pathlib.Path) -> None:
  """Makes a folder and its parents where they do not exist.

  Raises:
    OSError: the folder cannot be made; names it.
  """
  try:
    path.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise OSError(
      f'{path}: the folder cannot be made: {error.strerror}.'
    ) from error


def write_json(path: pathlib.Path, data: Any) -> None:
  """Replaces a file by `data` as JSON, in one atomic step."""
  text = json.dumps(data, indent=2, sort_keys=True, allow_nan=False) + '\n'
  temporary = path.with_name(f'.{path.name}.tmp')
  with writing(str(path)):
    with open(temporary, 'w', encoding='utf-8') as file:
      file.write(text)
      file.flush()
      os.fsync(file.fileno())
    os.replace(temporary, path)


def read_json(path: pathlib.Path) -> Any:
  """Returns a JSON file's data.

  Raises:
    ValueError: the file is not JSON; names it.
  """
  try:
    return json.loads(path.read_text(encoding='utf-8'))
  except ValueError as error:
    raise ValueError(f'{path}: not valid JSON ({error}).') from error
