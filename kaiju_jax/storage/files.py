"""Writing such that a kill or a full disk leaves the old file or the new."""

from collections.abc import Iterator
import contextlib
import json
import os
import pathlib
from typing import Any


@contextlib.contextmanager
def writing(what: str) -> Iterator[None]:
  """Has an OSError say what was being written, and what to do.

  The error's number and type stay, for callers that look at them.
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
  """Makes a folder, and those above it, where it does not exist.

  Raises:
    OSError: it cannot be made; names it.
  """
  try:
    path.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise OSError(
      f'{path}: the folder cannot be made: {error.strerror}.'
    ) from error


def write_json(path: pathlib.Path, data: Any) -> None:
  """Replaces a file by `data` as JSON, in one step that cannot be halved."""
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
    ValueError: it is not JSON; names the file.
  """
  try:
    return json.loads(path.read_text(encoding='utf-8'))
  except ValueError as error:
    raise ValueError(f'{path}: not valid JSON ({error}).') from error
