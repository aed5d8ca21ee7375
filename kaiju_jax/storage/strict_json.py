"""Parses untrusted JSON unambiguously and within bounds of depth and size.

Python's parser takes NaN, duplicate keys (the last wins), numbers that overflow
to infinity, any depth, and escaped halves of characters. A proxy or a client
may read each of these differently. `read` refuses all of them, by name, and
`parse` the depth alone: it is for files, which other tools write as they like.
Brackets and commas are counted before the parser runs, because a megabyte of
'[],[],' would become thirty megabytes of objects, and a deep text would
overflow the stack.

The time is linear in the size of every text.
"""

import json
import math
import re
from typing import Any

_NOT_BRACKETS = bytes(sorted(set(range(256)) - set(b'[]{}')))
_AS_SQUARE = bytes.maketrans(b'{}', b'[]')
_ESCAPED_SURROGATE = re.compile(r'\\u[dD][89a-fA-F]')
# Characters of the longest 64-bit integer. Longer ones are refused without
# the slow conversion.
_DIGITS = 20
# Where no integer has so many, none exceeds 64 bits, and the parser's own
# conversion is four times as fast: prompts may be lists of tokens.
_MANY_DIGITS = b'0' * 19
_DIGITS_AS_ZEROS = bytes.maketrans(b'123456789', b'0' * 9)


# Levels and values of a file of JSON, whoever wrote it. A tokenizer.json of
# 262,144 tokens and as many merges has two million values.
DEPTH, VALUES = 64, 2**23


class Refused(ValueError):
  """A text that is refused; its message is a clause, without a full stop.

  Attributes:
    fault: what is wrong: 'encoding', 'depth', 'values', 'json', 'duplicate',
      'number' or 'surrogate'.
  """

  def __init__(self, fault: str, message: str):
    super().__init__(message)
    self.fault = fault


def read(
  data: bytes,
  depth: int,
  values: int | None = None,
  is_wide: bool = False,
  groups: int | None = None,
  may_be_half: bool = False,
) -> Any:
  """Returns the value of a JSON text.

  Args:
    data: the text; the caller bounds its size.
    depth: most levels of objects and lists.
    values: most commas, objects and lists together; None for any number.
    is_wide: whether integers may have more than 64 bits; Python bounds their
      digits.
    groups: most objects and lists, each of which takes ten times as long as a
      number of a list; None for any number.
    may_be_half: whether strings may hold halves of characters.

  Raises:
    Refused: the text is not UTF-8 or no JSON of RFC 8259, or is too deep or has
      too many values; or it holds a duplicate key, a number that is not finite,
      an integer of too many bits, or one half of a character.
  """
  text, bare = _bound(data, depth, values, groups)
  integer = _wide_integer if is_wide else _integer
  may_be_wide = _MANY_DIGITS in bare.translate(_DIGITS_AS_ZEROS)
  try:
    value = json.loads(
      text,
      object_pairs_hook=_object,
      parse_int=integer if may_be_wide else None,
      parse_float=_number,
      parse_constant=_constant,
    )
  except json.JSONDecodeError as error:
    raise Refused(
      'json', f'{error.msg} at line {error.lineno}, column {error.colno}'
    ) from None
  if not may_be_half and _ESCAPED_SURROGATE.search(text):
    _refuse_surrogates(value)
  return value


def parse(data: bytes | str) -> Any:
  """Returns the value of a file of JSON, as Python's parser reads it.

  Args:
    data: the text; the caller bounds its size.

  Raises:
    ValueError: the text is not UTF-8 or no JSON, has a number of thousands of
      digits, is too deep or has too many values.
  """
  if isinstance(data, str):
    data = data.encode()
  text, _ = _bound(data, DEPTH, VALUES)
  return json.loads(text)


def _bound(
  data: bytes, depth: int, values: int | None, groups: int | None = None
) -> tuple[str, bytes]:
  """Returns a JSON text, and its bytes without strings.

  Raises:
    Refused: as `read`: 'encoding', 'values' or 'depth'.
  """
  try:
    text = data.decode('utf-8')
  except UnicodeDecodeError as error:
    raise Refused('encoding', f'byte {error.start} is not UTF-8') from None
  bare = _drop_strings(data)
  brackets = bare.translate(_AS_SQUARE, _NOT_BRACKETS)
  if _is_deeper(brackets, depth):
    raise Refused('depth', f'it is nested deeper than {depth} levels')
  count = len(brackets) // 2
  if groups is not None and count > groups:
    raise Refused(
      'values', f'it has {count:,} objects and lists, of at most {groups:,}'
    )
  count += bare.count(b',')
  if values is not None and count > values:
    raise Refused('values', f'it has {count:,} values, of at most {values:,}')
  return text, bare


def _drop_strings(data: bytes) -> bytes:
  """Returns a JSON text without its strings.

  Regular expressions would hold the interpreter's lock ten times as long. A
  string without an end reaches to the end of the text, and a backslash outside
  strings removes what follows it: the parser finds either fault.
  """
  data = data.replace(b'\\\\', b'').replace(b'\\"', b'')
  return b''.join(data.split(b'"')[::2])


def _is_deeper(brackets: bytes, depth: int) -> bool:
  """Returns whether square brackets are nested deeper than `depth`."""
  # Each pass removes the innermost level; a valid text leaves nothing.
  for _ in range(depth):
    brackets = brackets.replace(b'[]', b'')
  if not brackets:
    return False
  level = 0
  for bracket in brackets:
    level += 1 if bracket == ord('[') else -1
    if level < 0:
      return False  # The brackets do not match; the parser reports it.
    if level > depth:
      return True
  # The parser reports unclosed brackets, too.
  return level == 0


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  found = dict(pairs)
  if len(found) < len(pairs):
    seen = set()
    for key, _ in pairs:
      if key in seen:
        raise Refused('duplicate', f'the key {_short(key)} is there twice')
      seen.add(key)
  return found


def _integer(digits: str) -> int:
  if len(digits) <= _DIGITS and -(2**63) <= int(digits) < 2**63:
    return int(digits)
  raise Refused('number', f'the integer {_short(digits)} exceeds 64 bits')


def _wide_integer(digits: str) -> int:
  try:
    return int(digits)
  except ValueError:  # More digits than Python converts.
    raise Refused('number', f'an integer has {len(digits):,} digits') from None


def _number(digits: str) -> float:
  value = float(digits)
  if not math.isfinite(value):
    raise Refused('number', f'the number {_short(digits)} is too large')
  return value


def _constant(name: str) -> float:
  raise Refused('number', f'{name} is not a number of JSON')


def _refuse_surrogates(value: Any) -> None:
  """Refuses halves of characters, which UTF-8 cannot hold."""
  try:
    json.dumps(value, ensure_ascii=False).encode('utf-8')
  except UnicodeEncodeError as error:
    half = error.object[error.start]
    raise Refused(
      'surrogate', f'\\u{ord(half):04x} is one half of a character'
    ) from None


def _short(text: str) -> str:
  return ascii(text if len(text) <= 40 else f'{text[:39]}…')
