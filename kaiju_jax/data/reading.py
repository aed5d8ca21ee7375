"""Streams the text of files: plain, gzip, zstd; and a column of tables.

A file takes a few megabytes of memory, whatever its size. `.gz` and `.zst` are
unpacked; the name before the suffix says what they hold. Tables are `.parquet`
files and folders that `datasets.Dataset.save_to_disk` wrote.
"""

import codecs
from collections.abc import Callable
from collections.abc import Iterator
import gzip
import itertools
import os
import pathlib
from typing import Any
from typing import BinaryIO
from typing import TypeVar
import zlib

import zstandard

from kaiju_jax.storage import files as files_lib
from kaiju_jax.storage import strict_json

PARQUET = '.parquet'
_BLOCK = 2**20
# zstd can make a thousandfold of a block.
_PACKED_BLOCK = 2**14
_ROWS = 256  # Rows of a table that are in memory at once.
# The files by which a folder of `datasets` is known.
_SAVED = ('dataset_info.json', 'state.json')
_SPLITS = 'dataset_dict.json'
_T = TypeVar('_T')


def name_without_packing(name: str) -> str:
  """Returns a file's name without the suffix `.gz` or `.zst`."""
  return name.removesuffix('.gz').removesuffix('.zst')


def pieces(file: str) -> Iterator[str]:
  """Yields the text of a file in pieces of about a megabyte.

  Raises:
    OSError: the file cannot be read.
    ValueError: it is not UTF-8 without NUL, or not whole; names the place.
  """
  rest, offset = b'', 0
  blocks = _blocks(file)
  while True:
    block = next(blocks, b'')
    data = rest + block
    wrong = data.find(b'\0')
    try:
      text, used = codecs.utf_8_decode(data, 'strict', not block)
    except UnicodeDecodeError as error:
      nul = data.find(b'\0', 0, error.start)
      wrong = error.start if nul < 0 else nul
    if wrong >= 0:
      if not offset:
        files_lib.refuse_compressed(file, data)
      raise ValueError(
        f'{file}: not text: byte 0x{data[wrong]:02x} at offset'
        f' {offset + wrong}; expected UTF-8 without NUL. A glob such as'
        " 'folder/**/*.txt' names text files alone."
      )
    if not offset:
      text = text.removeprefix('\ufeff')  # A byte order mark.
    if text:
      yield text
    if not block:
      return
    rest, offset = data[used:], offset + used


def lines(file: str) -> Iterator[str]:
  """Yields what stands between a file's newlines; raises as `pieces`."""
  line: list[str] = []
  for piece in pieces(file):
    first, *others = piece.split('\n')
    line.append(first)
    for other in others:
      yield ''.join(line)
      line = [other]
  yield ''.join(line)


def parse_lines(
  path: str | os.PathLike[str], parse: Callable[[Any], _T]
) -> Iterator[_T]:
  """Yields what `parse` returns for each line of a JSONL file.

  Lines without text are skipped.

  Raises:
    OSError, ValueError: as `pieces`; or a line is not JSON, or `parse` refuses
      it; names file and line.
  """
  file = os.fspath(path)
  for number, line in enumerate(lines(file), 1):
    if line.strip():
      try:
        found = parse(strict_json.parse(line))
      except ValueError as error:
        raise ValueError(f'{file}, line {number}: {error}') from error
      yield found


def _blocks(file: str) -> Iterator[bytes]:
  """Yields the bytes of a file, unpacked; none is empty."""
  try:
    with open(file, 'rb') as opened:
      if file.endswith('.gz'):
        yield from _read(gzip.GzipFile(fileobj=opened))
      elif file.endswith('.zst'):
        yield from _unpack_zstd(opened)
      else:
        yield from _read(opened)
  except (gzip.BadGzipFile, zlib.error, EOFError, zstandard.ZstdError) as error:
    raise ValueError(
      f'{file}: is not whole, or not what its suffix says: {error}.'
    ) from error
  except OSError as error:
    raise type(error)(
      f'{file}: cannot be read: {error.strerror or error}.'
    ) from error


def _read(opened: BinaryIO | gzip.GzipFile) -> Iterator[bytes]:
  while block := opened.read(_BLOCK):
    yield block


def _unpack_zstd(opened: BinaryIO) -> Iterator[bytes]:
  """Yields what the frames hold; a cut frame is an EOFError."""
  frame = None
  while block := opened.read(_PACKED_BLOCK):
    while block:
      frame = frame or zstandard.ZstdDecompressor().decompressobj()
      if data := frame.decompress(block):
        yield data
      block = frame.unused_data if frame.eof else b''
      frame = None if frame.eof else frame
  if frame is not None:
    raise EOFError('the last frame has no end')


def is_saved_dataset(path: str) -> bool:
  """Returns whether a folder is one that `datasets` wrote."""
  return all(os.path.isfile(os.path.join(path, name)) for name in _SAVED)


def refuse_splits(path: str) -> None:
  """Refuses a folder of several data sets that `datasets` wrote.

  Raises:
    ValueError: names its splits.
  """
  if os.path.isfile(os.path.join(path, _SPLITS)):
    names = sorted(
      one.name for one in pathlib.Path(path).iterdir() if one.is_dir()
    )
    raise ValueError(
      f'{path}: has the splits {", ".join(names)}: name one of these folders.'
    )


def column_of_dataset(path: str, column: str) -> Iterator[tuple[str, Any]]:
  """Yields (place, value) of a column of a folder that `datasets` wrote.

  Raises:
    ImportError: `datasets` is missing.
    ValueError: there is no such column.
  """
  try:
    import datasets
  except ImportError as error:
    raise _missing(path, 'datasets') from error
  found = datasets.load_from_disk(path, keep_in_memory=False)
  _check_column(path, column, found.column_names)
  table = found.select_columns([column]).with_format('arrow')
  for number, batch in enumerate(table.iter(_ROWS)):
    for row, value in enumerate(batch[column].to_pylist(), number * _ROWS + 1):
      yield f'row {row}', value


def column_of_parquet(file: str, column: str) -> Iterator[tuple[str, Any]]:
  """Yields (place, value) of a column of a Parquet file.

  Raises:
    ImportError: `pyarrow` is missing.
    OSError, ValueError: no Parquet file, or there is no such column.
  """
  try:
    import pyarrow
    from pyarrow import parquet
  except ImportError as error:
    raise _missing(file, 'pyarrow') from error
  rows = itertools.count(1)
  try:
    with parquet.ParquetFile(file, pre_buffer=False) as opened:
      _check_column(file, column, opened.schema_arrow.names)
      for batch in opened.iter_batches(_ROWS, columns=[column]):
        for value in batch.column(0).to_pylist():
          yield f'row {next(rows)}', value
  except pyarrow.ArrowInvalid as error:
    raise ValueError(f'{file}: not a Parquet file: {error}') from error


def _check_column(path: str, column: str, names: list[str]) -> None:
  if column not in names:
    raise ValueError(
      f'--column={column}: {path} has the columns {", ".join(names)}.'
    )


def _missing(path: str, package: str) -> ImportError:
  return ImportError(f"{path}: needs {package}: pip install 'kaiju_jax[hf]'.")
