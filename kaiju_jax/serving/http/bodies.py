"""Reads requests' bodies up to a size, and parses their JSON strictly."""

from collections.abc import Collection
from typing import Any

from starlette import requests

from kaiju_jax.serving.http import errors
from kaiju_jax.storage import strict_json

MOST = 2**20
MOST_OF_CARD = 8 * 2**20
DEPTH = 32
# The most commas, objects and lists of a body together, and of one that may
# hold a list of tokens; and the most objects and lists of any body.
VALUES, VALUES_OF_TOKENS, GROUPS = 2**15, 2**18, 2**14
JSON = 'application/json'
PNG = 'image/png'


def media_type(request: requests.Request, types: Collection[str]) -> str:
  """Returns a body's media type; refuses another, or a charset (415)."""
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
  """Returns a request's body of at most `most` bytes.

  Raises:
    errors.ApiError: 413 as soon as the body is known to be larger.
    requests.ClientDisconnect: the client left.
  """
  if _declared_size(request) > most:
    raise _too_large(most)
  body = bytearray()
  async for piece in request.stream():
    body += piece
    if len(body) > most:
      raise _too_large(most)
  return bytes(body)


def parse(body: bytes, values: int = VALUES) -> dict[str, Any]:
  """Returns the object that `body` holds as JSON; refuses any other (400).

  Args:
    values: the most commas, objects and lists together.
  """
  try:
    value = strict_json.read(body, DEPTH, values, groups=GROUPS)
  except strict_json.Refused as error:
    raise _invalid(str(error)) from None
  if not isinstance(value, dict):
    raise _invalid('its top level must be an object')
  return value


def _declared_size(request: requests.Request) -> int:
  """Returns the size that a request declares; 0 without Content-Length."""
  length = request.headers.get('content-length', '')
  return int(length) if length.isascii() and length.isdecimal() else 0


def _too_large(most: int) -> errors.ApiError:
  return errors.too_large(f'The body is larger than {most} bytes.')


def _invalid(what: str) -> errors.ApiError:
  return errors.invalid(f'The body is not valid JSON: {what}.')
