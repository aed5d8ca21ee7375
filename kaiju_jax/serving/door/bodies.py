"""A request's body: read as it arrives, up to a size, and strictly parsed.

JSON has one meaning here or none. Python's parser takes NaN, duplicate keys
(of which the last counts), numbers that overflow to infinity, any depth and
escaped halves of characters; a proxy or a client before us may read each of
them in another way. All are refused, and the message names what was found.
"""

from collections.abc import Collection
import json
import math
import re
from typing import Any

from starlette import requests

from kaiju_jax.serving.door import errors

MOST = 2**20
MOST_OF_CARD = 8 * 2**20
DEPTH = 32
JSON = 'application/json'
PNG = 'image/png'

# A string whose end is missing matches to the end of the text: the search stays
# linear, and the parser finds the fault.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_NOT_BRACKETS = bytes(sorted(set(range(256)) - set(b'[]{}')))
_AS_SQUARE = bytes.maketrans(b'{}', b'[]')
_ESCAPED_SURROGATE = re.compile(r'\\u[dD][89a-fA-F]')
# Characters of the longest 64-bit integer; no slow conversion of more.
_DIGITS = 20
# Where nothing matches, no integer exceeds 64 bits, and the parser's own
# conversion is four times as fast: prompts may be lists of tokens.
_MANY_DIGITS = re.compile(r'[0-9]{19}')


def media_type(request: requests.Request, types: Collection[str]) -> str:
  """Returns a body's type, which is one of `types`.

  Raises:
    errors.ApiError: 415 for another type, charset or encoding.
  """
  whole = request.headers.get('content-type', '')
  name, _, parameters = whole.partition(';')
  name = name.strip().lower()
  wanted = ' or '.join(types)
  if name not in types:
    raise errors.unsupported_type(f'Content-Type={whole!r}: must be {wanted}.')
  charset = parameters.strip().lower().replace('"', '')
  if charset not in ('', 'charset=utf-8', 'charset=utf8'):
    raise errors.unsupported_type(
      f'Content-Type={whole!r}: must be {wanted}, in UTF-8.'
    )
  encoding = request.headers.get('content-encoding', 'identity')
  if encoding.strip().lower() != 'identity':
    raise errors.unsupported_type(
      f'Content-Encoding={encoding!r}: a body must not be compressed.'
    )
  return name


async def read(request: requests.Request, most: int = MOST) -> bytes:
  """Returns a request's body.

  Args:
    request: whose body nobody has read.
    most: bytes that it may have.

  Raises:
    errors.ApiError: 413 as soon as it is known to be larger.
    requests.ClientDisconnect: the client left.
  """
  if _declared(request) > most:
    raise _too_large(most)
  body = bytearray()
  async for piece in request.stream():
    body += piece
    if len(body) > most:
      raise _too_large(most)
  return bytes(body)


async def read_json(
  request: requests.Request, most: int = MOST
) -> dict[str, Any]:
  """Returns the object that a request's body holds as JSON.

  Raises:
    errors.ApiError: 400, 413 or 415, whose message names what is wrong.
    requests.ClientDisconnect: the client left.
  """
  media_type(request, [JSON])
  return parse(await read(request, most))


def parse(body: bytes) -> dict[str, Any]:
  """Returns the object that `body` holds as JSON.

  Raises:
    errors.ApiError: 400, whose message names what is wrong.
  """
  try:
    text = body.decode('utf-8')
  except UnicodeDecodeError as error:
    raise _invalid(f'byte {error.start} is not UTF-8') from None
  if _is_deeper(body, DEPTH):
    raise _invalid(f'it is nested deeper than {DEPTH} levels')
  try:
    value = json.loads(
      text,
      object_pairs_hook=_object,
      parse_int=_integer if _MANY_DIGITS.search(text) else None,
      parse_float=_number,
      parse_constant=_constant,
    )
  except json.JSONDecodeError as error:
    raise _invalid(f'{error.msg} at character {error.pos}') from None
  if not isinstance(value, dict):
    raise _invalid('its top level must be an object')
  if _ESCAPED_SURROGATE.search(text):
    _refuse_surrogates(value)
  return value


def _declared(request: requests.Request) -> int:
  """Returns the size that a request declares; 0 where it does not."""
  length = request.headers.get('content-length', '')
  return int(length) if length.isascii() and length.isdecimal() else 0


def _too_large(most: int) -> errors.ApiError:
  return errors.too_large(f'The body is larger than {most} bytes.')


def _invalid(what: str) -> errors.ApiError:
  return errors.invalid(f'The body is not valid JSON: {what}.')


def _is_deeper(body: bytes, depth: int) -> bool:
  """Returns whether brackets are nested deeper, without parsing."""
  brackets = _STRING.sub(b'', body).translate(_AS_SQUARE, _NOT_BRACKETS)
  # Each pass takes the innermost level away; of a valid body nothing is left.
  for _ in range(depth):
    brackets = brackets.replace(b'[]', b'')
  if not brackets:
    return False
  level = 0
  for bracket in brackets:
    level += 1 if bracket == ord('[') else -1
    if level < 0:
      return False  # They do not match, which the parser finds here.
    if level > depth:
      return True
  # Unclosed ones are the parser's to find, too.
  return level == 0


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  found = dict(pairs)
  if len(found) < len(pairs):
    seen = set()
    for key, _ in pairs:
      if key in seen:
        raise _invalid(f'the key {_short(key)} is there twice')
      seen.add(key)
  return found


def _integer(digits: str) -> int:
  if len(digits) <= _DIGITS and -(2**63) <= int(digits) < 2**63:
    return int(digits)
  raise _invalid(f'the integer {_short(digits)} exceeds 64 bits')


def _number(digits: str) -> float:
  value = float(digits)
  if not math.isfinite(value):
    raise _invalid(f'the number {_short(digits)} is too large')
  return value


def _constant(name: str) -> float:
  raise _invalid(f'{name} is not a number of JSON')


def _refuse_surrogates(value: dict[str, Any]) -> None:
  """Refuses halves of characters, which UTF-8 cannot hold."""
  try:
    json.dumps(value, ensure_ascii=False).encode('utf-8')
  except UnicodeEncodeError as error:
    half = error.object[error.start]
    raise _invalid(f'\\u{ord(half):04x} is one half of a character') from None


def _short(text: str) -> str:
  return repr(text if len(text) <= 40 else f'{text[:39]}…')
