"""Reads numbers and flags that a card may spell as text."""

import math
from typing import Any


def number(value: Any) -> float | None:
  """Returns the finite number that a value is or spells; None for none."""
  if isinstance(value, bool):
    return None
  try:
    found = float(value)
  except (TypeError, ValueError, OverflowError):
    return None
  return found if math.isfinite(found) else None


def flag(value: Any) -> bool | None:
  """Returns whether a value is or spells true or false; None for neither."""
  if isinstance(value, bool):
    return value
  if isinstance(value, str):
    word = value.strip().lower()
    if word in ('true', 'yes', 'on', '1'):
      return True
    return False if word in ('false', 'no', 'off', '0', '') else None
  found = number(value)
  return None if found is None else found != 0
