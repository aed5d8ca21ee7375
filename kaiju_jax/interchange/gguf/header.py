"""Reads the header of a GGUF file: its metadata, and where its tensors lie.

    header    'GGUF', version, count of tensors, count of fields
    fields    {key: a number, a string, or a list of one kind of them}
    tensors   {name: shape, innermost size first; type; offset in the data}
    data      from the next multiple of `general.alignment` on

Everything is checked against the size of the file before it is used, because a
file may come from anybody. Versions 2 and 3, little-endian.
Source: github.com/ggml-org/ggml, docs/gguf.md.
"""

import math
import mmap
import os
import pathlib
import struct
from typing import Any
from typing import NamedTuple

from kaiju_jax.interchange import quantized
from kaiju_jax.interchange import shards

_MAGIC = b'GGUF'
_VERSIONS = 2, 3
# {type of a field: its format in `struct`}.
_NUMBERS = {
  0: 'B',
  1: 'b',
  2: 'H',
  3: 'h',
  4: 'I',
  5: 'i',
  6: 'f',
  7: '?',
  10: 'Q',
  11: 'q',
  12: 'd',
}
_STRING, _LIST = 8, 9
_MOST_FIELDS = 4096
_MOST_TENSORS = 65_536
_MOST_DIMENSIONS = 4


class Header(NamedTuple):
  """What a file says before its data."""

  fields: dict[str, Any]  # Metadata by key: numbers, strings and lists of them.
  # By GGUF's names, in the order of the data; sizes outermost first.
  tensors: dict[str, shards.Stored]


def read(path: str | os.PathLike[str]) -> Header:
  """Returns the header of a file that is whole.

  Raises:
    OSError: the file cannot be read.
    ValueError: names the file, and the field or the tensor that is wrong.
  """
  path = pathlib.Path(path)
  with open(path, 'rb') as file:
    size = os.fstat(file.fileno()).st_size
    if file.read(len(_MAGIC)) != _MAGIC:
      raise ValueError(f'{path}: not a GGUF file: must begin with {_MAGIC!r}.')
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
      try:
        return _read(path, _Cursor(data, size))
      except ValueError as error:
        raise ValueError(f'{path}: not a whole GGUF file: {error}') from None


class _Cursor:
  """Reads values one after another, and none behind the end of the file."""

  def __init__(self, data: mmap.mmap, size: int):
    self._data = data
    self.size = size
    self.place = len(_MAGIC)

  def skip(self, count: int) -> int:
    """Returns the place of the next bytes, and goes behind them."""
    first = self.place
    if count > self.size - first:
      raise ValueError(
        f'{count:,} bytes wanted at byte {first:,}, of {self.size:,}.'
      )
    self.place += count
    return first

  def numbers(self, format: str, count: int) -> tuple[Any, ...]:
    """Returns numbers of one format of `struct`."""
    first = self.skip(count * struct.calcsize(f'<{format}'))
    return struct.unpack_from(f'<{count}{format}', self._data, first)

  def number(self, format: str) -> Any:
    return self.numbers(format, 1)[0]

  def text(self) -> str:
    """Returns a string: its count of bytes, then UTF-8."""
    count = self.number('Q')
    first = self.skip(count)
    return self._data[first : first + count].decode()


def _read(path: pathlib.Path, cursor: _Cursor) -> Header:
  version = cursor.number('I')
  if version not in _VERSIONS:
    raise ValueError(
      f'version={version}: must be one of {", ".join(map(str, _VERSIONS))}.'
    )
  count = _count('tensor_count', cursor.number('Q'), _MOST_TENSORS)
  fields: dict[str, Any] = {}
  for _ in range(_count('kv_count', cursor.number('Q'), _MOST_FIELDS)):
    key = cursor.text()
    if key in fields:
      raise ValueError(f'{key}: is there twice.')
    fields[key] = _value(key, cursor.number('I'), cursor)
  if fields.get('split.count', 1) not in (0, 1):
    raise ValueError(
      f'split.count={fields["split.count"]}: must be 1: join the parts first'
      ' (llama-gguf-split --merge).'
    )
  alignment = fields.get('general.alignment', 32)
  if type(alignment) is not int or alignment < 8 or alignment & alignment - 1:
    raise ValueError(
      f'general.alignment={alignment!r}: must be a power of 2, at least 8.'
    )
  entries = [_entry(cursor) for _ in range(count)]
  start = -(-cursor.place // alignment) * alignment
  tensors = _place(path, entries, start, alignment, cursor.size)
  return Header(fields, tensors)


def _count(name: str, found: int, most: int) -> int:
  if found > most:
    raise ValueError(f'{name}={found:,}: must be at most {most:,}.')
  return found


def _value(key: str, kind: int, cursor: _Cursor) -> Any:
  """Returns a field's value."""
  if kind == _STRING:
    return cursor.text()
  if kind in _NUMBERS:
    return cursor.number(_NUMBERS[kind])
  if kind != _LIST:
    raise ValueError(f'{key}: has type {kind}, which is no type of GGUF.')
  inner, count = cursor.number('I'), cursor.number('Q')
  if inner in _NUMBERS:
    return list(cursor.numbers(_NUMBERS[inner], count))
  if inner != _STRING:
    raise ValueError(f'{key}: is a list of type {inner}, which is not read.')
  if 8 * count > cursor.size - cursor.place:
    raise ValueError(f'{key}: {count:,} strings do not fit into the file.')
  return [cursor.text() for _ in range(count)]


def _entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
  """Returns a tensor's name, shape, type and offset in the data."""
  name = cursor.text()
  dimensions = cursor.number('I')
  if not 1 <= dimensions <= _MOST_DIMENSIONS:
    raise ValueError(
      f'{name}: has {dimensions} dimensions, must have 1 to {_MOST_DIMENSIONS}.'
    )
  shape = cursor.numbers('Q', dimensions)[::-1]
  return name, shape, cursor.number('I'), cursor.number('Q')


def _place(
  path: pathlib.Path,
  entries: list[tuple[str, tuple[int, ...], int, int]],
  start: int,
  alignment: int,
  size: int,
) -> dict[str, shards.Stored]:
  """Returns the tensors, which lie in the data one behind another."""
  found, end = {}, 0
  for name, shape, kind, offset in sorted(entries, key=lambda one: one[3]):
    if name in found:
      raise ValueError(f'{name}: is there twice.')
    if offset % alignment or offset < end:
      raise ValueError(
        f'{name}: begins at byte {offset:,} of the data, must at a multiple of'
        f' {alignment} from {end:,} on.'
      )
    dtype = quantized.NAMES.get(kind, f'ggml type {kind}')
    stored = shards.Stored(name, path, dtype, shape, start + offset)
    if kind in quantized.NAMES:
      end = offset + math.prod(shape[:-1]) * shards.row_bytes(stored)
    if start + max(end, offset) > size:
      raise ValueError(f'{name}: ends behind the end of the file, {size:,}.')
    found[name] = stored
  return found
