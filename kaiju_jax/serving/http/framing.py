"""Checks strictly where HTTP/1.1 requests begin and end, before h11 sees them.

h11 accepts what old clients send: bare line feeds, folded headers, a repeated
Content-Length, Transfer-Encoding beside it, any version. A proxy before the
server may read such a request in another way, and then the two disagree about
where the next one begins (request smuggling). So this module checks the bytes
first, by the grammar of RFC 9112 without its concessions, and h11 never gets
more than one request at a time.
"""

import re
from typing import NamedTuple
from urllib import parse

MOST_HEAD = 32 * 1024
MOST_HEADERS = 100
_MOST_TARGET = 8 * 1024
# The most chunks of a body, each of which costs a call of h11, and the most
# bytes of a chunk's line.
_MOST_CHUNKS = 4096
_MOST_LINE = 256

_METHOD = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]{1,32}")
_VERSION = re.compile(rb'HTTP/1\.[01]')
# Browsers do not encode `{|}^, which RFC 3986 would have encoded.
_TARGET = re.compile(rb'/(?:[!$&-;=?-\[\]-~]|%[0-9A-Fa-f]{2})*+')
_NAME = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(rb'[\t\x20-\x7e\x80-\xff]*')
_HOST = re.compile(rb"[-.\w~!$&'()*+,;=%:\[\]]*")
_LENGTH = re.compile(rb'[0-9]{1,18}')
_CHUNK = re.compile(rb'([0-9A-Fa-f]{1,8})(;[\t\x20-\x7e\x80-\xff]*)?')
# A carriage return or a line feed without the other.
_HALF_END = re.compile(rb'\r(?=[^\n])|(?<!\r)\n')


class Fault(ValueError):
  """Bytes that this server does not accept as a request."""

  def __init__(self, message: str, status: int = 400):
    super().__init__(message)
    self.status = status  # The answer's status, always 4xx.


class Sized:
  """A body of a known size; of 0 bytes where there is no body."""

  def __init__(self, size: int):
    self._left = size

  @property
  def is_done(self) -> bool:
    return not self._left

  def take(self, data: bytes) -> int:
    """Returns how many of the next bytes belong to the body."""
    size = min(len(data), self._left)
    self._left -= size
    return size


class Chunked:
  """A body in chunks, each of which begins with its size."""

  def __init__(self):
    self.is_done = False
    # The missing bytes of the chunk and of the line's end behind it.
    self._left = 0
    self._line = b''  # The part of a line that has come.
    self._is_last = False
    self._count = 0

  def take(self, data: bytes) -> int:
    """Returns how many of the next bytes belong to the body.

    Raises:
      Fault: a chunk is malformed, or there are too many.
    """
    at = 0
    while at < len(data) and not self.is_done:
      if self._left > 2:
        step = min(self._left - 2, len(data) - at)
        self._left -= step
        at += step
      elif self._left:
        if data[at] != b'\n\r'[self._left - 1]:
          raise Fault('A chunk is longer than its size.')
        self._left -= 1
        at += 1
      else:
        at = self._take_line(data, at)
    return at

  def _take_line(self, data: bytes, at: int) -> int:
    """Takes a chunk's size, or the empty line behind the last chunk."""
    end = data.find(b'\n', at)
    stop = len(data) if end < 0 else end + 1
    self._line += data[at:stop]
    if len(self._line) > _MOST_LINE:
      raise Fault(f"A chunk's line is longer than {_MOST_LINE} bytes.")
    if end < 0:
      return stop
    line, self._line = self._line, b''
    if not line.endswith(b'\r\n'):
      raise Fault('A line ends without a carriage return.')
    self._end_line(line[:-2])
    return stop

  def _end_line(self, line: bytes) -> None:
    if self._is_last:
      if line:
        raise Fault('Fields behind the body are not taken.')
      self.is_done: bool = True
      return
    matched = _CHUNK.fullmatch(line)
    if not matched:
      raise Fault("A chunk's size is not hexadecimal.")
    self._count += 1
    if self._count > _MOST_CHUNKS:
      raise Fault(f'A body may have {_MOST_CHUNKS} chunks.', 413)
    size = int(matched[1], 16)
    self._is_last = not size
    self._left = size + 2 if size else 0


class Head(NamedTuple):
  """The extent of a request's first line and headers, and of its body."""

  size: int  # The bytes of the first line and the headers, with the empty line.
  body: Sized | Chunked  # Counts the bytes of the body that follows.


class Opening:
  """Checks a request's first line and headers while they arrive.

  Bytes that cannot become a request are refused at once. Otherwise a request of
  HTTP/0.9, a TLS handshake, or lines that end with a line feed alone would wait
  for more bytes until the deadline. No byte is checked twice, because bytes may
  come one by one.
  """

  def __init__(self):
    self._seen = 0
    self._has_line = False

  def look(self, data: bytes | bytearray) -> Head | None:
    """Returns the request's head; None while more bytes must come.

    Args:
      data: all bytes of the request that have come, and perhaps later ones.

    Raises:
      Fault: no further bytes could make it a request.
    """
    end = data.find(b'\r\n\r\n', max(0, self._seen - 3), MOST_HEAD)
    stop = min(len(data), MOST_HEAD) if end < 0 else end + 4
    self._check_new(data, stop)
    self._seen = stop
    if end < 0:
      if stop >= MOST_HEAD:
        raise Fault(f'The headers are longer than {MOST_HEAD} bytes.', 431)
      return None
    first, *lines = bytes(data[:end]).split(b'\r\n')
    if len(lines) > MOST_HEADERS:
      raise Fault(f'There are more than {MOST_HEADERS} headers.', 431)
    return Head(stop, _body(_fields(lines), first[-8:]))

  def _check_new(self, data: bytes | bytearray, stop: int) -> None:
    """Checks the bytes up to `stop` that were not seen before."""
    if stop and not self._seen and not _METHOD.match(data[:1]):
      raise Fault('A request must begin with its method.')
    # The byte before may be the carriage return of a line's end.
    if _HALF_END.search(data, max(0, self._seen - 1), stop):
      raise Fault('A line must end with carriage return and line feed.')
    if not self._has_line:
      end = data.find(b'\r\n', max(0, self._seen - 1), stop)
      if end >= 0:
        _check_first(bytes(data[:end]))
        self._has_line = True


def _check_first(line: bytes) -> None:
  """Refuses a first line that is not METHOD /target HTTP/1.1 (or 1.0)."""
  parts = line.split(b' ')
  if len(parts) != 3:
    raise Fault('The first line must be METHOD /target HTTP/1.1.')
  method, target, version = parts
  if not _METHOD.fullmatch(method):
    raise Fault('The method is malformed.')
  if not _VERSION.fullmatch(version):
    raise Fault('The version must be HTTP/1.1.')
  if method == b'CONNECT':
    raise Fault('CONNECT is not taken.')
  if len(target) > _MOST_TARGET:
    raise Fault(f'The target is longer than {_MOST_TARGET} bytes.', 414)
  if not _TARGET.fullmatch(target):
    raise Fault('The target must be a path, which begins with /.')
  path = parse.unquote_to_bytes(target.partition(b'?')[0])
  try:
    text = path.decode('utf-8')
  except UnicodeDecodeError:
    raise Fault('The path is not UTF-8.') from None
  if any(x < ' ' or x == '\x7f' for x in text):
    raise Fault('The path holds a control character.')


def _fields(lines: list[bytes]) -> dict[bytes, list[bytes]]:
  """Returns the values of each header, by its name in lower case."""
  fields: dict[bytes, list[bytes]] = {}
  for line in lines:
    # The pattern refuses a line that begins with a space: some parsers read it
    # as a continuation of the header before.
    name, colon, value = line.partition(b':')
    if not colon or not _NAME.fullmatch(name):
      raise Fault('A header must be NAME: VALUE.')
    if not _VALUE.fullmatch(value):
      raise Fault('A header holds a control character.')
    fields.setdefault(name.lower(), []).append(value.strip(b' \t'))
  return fields


def _body(fields: dict[bytes, list[bytes]], version: bytes) -> Sized | Chunked:
  """Returns the body that a head announces."""
  hosts = fields.get(b'host', [])
  if len(hosts) > 1 or (not hosts and version == b'HTTP/1.1'):
    raise Fault('There must be one Host.')
  if hosts and not _HOST.fullmatch(hosts[0]):
    raise Fault('Host is malformed.')
  expectations = fields.get(b'expect', [])
  if any(x.lower() != b'100-continue' for x in expectations):
    raise Fault('Expect must be 100-continue.', 417)
  lengths = fields.get(b'content-length', [])
  codings = fields.get(b'transfer-encoding', [])
  if codings:
    if lengths:
      raise Fault('Transfer-Encoding and Content-Length are both there.')
    if [x.lower() for x in codings] != [b'chunked']:
      raise Fault('Transfer-Encoding must be chunked.')
    if version != b'HTTP/1.1':
      raise Fault('Transfer-Encoding needs HTTP/1.1.')
    return Chunked()
  if len(lengths) > 1:
    raise Fault('There are several Content-Lengths.')
  if lengths and not _LENGTH.fullmatch(lengths[0]):
    raise Fault('Content-Length must be a number of bytes.')
  return Sized(int(lengths[0]) if lengths else 0)
