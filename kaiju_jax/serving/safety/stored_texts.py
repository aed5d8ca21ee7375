"""Collects all texts of a stored value, for the gate.

There is no list of fields: any stored string may be shown one day, so the gate
reads every string in the value, including the keys of mappings.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
from typing import Any


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


def join(value: Any) -> str:
  """Returns all strings in a value as one text, one per line.

  Strings of white space are left out. The gate cuts the text (`gate.parts`).
  """
  return '\n'.join(leaf for leaf in leaves(value) if leaf.strip())
