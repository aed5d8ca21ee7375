"""Labelled texts: a JSONL file, and its split into three.

    {"text": "…", "labels": {"violence": true, "self_harm": false},
     "age": "minor"}

A row labels every dimension. `age` is the row's tier; without it, both. Texts
with the same skeleton (`serving/safety/reading.py`) count as one: they go to
the same part, and one of them is kept per tier, because one text counted twice
is not two trials.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import hashlib
import json
from typing import Any

import numpy as np

from kaiju_jax.data import reading as reading_lib
from kaiju_jax.serving.safety import gate as gate_lib
from kaiju_jax.serving.safety import reading
from kaiju_jax.serving.safety import thresholds
from kaiju_jax.storage import strict

PARTS = 'train', 'choose', 'certify'


@dataclasses.dataclass(frozen=True)
class Row:
  """One labelled text."""

  text: str
  labels: tuple[bool, ...]  # Per dimension, whether the text is a violation.
  # The tiers that the row belongs to.
  tiers: tuple[str, ...] = thresholds.TIERS


@dataclasses.dataclass(frozen=True)
class Rows:
  """Texts that are labelled along the dimensions `names`."""

  names: tuple[str, ...]
  rows: tuple[Row, ...]

  def for_tier(self, tier: str) -> 'Rows':
    """Returns the rows of a tier."""
    return Rows(
      self.names, tuple(row for row in self.rows if tier in row.tiers)
    )

  @property
  def label_NC(self) -> np.ndarray:
    """The labels, bool [N, C]."""
    labels = [row.labels for row in self.rows]
    return np.array(labels, bool).reshape(len(labels), len(self.names))

  @property
  def digest(self) -> str:
    """SHA-256 of texts, labels and tiers; the rows' order does not matter."""
    each = sorted(
      hashlib.sha256(json.dumps(dataclasses.astuple(row)).encode()).digest()
      for row in self.rows
    )
    return hashlib.sha256(
      json.dumps(self.names).encode() + b''.join(each)
    ).hexdigest()


def read(path: str) -> Rows:
  """Returns a file's rows.

  Raises:
    OSError: the file cannot be read.
    ValueError: names the line, the field, its value and what would be right.
  """
  names: tuple[str, ...] = ()

  def parse(data: Any) -> Row:
    nonlocal names
    names, row = _row(data, names)
    return row

  rows = tuple(reading_lib.parse_lines(path, parse))
  if not rows:
    raise ValueError(f'{path}: holds no rows.')
  gate_lib.check_names(f'{path}: labels', names)
  return Rows(names, rows)


def skeleton(text: str) -> str:
  """Returns what texts that count as one text share."""
  return reading.skeleton(reading.plain(text))


def split(
  rows: Rows,
  choose: float,
  certify: float,
  seed: int,
  groups: Mapping[str, str] | None = None,
) -> dict[str, Rows]:
  """Splits rows into the three parts `PARTS`, without copies.

  A text's part depends only on its skeleton and the seed, so that added texts
  do not move it.

  Args:
    rows: all rows.
    choose: the share on which thresholds are chosen, 0…1.
    certify: the share on which they are counted. The rest trains.
    seed: of the split.
    groups: names of groups by text; a group goes to one part.

  Raises:
    ValueError: a share is not above 0, the two are more than all texts, or two
      texts of one skeleton and tier have different labels.
  """
  if not (choose > 0 and certify > 0 and choose + certify <= 1):
    raise ValueError(
      f'choose={choose}, certify={certify}: both must be above 0, and their sum'
      ' at most 1.'
    )
  parts: dict[str, list[Row]] = {part: [] for part in PARTS}
  for shared, row in _without_copies(rows.rows):
    group = (groups or {}).get(row.text) or shared
    digest = hashlib.blake2b(
      group.encode(), digest_size=8, key=str(seed).encode()
    ).digest()
    place = int.from_bytes(digest, 'big') / 2**64
    part = 0 if place >= choose + certify else 1 if place >= certify else 2
    parts[PARTS[part]].append(row)
  return {part: Rows(rows.names, tuple(found)) for part, found in parts.items()}


def _without_copies(rows: Sequence[Row]) -> Iterable[tuple[str, Row]]:
  """Yields (skeleton, row), each skeleton once per tier."""
  known: dict[tuple[str, str], Row] = {}
  for row in rows:
    shared = skeleton(row.text)
    tiers = []
    for tier in row.tiers:
      first = known.setdefault((shared, tier), row)
      if first.labels != row.labels:
        raise ValueError(
          f'{row.text!r} and {first.text!r} read the same, with different'
          f' labels for the tier {tier}.'
        )
      if first is row:
        tiers.append(tier)
    if tiers:
      yield shared, dataclasses.replace(row, tiers=tuple(tiers))


def tiers_of(age: Any) -> tuple[str, ...]:
  """Returns the tiers of an age, both for None (ValueError if unknown)."""
  if age is None:
    return thresholds.TIERS
  if age not in thresholds.TIERS:
    raise ValueError(
      f'age={age!r}: must be one of {", ".join(thresholds.TIERS)}, or missing.'
    )
  return (age,)


@dataclasses.dataclass(frozen=True)
class _Line:
  text: str
  labels: dict[str, bool]
  age: str | None = None


def _row(data: Any, names: tuple[str, ...]) -> tuple[tuple[str, ...], Row]:
  line = strict.parse(_Line, data)
  labels = line.labels
  if not all(isinstance(label, bool) for label in labels.values()):
    raise ValueError(f'labels={labels!r}: must be true or false per dimension.')
  names = names or tuple(sorted(labels))
  if set(labels) != set(names):
    raise ValueError(
      f'labels={labels!r}: every row must label {", ".join(names)}.'
    )
  labels = tuple(labels[name] for name in names)
  return names, Row(line.text, labels, tiers_of(line.age))
