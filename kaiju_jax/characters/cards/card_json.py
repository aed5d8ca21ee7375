"""Reads a card's JSON within bounds of size, depth and number of values.

Numbers and flags of a card may be spelled as text (`number`, `flag`).
"""

import codecs
import json
import math
from typing import Any

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.storage import strict_json

BYTES = 2**20
# An export writes `Lore.other` under six levels of its own.
DEPTH = card_fields.DEPTH + 6
VALUES = 24_000  # The most commas, lists and objects together.
_ENCODER = json.JSONEncoder(ensure_ascii=False)


class CardError(ValueError):
  """A card that is refused.

  Attributes:
    fault: the fault's name: 'size', 'signature', 'truncated',
      'checksum', 'chunks', 'picture', 'missing', 'ambiguous', 'base64',
      'inflated', 'encoding', 'json', 'depth', 'values', 'number', 'duplicate',
      'spec', 'entries', or one of `card_fields.FieldError`.
  """

  def __init__(self, fault: str, message: str):
    super().__init__(message)
    self.fault = fault


def read(data: bytes) -> tuple[Any, list[str]]:
  """Returns the value of a JSON text, and notes on what was changed in it.

  Raises:
    CardError: the text is too large, or `strict_json.read` refuses it.
  """
  if len(data) > BYTES:
    raise CardError(
      'size', f'the JSON has {len(data):,} bytes: at most {BYTES:,}.'
    )
  # Some editors write a byte-order mark before the text.
  data = data.removeprefix(codecs.BOM_UTF8)
  try:
    value = strict_json.read(
      data, DEPTH, VALUES, is_wide=True, may_be_half=True
    )
  except strict_json.Refused as error:
    raise CardError(error.fault, f'the JSON is refused: {error}.') from None
  if b'\\ud' not in data.lower():
    return value, []
  whole = _replace_halves(value)
  if whole == value:
    return value, []
  return whole, ['the JSON: halves of characters (surrogates), replaced']


def size(value: Any) -> int:
  """Returns the number of characters of a value as JSON."""
  return len(_ENCODER.encode(value))


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


def _replace_halves(value: Any) -> Any:
  """Returns a JSON value with U+FFFD for each half of a character."""
  if isinstance(value, str):
    code = value.encode('utf-16-le', 'surrogatepass')
    return code.decode('utf-16-le', 'replace')
  if isinstance(value, list):
    return list(map(_replace_halves, value))
  if isinstance(value, dict):
    return {_replace_halves(key): _replace_halves(value[key]) for key in value}
  return value
