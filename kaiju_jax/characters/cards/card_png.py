"""Reads and writes the chunks of a PNG that carries a card; draws a picture.

A PNG is a signature and chunks: length, type, data, CRC-32 of type and data.
A card is the base64 of its JSON in a text chunk: tEXt is plain, zTXt is
compressed, iTXt may be. Pixels are never decoded here.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import hashlib
import struct
import zlib

from kaiju_jax.characters.cards import card_json

SIGNATURE = b'\x89PNG\r\n\x1a\n'
BYTES = 8 * 2**20
CHUNKS = 10_000
TEXT = 2**20  # The most bytes of a text chunk, inflated.
TEXTS = 4 * TEXT  # The most bytes of all wanted text chunks together.
SIDE = 8192  # The most pixels of a picture's width and of its height.

_PICTURE = (b'IHDR', b'PLTE', b'tRNS', b'IDAT', b'IEND')
_KEYWORD = 79  # The most bytes of a keyword, by the format.
_SLICE = 65_536
# The bits per sample that the format allows, by colour type.
_BITS = {
  0: (1, 2, 4, 8, 16),
  2: (8, 16),
  3: (1, 2, 4, 8),
  4: (8, 16),
  6: (8, 16),
}


def texts(data: bytes, keywords: Sequence[str]) -> dict[str, bytes]:
  """Returns the text chunks of the given keywords, inflated.

  Args:
    data: a PNG.
    keywords: the wanted keywords in lower case; the PNG's may have any case.

  Raises:
    CardError: not a whole PNG, or it has two different texts of a keyword, or
      texts of over 4 MiB together.
  """
  found: dict[str, bytes] = {}
  size = 0
  for kind, chunk in chunks(data):
    if kind not in (b'tEXt', b'zTXt', b'iTXt'):
      continue
    head = bytes(chunk[: _KEYWORD + 1])
    end = head.find(b'\0')
    keyword = head[: max(end, 0)].decode('latin-1').lower()
    if keyword not in keywords:
      continue
    text = _text(kind, chunk[end + 1 :], keyword)
    size += len(text)
    if size > TEXTS:
      raise card_json.CardError(
        'inflated', f"the PNG's card texts have over {TEXTS:,} bytes together."
      )
    if found.setdefault(keyword, text) != text:
      raise card_json.CardError(
        'ambiguous', f'the PNG has two different texts {keyword!r}.'
      )
  return found


def chunks(data: bytes) -> Iterator[tuple[bytes, memoryview]]:
  """Yields (type, data) of each chunk, to the end of the picture.

  What follows the picture's end is ignored.

  Raises:
    CardError: not a whole PNG of at most 8 MiB, 10,000 chunks and 8192 × 8192
      pixels.
  """
  if len(data) > BYTES:
    raise card_json.CardError(
      'size', f'the PNG has {len(data):,} bytes: at most {BYTES:,}.'
    )
  if data[: len(SIGNATURE)] != SIGNATURE:
    raise card_json.CardError('signature', 'not a PNG.')
  view, at, has_pixels = memoryview(data), len(SIGNATURE), False
  for index in range(CHUNKS):
    if at + 12 > len(data):
      raise card_json.CardError(
        'truncated',
        f'the PNG ends within chunk {index}, at byte {len(data):,}.',
      )
    size = int.from_bytes(view[at : at + 4])
    kind = bytes(view[at + 4 : at + 8])
    end = at + 8 + size
    name = kind.decode('latin-1')
    if not (name.isascii() and name.isalpha()):
      raise card_json.CardError(
        'chunks', f'chunk {index} has the type {name!a}: must be four letters.'
      )
    if end + 4 > len(data):
      raise card_json.CardError(
        'truncated',
        f'chunk {index}, {name}, has {size:,} bytes, and the PNG ends before.',
      )
    if zlib.crc32(view[at + 4 : end]) != int.from_bytes(view[end : end + 4]):
      raise card_json.CardError(
        'checksum', f'chunk {index}, {name}, has a wrong CRC.'
      )
    if (kind == b'IHDR') != (index == 0):
      raise card_json.CardError(
        'chunks', 'the PNG must open with IHDR, and have it once.'
      )
    if kind == b'IHDR':
      _check_header(bytes(view[at + 8 : end]))
    has_pixels = has_pixels or kind == b'IDAT'
    yield kind, view[at + 8 : end]
    if kind == b'IEND':
      if not has_pixels:
        raise card_json.CardError('picture', 'the PNG has no pixels.')
      return
    at = end + 4
  raise card_json.CardError('chunks', f'the PNG has over {CHUNKS:,} chunks.')


def embed(picture: bytes, named: Mapping[str, bytes]) -> bytes:
  """Returns a PNG of a picture's pixels with tEXt chunks.

  All other chunks of the picture, such as the place where it was taken, are
  left out.

  Args:
    picture: a PNG.
    named: the texts by keyword, in ASCII.

  Raises:
    CardError: see `chunks`.
  """
  parts = [SIGNATURE]
  for kind, data in chunks(picture):
    if kind == b'IEND':
      parts += (
        _chunk(b'tEXt', keyword.encode() + b'\0' + text)
        for keyword, text in named.items()
      )
    if kind in _PICTURE:
      parts.append(_chunk(kind, data))
  return b''.join(parts)


def draw(name: str) -> bytes:
  """Returns a PNG of 128 × 128 pixels with a pattern that depends on `name`."""
  cells, size = 8, 16
  digest = hashlib.blake2b(name.encode(), digest_size=10).digest()
  bits = int.from_bytes(digest[:4])
  rows = []
  for y in range(cells):
    left = [bits >> (y * 4 + x) & 1 for x in range(cells // 2)]
    row = b''.join(bytes([one]) * size for one in left + left[::-1])
    rows += [b'\0' + row] * size
  # Two colours, the first one light.
  palette = bytes(200 + one // 5 for one in digest[4:7]) + bytes(
    40 + one // 2 for one in digest[7:10]
  )
  side = cells * size
  return b''.join(
    (
      SIGNATURE,
      _chunk(b'IHDR', struct.pack('>IIBBBBB', side, side, 8, 3, 0, 0, 0)),
      _chunk(b'PLTE', palette),
      _chunk(b'IDAT', zlib.compress(b''.join(rows), 9)),
      _chunk(b'IEND', b''),
    )
  )


def _chunk(kind: bytes, data: bytes | memoryview) -> bytes:
  crc = zlib.crc32(data, zlib.crc32(kind))
  return b''.join(
    (struct.pack('>I', len(data)), kind, data, struct.pack('>I', crc))
  )


def _check_header(data: bytes) -> None:
  if len(data) != 13:
    raise card_json.CardError(
      'chunks', f'IHDR has {len(data):,} bytes: must be 13.'
    )
  width, height, bits, colour, *rest = struct.unpack('>IIBBBBB', data)
  if not (1 <= width <= SIDE and 1 <= height <= SIDE):
    raise card_json.CardError(
      'picture',
      f'the picture has {width:,} × {height:,} pixels: 1…{SIDE:,} each.',
    )
  if bits not in _BITS.get(colour, ()) or max(rest[:2]) > 0 or rest[2] > 1:
    raise card_json.CardError('picture', 'IHDR names a format that is no PNG.')


def _text(kind: bytes, chunk: memoryview, keyword: str) -> bytes:
  """Returns the text behind a text chunk's keyword, inflated."""
  if kind == b'tEXt':
    if len(chunk) > TEXT:
      raise card_json.CardError(
        'size',
        f'the text {keyword!r} has {len(chunk):,} bytes: at most {TEXT:,}.',
      )
    return bytes(chunk)
  if kind == b'zTXt':
    is_compressed, method, chunk = True, bytes(chunk[:1]), chunk[1:]
  else:
    flag, method, chunk = bytes(chunk[:1]), bytes(chunk[1:2]), chunk[2:]
    is_compressed = flag == b'\1'
    for _ in 'language', 'translated keyword':
      end = bytes(chunk[:_SLICE]).find(b'\0')
      if end < 0 or flag not in (b'\0', b'\1'):
        raise card_json.CardError(
          'chunks', f'the iTXt chunk of {keyword!r} is malformed.'
        )
      chunk = chunk[end + 1 :]
  if not is_compressed:
    return _text(b'tEXt', chunk, keyword)
  if method != b'\0':
    raise card_json.CardError(
      'chunks', f'the text {keyword!r} is compressed in an unknown way.'
    )
  return _inflate(chunk, keyword)


def _inflate(chunk: memoryview, keyword: str) -> bytes:
  """Inflates piece by piece, so that no text over the limit fills memory."""
  inflater, made = zlib.decompressobj(), bytearray()
  try:
    for at in range(0, len(chunk), _SLICE):
      made += inflater.decompress(chunk[at : at + _SLICE], TEXT + 1 - len(made))
      if len(made) > TEXT:
        raise card_json.CardError(
          'inflated', f'the text {keyword!r} inflates over {TEXT:,} bytes.'
        )
      if inflater.eof:
        return bytes(made)
  except zlib.error as error:
    raise card_json.CardError(
      'inflated', f'the text {keyword!r} does not inflate: {error}.'
    ) from None
  raise card_json.CardError(
    'truncated', f'the compressed text {keyword!r} has no end.'
  )
