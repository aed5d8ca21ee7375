"""JSON of strangers, read within bounds of depth, time and memory.

What a parser would build is counted before it builds it: a megabyte of '[],[],'
would become thirty, and a deep one overflows the stack.
"""

import json
import math
import re
from typing import Any

from kaiju_jax.serving.cards import card_fields

BYTES = 2**20
DEPTH = card_fields.DEPTH
VALUES = 24_000  # Commas; lists and objects count too.

# A string, to its end or to the text's: each byte is looked at once.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b'[]{}'))


class CardError(ValueError):
  """A card that is not taken.

  Attributes:
    fault: what is wrong, in a word: 'size', 'signature', 'truncated',
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
    CardError: it is too large or too deep, no JSON of RFC 8259, holds a number
      that is not finite, or an object with the same key twice.
  """
  if len(data) > BYTES:
    raise CardError(
      'size', f'the JSON has {len(data):,} bytes: at most {BYTES:,}.'
    )
  _count(data)
  try:
    text = data.decode('utf-8-sig')
  except UnicodeDecodeError as error:
    raise CardError(
      'encoding', f'the JSON is not UTF-8: byte {error.start:,}.'
    ) from None
  try:
    return json.loads(
      text,
      object_pairs_hook=_object,
      parse_constant=_refuse_constant,
      parse_float=_finite,
      parse_int=_integer,
    )
  except json.JSONDecodeError as error:
    raise CardError(
      'json',
      f'not JSON: {error.msg} at line {error.lineno}, column {error.colno}.',
    ) from None


def _count(data: bytes) -> None:
  """Refuses what would become too many values, or too deep ones."""
  bare = _STRING.sub(b'', data)
  brackets = bare.translate(None, _NOT_BRACKETS)
  count = bare.count(b',') + len(brackets) // 2
  if count > VALUES:
    raise CardError(
      'values', f'the JSON has {count:,} values: at most {VALUES:,}.'
    )
  deep = 0
  for one in brackets:
    deep += 1 if one in b'[{' else -1
    if deep > DEPTH:
      raise CardError(
        'depth', f'the JSON is deeper than {DEPTH} objects and lists.'
      )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  made = dict(pairs)
  if len(made) != len(pairs):
    seen = set()
    for key, _ in pairs:
      if key in seen:
        break
      seen.add(key)
    raise CardError(
      'duplicate', f'an object has the key {card_fields.shown(key)} twice.'
    )
  return made


def _refuse_constant(name: str) -> None:
  raise CardError('number', f'the number {name}: must be finite.')


def _finite(text: str) -> float:
  value = float(text)
  if not math.isfinite(value):
    raise CardError('number', f'the number {text[:40]}: must be finite.')
  return value


def _integer(text: str) -> int:
  try:
    return int(text)
  except ValueError:  # More digits than Python converts.
    raise CardError(
      'number', f'a number of {len(text):,} digits: write fewer.'
    ) from None
