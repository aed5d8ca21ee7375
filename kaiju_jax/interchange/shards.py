"""Reads safetensors files of other tools: headers first, then data in blocks.

    header   8 bytes, its length; JSON {name: dtype, shape, data_offsets}
    data     the tensors, back to back, to the end of the file

Every header is checked against its file before any data is read. Data passes
through one small buffer, not through a map of the file, whose pages would count
as resident memory.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import math
import os
import pathlib
from typing import Any
from typing import BinaryIO
from typing import NamedTuple

import ml_dtypes
import numpy as np

from kaiju_jax.interchange import quantized
from kaiju_jax.storage import files
from kaiju_jax.storage import strict_json

WEIGHTS = 'model.safetensors'
INDEX = 'model.safetensors.index.json'
DTYPES = {
  'F32': np.dtype(np.float32),
  'BF16': np.dtype(ml_dtypes.bfloat16),
  'F16': np.dtype(np.float16),
}
_BLOCK = 2**20  # Elements; 4 MiB in float32.
_LONGEST_HEADER = 100_000_000  # Bytes, as in the safetensors library.
# The bits of the exponent; all are set in NaN and infinities.
_EXPONENTS = {'F32': 0x7F800000, 'BF16': 0x7F80, 'F16': 0x7C00}
_LINKED = ('.json', '.jinja', '.safetensors')


class Stored(NamedTuple):
  """A tensor in a file."""

  name: str  # Its name in the file.
  file: pathlib.Path  # The file.
  dtype: str  # Such as 'BF16'.
  shape: tuple[int, ...]  # Its shape.
  offset: int  # Its first byte in the file.
  # Rows of a head whose rotary pairs lie beside each other, which `blocks` puts
  # K/2 apart; 0 for none.
  paired: int = 0

  @property
  def matrix(self) -> tuple[int, int]:
    """The shape as rows and columns; a vector is one row."""
    return (1, *self.shape)[-2:] if self.shape else (1, 1)


def refuse_links(folder: pathlib.Path) -> None:
  """Refuses links that leave a folder for any other place than its hub cache.

  A snapshot in a hub's cache holds links to ../../blobs/.

  Raises:
    ValueError: names the link and its target.
  """
  root = folder.resolve()
  for path in sorted(root.iterdir()):
    if path.suffix not in _LINKED or not path.is_symlink():
      continue
    target = path.resolve()
    is_blob = (
      root.parent.name == 'snapshots'
      and target.parent == root.parent.parent / 'blobs'
    )
    if not (is_blob or target.is_relative_to(root)):
      raise ValueError(
        f'{path.name}: links to {os.readlink(path)!r}, outside of the folder;'
        ' must be a file of the folder, or link to ../../blobs/ of its cache.'
      )


def list_tensors(folder: pathlib.Path) -> list[Stored]:
  """Returns all tensors of a folder, from the headers of its files.

  Raises:
    FileNotFoundError: a file is missing.
    ValueError: names the file that is not whole, or what the index says wrong.
  """
  if (folder / WEIGHTS).exists() or not (folder / INDEX).exists():
    return read_header(_existing(folder / WEIGHTS))
  index = _read_index(folder / INDEX)
  found = []
  for file in sorted(set(index.values())):
    named = {tensor for tensor, name in index.items() if name == file}
    held = read_header(_existing(folder / file, len(named)))
    found += held
    for tensor in sorted(named - {one.name for one in held}):
      raise ValueError(
        f'{file}: has no tensor {tensor!r}, which {INDEX} says it has.'
      )
  return found


def _existing(path: pathlib.Path, named: int = 0) -> pathlib.Path:
  """Returns the path of a file with weights; see `list_tensors`."""
  if path.is_file():
    return path
  if named:
    raise FileNotFoundError(
      f'{path}: not found, named by {INDEX} for {named:,} tensors.'
    )
  others = sorted(path.parent.glob('pytorch_model*.bin'))
  if others:
    raise FileNotFoundError(
      f'{others[0]}: not read, because such a file can run code; weights must'
      ' be saved as safetensors.'
    )
  raise FileNotFoundError(
    f'{path}: not found; weights must be safetensors, {WEIGHTS} or the files of'
    f' {INDEX}.'
  )


def _read_index(index: pathlib.Path) -> dict[str, str]:
  """Returns {tensor: the file in the same folder that holds it}."""
  data = files.read_json(index)
  if not isinstance(data, dict):
    raise ValueError(f'{index.name}: must hold an object with weight_map.')
  names = data.get('weight_map')
  if not isinstance(names, dict) or not names:
    raise ValueError(
      f'{index.name}: weight_map={names!r}: must be an object that names the'
      ' file of each tensor.'
    )
  for tensor, name in names.items():
    if not isinstance(name, str) or not _is_beside(name):
      raise ValueError(
        f'{index.name}: weight_map[{tensor!r}]={name!r}: must be the name of a'
        ' file in the same folder.'
      )
  return names


def _is_beside(name: str) -> bool:
  """Returns whether a name is a plain file name: no path, and not empty."""
  return name not in ('', '.', '..') and not set(name) & {'/', '\\', '\0'}


def read_header(path: pathlib.Path) -> list[Stored]:
  """Returns the tensors of one file, whose header must fill it exactly.

  Raises:
    OSError: the file cannot be read.
    ValueError: names the file and what is wrong with it.
  """
  size = path.stat().st_size
  with open(path, 'rb') as file:
    length = int.from_bytes(file.read(8), 'little')
    if size < 8 or length > min(size - 8, _LONGEST_HEADER):
      raise _broken(path, f'a header of {length:,} bytes in {size:,}')
    text = file.read(length)
  try:
    header = strict_json.read(text, strict_json.DEPTH, strict_json.VALUES)
  except ValueError as error:
    raise _broken(path, f'its header is not valid JSON ({error})') from None
  if not isinstance(header, dict):
    raise _broken(path, 'its header is not an object')
  header.pop('__metadata__', None)
  found, ends = [], [0]
  for name, entry in sorted(header.items(), key=_first_byte):
    dtype, shape, first, end = _parse(path, name, entry)
    if first != ends[-1]:
      raise _broken(
        path, f'{name}: data_offsets begin at {first}, must at {ends[-1]}'
      )
    width = DTYPES[dtype].itemsize if dtype in DTYPES else None
    if width and end - first != math.prod(shape) * width:
      raise _broken(
        path,
        f'{name}: data_offsets hold {end - first:,} bytes, {dtype} of shape'
        f' {list(shape)} has {math.prod(shape) * width:,}',
      )
    ends.append(end)
    found.append(Stored(name, path, dtype, shape, 8 + length + first))
  if size != 8 + length + ends[-1]:
    raise _broken(
      path,
      f'it has {size:,} bytes, its header asks for {8 + length + ends[-1]:,}',
    )
  return found


def _first_byte(item: tuple[str, Any]) -> tuple[int, int]:
  """Returns an order of a header's entries; malformed ones come first."""
  entry = item[1]
  offsets = entry.get('data_offsets') if isinstance(entry, dict) else None
  is_pair = isinstance(offsets, list) and len(offsets) == 2
  if not is_pair or any(type(one) is not int for one in offsets):
    return -1, -1
  return offsets[0], offsets[1]


def _parse(
  path: pathlib.Path, name: str, entry: Any
) -> tuple[str, tuple[int, ...], int, int]:
  """Returns dtype, shape, first and last byte of an entry of a header."""
  entry = entry if isinstance(entry, dict) else {}
  dtype, shape, offsets = map(entry.get, ('dtype', 'shape', 'data_offsets'))
  if not isinstance(dtype, str):
    raise _broken(path, f'{name}: dtype={dtype!r}, must be a string')
  for field, value in ('shape', shape), ('data_offsets', offsets):
    is_list = isinstance(value, list) and all(type(x) is int for x in value)
    if not is_list or any(x < 0 for x in value):
      raise _broken(path, f'{name}: {field}={value!r}, must be counts')
  if len(offsets) != 2 or offsets[0] > offsets[1]:
    raise _broken(path, f'{name}: data_offsets={offsets}, must be two in order')
  return dtype, tuple(shape), offsets[0], offsets[1]


def _broken(path: pathlib.Path, why: str) -> ValueError:
  return ValueError(f'{path.name}: not a whole safetensors file: {why}.')


def row_bytes(stored: Stored) -> int:
  """Returns the bytes of a tensor's row.

  Raises:
    ValueError: the row is no whole number of its type's blocks.
  """
  columns = stored.matrix[1]
  numbers, size = quantized.SIZES.get(stored.dtype) or (
    1,
    DTYPES[stored.dtype].itemsize,
  )
  if columns % numbers:
    raise ValueError(
      f'{stored.name}: has rows of {columns:,} numbers, must have a multiple of'
      f' {numbers} as {stored.dtype}.'
    )
  return columns // numbers * size


def blocks(
  stored: Stored, size: int | None = None
) -> Iterator[tuple[int, np.ndarray]]:
  """Yields the number of a block's first row, and its rows.

  A block has the tensor's dtype, or float32 if that is quantized, and is valid
  until the next one: all share a buffer. All but the last have as many rows.

  Args:
    stored: the tensor.
    size: rows of a block; by default `block_rows`.

  Raises:
    ValueError: an element is not finite, the file has become shorter, or see
      `quantized.dequantize`.
  """
  rows, columns = stored.matrix
  size = size or block_rows(stored)
  buffer = np.empty((min(size, rows), row_bytes(stored)), np.uint8)
  with open(stored.file, 'rb', buffering=0) as file:
    file.seek(stored.offset)
    for first in range(0, rows, size):
      raw = buffer[: rows - first]
      fill(file, raw, stored)
      if stored.dtype in DTYPES:
        block = raw.view(DTYPES[stored.dtype])
      else:
        block = quantized.dequantize(raw, stored.dtype)
      _refuse_not_finite(stored, first, block)
      if stored.paired:
        pairs = block.reshape(-1, stored.paired // 2, 2, columns)
        block = pairs.swapaxes(1, 2).reshape(block.shape)
      yield first, block


def block_rows(stored: Stored) -> int:
  """Returns the rows of a block of a tensor: whole heads, and at least one."""
  together = max(stored.paired, 1)
  columns = max(stored.matrix[1], 1)
  return max(1, _BLOCK // columns // together) * together


def fill(file: BinaryIO, block: np.ndarray, stored: Stored) -> None:
  """Reads the next bytes of a tensor's file into an array.

  Raises:
    ValueError: the file has become shorter.
  """
  left = memoryview(block.view(np.uint8).reshape(-1))
  while left:
    count = file.readinto(left)
    if not count:
      raise _broken(stored.file, f'{stored.name}: it ends within the tensor')
    left = left[count:]


def _refuse_not_finite(stored: Stored, first: int, block: np.ndarray) -> None:
  """Refuses NaN and infinities, which would silently reach every logit."""
  exponent = _EXPONENTS.get(stored.dtype, _EXPONENTS['F32'])
  bits = block.view(f'u{block.dtype.itemsize}') & exponent
  if not bits.size or bits.max() != exponent:
    return
  row, column = np.argwhere(bits == exponent)[0]
  place = [int(first + row), int(column)][-len(stored.shape) :]
  raise ValueError(
    f'{stored.name}: holds {block[row, column]} at {place}; must be finite'
    ' everywhere.'
  )


def equals(
  one: Stored,
  other: Stored,
  change: Callable[[np.ndarray], np.ndarray] | None = None,
) -> bool:
  """Returns whether two tensors have equal float32 values.

  Args:
    one: a tensor.
    other: another; `change`, if given, applies to its float32 blocks.
    change: see `other`.
  """
  if one.shape != other.shape:
    return False
  for (_, a), (_, b) in zip(blocks(one), blocks(other)):
    b = b.astype(np.float32)
    if not np.array_equal(a.astype(np.float32), change(b) if change else b):
      return False
  return True


def dtype_of(found: Mapping[str, Stored]) -> str:
  """Returns 'bfloat16' if all tensors are, otherwise 'float32'."""
  is_bfloat16 = {one.dtype for one in found.values()} == {'BF16'}
  return 'bfloat16' if is_bfloat16 else 'float32'
