"""Decisions of quality gates: passed, refused, or not evaluated.

A gate compares a candidate with its limits, and each comparison is a `Check`.
A gate passes if every check passes, and is not evaluated if it has none: what
nobody measured is never promoted. A command that ends in a decision exits with

    0  passed
    3  refused: the figures say no
    4  not evaluated: figures are missing, stale, or too few to say anything

and no flag turns 4 into 0. Status 1 stays that of errors. The decision is
written as one JSON file, with SHA-256 hashes of what it was made from.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import hashlib
import pathlib
import sys
from typing import Any

from kaiju_jax.storage import files

FORMAT = 'kaiju_jax decision 1'
FILE = 'decision.json'
PASSED, REFUSED, NOT_EVALUATED = 'passed', 'refused', 'not evaluated'
_EXIT = {PASSED: 0, REFUSED: 3, NOT_EVALUATED: 4}
_FIELDS = 'name', 'status', 'reasons', 'figures', 'inputs'


@dataclasses.dataclass(frozen=True)
class Check:
  """One comparison of a figure with its limit."""

  status: str  # `PASSED`, `REFUSED` or `NOT_EVALUATED`.
  reason: str = ''  # Why it did not pass, as a sentence; '' if it passed.

  def __post_init__(self) -> None:
    _check_status(self.status)
    if (self.status == PASSED) == bool(self.reason):
      raise ValueError(
        f'reason={self.reason!r}: a check that passed has none, any other one'
        ' has.'
      )


def refuse_if(is_wrong: bool, reason: str) -> Check:
  """Returns a check that refuses for `reason`, or passes."""
  return Check(REFUSED, reason) if is_wrong else Check(PASSED)


def abstain(reason: str) -> Check:
  """Returns a check that was not evaluated, for `reason`."""
  return Check(NOT_EVALUATED, reason)


def check_at_most(
  interval: Any, limit: float, refused: str, unclear: str
) -> Check:
  """Returns whether an interval shows that a figure is at most `limit`.

  Args:
    interval: with the ends `low` and `high`.
    limit: the figure's limit.
    refused: the reason if the whole interval is above the limit.
    unclear: the reason if the limit lies within it.
  """
  if interval.low > limit:
    return Check(REFUSED, refused)
  return abstain(unclear) if interval.high > limit else Check(PASSED)


@dataclasses.dataclass(frozen=True)
class Decision:
  """The result of a gate."""

  name: str  # The gate.
  status: str  # `PASSED`, `REFUSED` or `NOT_EVALUATED`.
  reasons: tuple[str, ...]  # The reasons of all checks that did not pass.
  figures: Mapping[str, Any]  # What was measured, as plain data.
  inputs: Mapping[str, str]  # SHA-256 by the name of what was read.

  @property
  def exit_status(self) -> int:
    """The exit status of a command that ends in this decision."""
    return _EXIT[self.status]

  def __str__(self) -> str:
    return ' '.join((f'{self.name}: {self.status}.', *self.reasons))


def decide(
  name: str,
  checks: Sequence[Check],
  figures: Mapping[str, Any],
  inputs: Mapping[str, str],
) -> Decision:
  """Returns the decision of a gate's checks.

  One refusal refuses, whatever else was not evaluated.
  """
  found = {check.status for check in checks} or {NOT_EVALUATED}
  status = next(one for one in (REFUSED, NOT_EVALUATED, PASSED) if one in found)
  reasons = tuple(check.reason for check in checks if check.reason)
  if not checks:
    reasons = ('Nothing was checked.',)
  return Decision(name, status, reasons, figures, inputs)


def finish(decision: Decision) -> None:
  """Ends a command: says why a gate did not pass, with its exit status.

  Raises:
    SystemExit: the gate did not pass; status 3 or 4.
  """
  if decision.exit_status:
    print(decision, file=sys.stderr)
    raise SystemExit(decision.exit_status)


def write(path: pathlib.Path, decision: Decision) -> None:
  """Writes a decision as JSON, whole or not at all."""
  files.write_json(
    path, {'format': FORMAT, **{x: getattr(decision, x) for x in _FIELDS}}
  )


def load(path: pathlib.Path) -> Decision:
  """Returns the decision in a file that `write` wrote.

  Raises:
    OSError: the file is missing or cannot be read.
    ValueError: names the field, its value and what would be right.
  """
  data = files.read_json(path)
  if not isinstance(data, dict) or data.get('format') != FORMAT:
    found = data.get('format') if isinstance(data, dict) else data
    raise ValueError(f'{path}: format={found!r}: must be {FORMAT!r}.')
  if wrong := sorted(data.keys() ^ {'format', *_FIELDS}):
    raise ValueError(
      f'{path}: {wrong[0]}: the fields must be format, {", ".join(_FIELDS)}.'
    )
  del data['format']
  wanted = str, str, list, dict, dict
  for field, kind in zip(_FIELDS, wanted):
    if not isinstance(data[field], kind):
      raise ValueError(f'{path}: {field}={data[field]!r}: has another type.')
  try:
    _check_status(data['status'])
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from None
  return Decision(**{**data, 'reasons': tuple(data['reasons'])})


def digest(path: pathlib.Path) -> str:
  """Returns the SHA-256 of a file, or of a folder's files and their names.

  Raises:
    OSError: it is missing or cannot be read.
  """
  if path.is_file():
    with path.open('rb') as file:
      return hashlib.file_digest(file, 'sha256').hexdigest()
  each = [
    f'{digest(one)} {one.relative_to(path).as_posix()}\n'
    for one in sorted(path.rglob('*'))
    if one.is_file()
  ]
  if not each:
    raise FileNotFoundError(f'{path}: no file, and no folder with files.')
  return hashlib.sha256(''.join(each).encode()).hexdigest()


def _check_status(status: str) -> None:
  if status not in _EXIT:
    raise ValueError(f'status={status!r}: must be one of {", ".join(_EXIT)}.')
