"""Cells of a grid: an arm with one value of each --grid=FIELD=VALUE,VALUE.

A cell is named after its arm, if the config has several, and its values, as in
int8+model.window=16+model.layout=L0~G1. The name is that of its folder, so that
a space is a tilde. A value that is long, or has characters which a shell or a
file system may not like, becomes L0-32-G1~~3f2a9c1b, with dashes and a digest.
A name depends on no other cell.
"""

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import csv
import hashlib
import itertools
import re
from typing import NamedTuple

# FIELD=VALUE, joined by +, and the arm before them.
_NAME = re.compile(r'(?:(.*?)\+)??([\w.]+=[^+]*(?:\+[\w.]+=[^+]*)*)')
_WORDS = re.compile(r'(?:[A-Za-z0-9._-]+(?: [A-Za-z0-9._-]+)*)?')
_LONGEST, _LONGEST_NAME = 40, 200


class Cell(NamedTuple):
  """What is trained under one name."""

  name: str  # Of its folder, and in the report.
  config: str  # NAME or PATH of the config, with ':ARM' if it has one.
  arm: str  # The arm that the grid's values are added to; '' for none.
  words: tuple[str, ...] = ()  # --config.FIELD=VALUE of the grid.


def parse(grid: Sequence[str]) -> dict[str, list[str]]:
  """Returns {field: its values} of the texts of --grid.

  Commas part values. A value in double quotes keeps its commas, and a double
  quote in it is doubled, as in a line of CSV.

  Raises:
    ValueError: a text has another form, or repeats a field or a value.
  """
  found = {}
  for text in grid:
    field, equals, values = text.partition('=')
    if not equals or not re.fullmatch(r'[\w.]+', field):
      raise ValueError(f'--grid={text}: must be FIELD=VALUE,VALUE.')
    if field == 'seed':
      raise ValueError(f'--grid={text}: --seeds lists the seeds.')
    if field in found:
      raise ValueError(f'--grid={text}: {field} has values already.')
    try:
      [found[field]] = csv.reader([values], strict=True)
    except (csv.Error, ValueError) as error:
      raise ValueError(
        f'--grid={text}: {values!r} is no list; write "a,b",c for two values,'
        ' of which one has a comma.'
      ) from error
    if not values or len(set(found[field])) < len(found[field]):
      raise ValueError(f'--grid={text}: needs values, each once.')
  return found


def cross(
  config: str, arms: Mapping[str, str], grid: Mapping[str, Sequence[str]]
) -> dict[Cell, str]:
  """Returns {cell: the name of its baseline}, of each arm with each values.

  A grid's first values, at the baseline of the arm, are the baseline.

  Args:
    config: NAME or PATH of the config, with ':ARM' only where `arms` is empty.
    arms: {arm: its baseline}; empty for the one experiment of `config`.
    grid: {field: its values}.
  """
  found = {}
  first = [values[0] for values in grid.values()]
  for arm, baseline in (arms or {'': ''}).items():
    for values in itertools.product(*grid.values()):
      pairs = list(zip(grid, values))
      cell = Cell(
        _name(arm, pairs),
        f'{config}:{arm}' if arm else config,
        arm,
        tuple(f'--config.{field}={value}' for field, value in pairs),
      )
      found[cell] = _name(baseline, list(zip(grid, first)))
  return found


def split(name: str, arms: Collection[str] = ()) -> tuple[str, list[str]]:
  """Returns the arm and the fields that a cell's name has.

  One of `arms`, and any name of another form, is that of an arm.
  """
  found = _NAME.fullmatch(name)
  if name in arms or not found:
    return name, []
  fields = [word.partition('=')[0] for word in found[2].split('+')]
  return found[1] or '', fields


def _name(arm: str, pairs: Sequence[tuple[str, str]]) -> str:
  """Returns a cell's name; values are digests where it would be too long."""
  words = [f'{field}={_safe(value)}' for field, value in pairs]
  name = '+'.join([*([arm] if arm else []), *words])
  if len(name) <= _LONGEST_NAME:
    return name
  # Fields stay whole, because `split` reads them.
  words = [f'{field}=~~{_digest(value)}' for field, value in pairs]
  return '+'.join([*([arm] if arm else []), *words])


def _safe(value: str) -> str:
  """Returns a value as a part of a file's name, another one for each value."""
  if len(value) <= _LONGEST and _WORDS.fullmatch(value):
    return value.replace(' ', '~')
  safe = re.sub(r'[^A-Za-z0-9._-]+', '-', value)
  return f'{safe[:_LONGEST]}~~{_digest(value)}'


def _digest(value: str) -> str:
  return hashlib.sha256(value.encode()).hexdigest()[:8]
