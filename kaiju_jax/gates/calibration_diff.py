"""Compares the calibrations of two models, or the texts of calibrations."""

from collections.abc import Iterator
from collections.abc import Sequence
import pathlib
from typing import Any
from typing import NamedTuple

from kaiju_jax.data import conversations as conversations_lib
from kaiju_jax.evaluation.gate import calibration_changes
from kaiju_jax.evaluation.gate import calibration_texts
from kaiju_jax.reporting import report
from kaiju_jax.runs import load


class Diff(NamedTuple):
  """What differs."""

  figures: Any  # Plain data.
  parts: list[report.Table | str]  # Of a page.


def measure(before: str, after: str) -> Diff:
  """Compares two models' calibrations, or the texts of two calibrations.

  Args:
    before, after: workdirs, exports or Hugging Face folders; the last are read
      as they are served, all in int8. Or two JSONL files of conversations
      (`data/conversations.py`).

  Raises:
    OSError: a model or file cannot be read.
    ValueError: as `load.base`, `calibration_changes.compare` and
      `conversations.read`; one is a file and the other is not; or neither
      model has a calibration.
  """
  are_files = [pathlib.Path(one).is_file() for one in (before, after)]
  title = f'# Calibration of {after} against {before}'
  if any(are_files):
    if not all(are_files):
      raise ValueError(
        f'calibration_diff={before},{after}: must be two models, or two files'
        ' of conversations.'
      )
    both = (
      calibration_texts.count(conversations_lib.read(x, 'calibration_diff'))
      for x in (before, after)
    )
    return _compare_texts(title, *both)
  moved = calibration_changes.compare(*map(_read, (before, after)))
  if not moved:
    raise ValueError(
      f'calibration_diff={before},{after}: neither has int8 weights or limits.'
    )
  return Diff(report.plain(moved), [title, *_tabulate(moved)])


def _read(path: str) -> calibration_changes.Calibration:
  return calibration_changes.read(load.base(path, 'float32').params)


def _compare_texts(
  title: str, before: calibration_texts.Texts, after: calibration_texts.Texts
) -> Diff:
  found = calibration_texts.compare(before, after)
  shares = before.roleplay, after.roleplay
  said = f'{shares[0]:.1%} → {shares[1]:.1%} of the replies are a character’s'
  fell = shares[0] - shares[1] > calibration_texts.FALL
  said += ': roleplay has become rarer.' if fell else '.'
  table = report.Table(
    [
      (
        name,
        f'{one.before:.1%}',
        f'{one.after:.1%}',
        None if one.kl is None else f'{one.kl:.3g}',
      )
      for name, one in found.items()
    ],
    ('words', 'before', 'after', 'KL(after ‖ before), nats'),
  )
  figures = {'roleplay': shares, 'classes': found}
  return Diff(report.plain(figures), [title, said, table])


def _tabulate(
  moved: Sequence[calibration_changes.Moved],
) -> Iterator[report.Table | str]:
  """Yields how many tensors moved too far, and their table."""
  beyond = [one for one in moved if one.is_beyond]
  yield (
    f'{len(beyond)} of {len(moved)} tensors moved by more than'
    f' {calibration_changes.MEDIAN:g} times in the median channel or'
    f' {calibration_changes.CHANNEL:g} times in one, or have more outlier'
    ' channels.'
  )
  if not beyond:
    return
  yield report.Table(
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
    ('layer', 'tensor', 'median factor', 'largest factor', 'outlier channels'),
  )
