"""Reads a card's JSON within bounds of size, depth and number of values."""

import codecs
from typing import Any

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.storage import strict_json

BYTES = 2**20
DEPTH = card_fields.DEPTH
VALUES = 24_000  # The most commas, lists and objects together.


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


def read(data: bytes) -> Any:
  """Returns the value of a JSON text.

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
    return strict_json.read(data, DEPTH, VALUES, is_wide=True)
  except strict_json.Refused as error:
    raise CardError(error.fault, f'the JSON is refused: {error}.') from None
