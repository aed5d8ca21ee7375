"""Reads and writes metrics.jsonl, a run's measurements, one record per line.

    {"step": 20, "tokens": 81920, "loss": 2.25, …, "tokens_per_second": 51e3}

`loss` and the other metrics are values of that one step, not means over an
interval, so that a resumed run writes the same records as an uninterrupted one.
Only those of `TIMING` are measurements of this machine:

    tokens_per_second              row tokens, padding included, of all devices
    tokens_per_second_per_device   the same over the devices that train
    step_seconds                   seconds per step since the record before
    mfu                            the seconds at a known chip's peaks, bf16's
                                   and int8's apart, over those it took
    peak_bytes                     the most memory in use on one local device

`padding` is the share of the step's row places without tokens. An evaluation is
a separate record at the same step, and its names begin with 'eval_'. JSON has
no NaN: values that are not finite are the strings "NaN", "Infinity" and
"-Infinity", which Python's and JavaScript's number parsers and `read`
understand.
"""

from collections.abc import Mapping
import json
import math
import os
import pathlib
from typing import Any

from kaiju_jax.storage import files

FILE = 'metrics.jsonl'
TIMING = (
  'tokens_per_second',
  'tokens_per_second_per_device',
  'step_seconds',
  'mfu',
  'peak_bytes',
)


class Records:
  """A writer that appends records to a workdir's metrics.jsonl.

  Opening cuts the file back to `last_step`, because later records, and a line
  that a kill cut in half, belong to lost work. The cut is a truncation, which
  neither a kill nor a full disk can leave half done.
  """

  def __init__(self, folder: pathlib.Path, last_step: int):
    self._path = folder / FILE
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    with files.writing(str(self._path)):
      self._file = os.open(self._path, flags, 0o644)
      os.ftruncate(self._file, _end_of(self._path, last_step))

  def append(
    self, step: int, tokens: float, values: Mapping[str, float]
  ) -> None:
    """Writes one record.

    Raises:
      OSError: the disk is full; earlier records stay whole.
      ValueError: a value is named 'step' or 'tokens'.
    """
    taken = {'step', 'tokens'} & values.keys()
    if taken:
      raise ValueError(f"metric {sorted(taken)}: the name is the record's own.")
    record = {'step': step, 'tokens': tokens, **values}
    line = json.dumps(
      {name: _jsonable(value) for name, value in record.items()},
      allow_nan=False,
    )
    with files.writing(f'the record of step {step} to {self._path}'):
      files.append(self._file, line.encode() + b'\n')

  def sync(self) -> None:
    """Waits until the records are on the disk, not only in the kernel."""
    with files.writing(str(self._path)):
      os.fsync(self._file)

  def close(self) -> None:
    """Closes the file."""
    os.close(self._file)


def read(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
  """Returns a workdir's records, with all values as numbers.

  It skips an unfinished last line.

  Raises:
    OSError: the file is missing or cannot be read.
    ValueError: a finished line is not a record.
  """
  path = pathlib.Path(folder) / FILE
  records = []
  for number, line in enumerate(path.read_bytes().splitlines(True), 1):
    record = _parse(line)
    if record is not None:
      records.append(record)
    elif line.endswith(b'\n'):
      raise ValueError(f'{path}:{number}: not a record: {line[:80]!r}')
  return records


def _end_of(path: pathlib.Path, last_step: int) -> int:
  """Returns the offset after the last whole record up to `last_step`."""
  end = offset = 0
  for line in path.read_bytes().splitlines(True):
    offset += len(line)
    record = _parse(line)
    if record is not None and record['step'] <= last_step:
      end = offset
  return end


def _parse(line: bytes) -> dict[str, Any] | None:
  """Returns a line's record; None if the line is not a whole record."""
  if not line.endswith(b'\n'):
    return None
  try:
    record = json.loads(line)
    if not isinstance(record['step'], int):
      return None
    return {
      name: float(value) if isinstance(value, str) else value
      for name, value in record.items()
    }
  except (ValueError, TypeError, KeyError, AttributeError):
    return None


def _jsonable(value: float) -> float | str:
  if isinstance(value, int):
    return value
  value = float(value)
  if math.isnan(value):
    return 'NaN'
  if math.isinf(value):
    return 'Infinity' if value > 0 else '-Infinity'
  return value
