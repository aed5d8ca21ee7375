"""Writes files that a kill or a full disk leaves whole, old or new."""

from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
import json
import os
import pathlib
import secrets
import tempfile
from typing import Any

from kaiju_jax.storage import strict_json

# How files begin that hold text in another form.
_COMPRESSED = {
  b'\x1f\x8b': 'gzip',
  b'\x28\xb5\x2f\xfd': 'zstd',
  b'\xfd7zXZ\0': 'xz',
  b'BZh': 'bzip2',
  b'\x04\x22\x4d\x18': 'lz4',
  b'PK\x03\x04': 'zip',
  b'7z\xbc\xaf\x27\x1c': '7z',
  b'PAR1': 'parquet',
  b'ARROW1': 'arrow',
}

_JSON = 2**27  # Most bytes of a file of JSON; a large tokenizer.json has 2**25.
# The suffix of files that are not whole yet.
PARTIAL = '.partial'


@contextlib.contextmanager
def writing(what: str) -> Iterator[None]:
  """Adds to an OSError the name of what was being written, and a remedy.

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
  text = json.dumps(data, indent=2, sort_keys=True, allow_nan=False)
  write_text(path, f'{text}\n')


def write_json_lines(path: pathlib.Path, records: Iterable[Any]) -> None:
  """Replaces a file by a line of JSON per record, in one atomic step."""
  write_text(path, ''.join(f'{json.dumps(record)}\n' for record in records))


def open_private(path: str, flags: int) -> int:
  """Opens a file, as `open`'s opener; other users cannot read a new one."""
  return os.open(path, flags, 0o600)


def write_text(path: pathlib.Path, text: str, is_private: bool = False) -> None:
  """Replaces a file by `text`, in one atomic step.

  With `is_private` other users can never read it.
  """
  opener = open_private if is_private else None
  with (
    writing(str(path)),
    replacing(path) as partial,
    open(partial, 'x', encoding='utf-8', opener=opener) as file,
  ):
    file.write(text)
    file.flush()
    os.fsync(file.fileno())


def create_secret(path: pathlib.Path, data: bytes) -> None:
  """Creates a file that only this user can read; leaves one that is there.

  It is there with all of `data`, or not at all.
  """
  with writing(str(path)):
    # Mode 600, whatever the umask is.
    file, temporary = tempfile.mkstemp(prefix='.secret.', dir=path.parent)
    try:
      with os.fdopen(file, 'wb') as opened:
        opened.write(data)
        opened.flush()
        os.fsync(opened.fileno())
      os.link(temporary, path)
    except FileExistsError:
      pass  # Another process drew one at the same time.
    finally:
      os.unlink(temporary)


def refuse_readable(path: pathlib.Path, mode: int) -> None:
  """Refuses a secret's file (ValueError) whose mode lets others read it."""
  if mode & 0o077:
    raise ValueError(
      f'{path}: others may read it (mode {mode & 0o777:o}); must be 600.'
    )


def load_secret(path: pathlib.Path, size: int) -> bytes:
  """Returns a file's random bytes; the first call draws and writes them.

  Raises:
    ValueError: the file has another size.
    OSError: it cannot be read or written.
  """
  if not path.exists():
    create_secret(path, secrets.token_bytes(size))
  secret = path.read_bytes()
  if len(secret) != size:
    raise ValueError(
      f'{path}: {len(secret)} bytes: must be {size}. Remove the file, and the'
      ' next start draws another.'
    )
  return secret


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields a new path beside `path`; what is written there replaces `path`.

  The new path differs per writer, so that two writers of one file both write a
  whole one. If writing fails, the new file is removed and `path` stays.
  """
  partial = path.with_name(f'.{path.name}.{secrets.token_hex(8)}{PARTIAL}')
  try:
    yield partial
    os.replace(partial, path)
  finally:
    partial.unlink(missing_ok=True)


def append(file: int, data: bytes) -> None:
  """Appends all of `data` to an open file, or nothing of it.

  Raises:
    OSError: the data could not be written; the file has its old length.
  """
  end = os.fstat(file).st_size
  try:
    # A nearly full disk takes a part, and raises an error for the rest.
    while data:
      data = data[os.write(file, data) :]
  except OSError:
    os.ftruncate(file, end)
    raise


def refuse_compressed(path: str | os.PathLike[str], data: bytes) -> None:
  """Refuses bytes that begin as a compressed or packed file does.

  Raises:
    ValueError: names the file and its form.
  """
  for start, form in _COMPRESSED.items():
    if data.startswith(start):
      raise ValueError(
        f'{path}: is compressed or packed ({form}): unpack it first. Files of'
        ' UTF-8 text and .jsonl, also as .gz or .zst, and .parquet are read.'
      )


def read_json(path: pathlib.Path) -> Any:
  """Returns a JSON file's data.

  Raises:
    OSError: the file cannot be read.
    ValueError: the file is not JSON, too deep or too large; names it.
  """
  with open(path, 'rb') as file:
    data = file.read(_JSON + 1)
  if len(data) > _JSON:
    raise ValueError(f'{path}: has more than {_JSON:,} bytes, as many as may.')
  try:
    return strict_json.parse(data)
  except ValueError as error:
    raise ValueError(f'{path}: not valid JSON ({error}).') from error
