"""PNG files with a card in a text chunk, whole or broken."""

import base64
import json
import struct
import zlib

from kaiju_jax.characters.cards import card_png


def encode(value):
  return json.dumps(value).encode()


def chunk(kind, data):
  return (
    struct.pack('>I', len(data))
    + kind
    + data
    + struct.pack('>I', zlib.crc32(kind + data))
  )


def header(width=1, bits=8, colour=0, compression=0, filter=0, interlace=0):
  return chunk(
    b'IHDR',
    struct.pack(
      '>IIBBBBB', width, 1, bits, colour, compression, filter, interlace
    ),
  )


HEADER = header()


PIXELS = chunk(b'IDAT', zlib.compress(b'\0\0'))


END = chunk(b'IEND', b'')


def png(*chunks):
  return b''.join((card_png.SIGNATURE, HEADER, *chunks, PIXELS, END))


def text(value, keyword=b'chara'):
  return chunk(b'tEXt', keyword + b'\0' + base64.b64encode(encode(value)))
