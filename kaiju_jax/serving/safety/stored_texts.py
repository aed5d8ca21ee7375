"""All texts of a value that is stored, in pieces that the gate reads whole.

Nobody lists here which fields a character has: whatever is stored may be shown
one day, so that every string in it is read, and the names of objects too.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
from typing import Any

# The gate reads the last 2,000 characters of a text.
PIECE = 1_800
# What stands across two pieces stands whole in one of them, up to this length.
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
  """Yields texts of at most `PIECE` characters: all strings in a value.

  Short strings stand together, one per line, so that many of them cost no more
  than one text of their size. A long one is cut, and what is within 300
  characters of it stands whole in a piece.
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
