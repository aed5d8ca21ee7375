"""Collects all texts of a stored value, in pieces for the gate.

There is no list of fields: any stored string may be shown one day, so the gate
reads every string in the value, including the keys of mappings.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
from typing import Any

# Below the default `gate.Settings.window`, so that a piece is one of its parts.
PIECE = 1_800
# Neighbouring pieces share so many characters, so that a shorter passage lies
# whole in one of them.
_OVERLAP = 300


def leaves(value: Any) -> Iterator[str]:
  """Yields the strings in a value of dataclasses, mappings and sequences."""
  if isinstance(value, str):
    yield value
  elif isinstance(value, Mapping):
    for name, each in value.items():
      yield from leaves(name)
      yield from leaves(each)
  elif isinstance(value, (list, tuple, set, frozenset)):
    for each in value:
      yield from leaves(each)
  elif dataclasses.is_dataclass(value):
    for field in dataclasses.fields(value):
      yield from leaves(getattr(value, field.name))


def pieces(value: Any) -> Iterator[str]:
  """Yields all strings in a value, as texts of at most `PIECE` characters.

  Short strings share a piece, one per line, so that many of them cost no more
  than one text of their total size. A long string is cut into pieces that
  overlap by 300 characters. Strings of white space are left out.
  """
  held, size = [], 0
  for leaf in leaves(value):
    step = PIECE - _OVERLAP
    for begin in range(0, max(len(leaf) - _OVERLAP, 1), step):
      part = leaf[begin : begin + PIECE]
      if held and size + len(part) > PIECE:
        yield '\n'.join(held)
        held, size = [], 0
      if part.strip():
        held.append(part)
        size += len(part) + 1
  if held:
    yield '\n'.join(held)
