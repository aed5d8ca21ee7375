"""Reads two models' calibrations, and says which tensors moved."""

from collections.abc import Iterator
from collections.abc import Sequence

from kaiju_jax.evaluation.gate import calibrations
from kaiju_jax.runs import load
from kaiju_jax.runs import report


def measure(before: str, after: str) -> list[calibrations.Moved]:
  """Returns how each tensor's calibration moved between two models.

  Args:
    before, after: workdirs, exports or Hugging Face folders; the last are read
      as they are served, all in int8.

  Raises:
    OSError: a model cannot be read.
    ValueError: as `load.base` and `calibrations.compare`; or neither model has
      a calibration.
  """
  found = calibrations.compare(*map(_read, (before, after)))
  if not found:
    raise ValueError(
      f'calibration_diff={before},{after}: neither has int8 weights or limits.'
    )
  return found


def _read(path: str) -> calibrations.Calibration:
  return calibrations.read(load.base(path, 'float32').params)


def tables(
  moved: Sequence[calibrations.Moved], before: str, after: str
) -> Iterator[str]:
  """Yields the lines of a table of what moved too far, in Markdown."""
  beyond = [one for one in moved if one.is_beyond]
  yield f'# Calibration of {after} against {before}'
  yield ''
  yield (
    f'{len(beyond)} of {len(moved)} tensors moved by more than'
    f' {calibrations.MEDIAN:g} times in the median channel or'
    f' {calibrations.CHANNEL:g} times in one, or have more outlier channels.'
  )
  if not beyond:
    return
  yield ''
  yield from report.markdown(
    ('layer', 'tensor', 'median factor', 'largest factor', 'outlier channels'),
    [
      (
        'tables' if one.layer < 0 else one.layer,
        one.name,
        f'{one.median:.3g}',
        f'{one.largest:.3g}',
        f'{one.before} → {one.after}',
      )
      for one in beyond
    ],
  )
