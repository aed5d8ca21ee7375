"""A grammar of requests with something wrong in them.

Each rule takes a request that is valid and makes it one that is not, whatever
is drawn; so a server must refuse each of them.
"""

import dataclasses
import random

_CONTROL = bytes({*range(0x20), 0x7F} - {0x09, 0x0A, 0x0D})


@dataclasses.dataclass
class Message:
  """A request in parts, each of which a rule may change."""

  method: bytes = b'POST'
  target: bytes = b'/echo'
  version: bytes = b'HTTP/1.1'
  lines: list[bytes] = dataclasses.field(default_factory=list)
  body: bytes = b''
  end: bytes = b'\r\n'  # Of each line.
  joint: bytes = b' '  # Of the first line.
  is_cut: bool = False

  def data(self) -> bytes:
    first = self.joint.join([self.method, self.target, self.version])
    return self.end.join([first, *self.lines, b'', b'']) + self.body

  def drop(self, name: bytes) -> None:
    name = name.lower() + b':'
    self.lines = [x for x in self.lines if not x.lower().startswith(name)]


def valid(rng: random.Random) -> Message:
  """Returns a request that is answered by 200."""
  if rng.random() < 0.4:
    made = Message(b'GET', b'/')
  else:
    made = Message(body=b'{"a": %d}' % rng.randrange(10**6))
    made.lines = [b'Content-Type: application/json']
    made.lines.append(b'Content-Length: %d' % len(made.body))
  made.lines.append(b'Host: localhost')
  made.lines += [
    b'X-%d: %s' % (n, b'v' * rng.randrange(50)) for n in range(rng.randrange(5))
  ]
  rng.shuffle(made.lines)
  return made


def chunked(rng: random.Random) -> Message:
  """Returns a request that is answered by 200, with chunks."""
  made = Message(body=b'9\r\n{"a": 123\r\n1\r\n}\r\n0\r\n\r\n')
  made.lines = [
    b'Content-Type: application/json',
    b'Transfer-Encoding: chunked',
    b'Host: localhost',
  ]
  rng.shuffle(made.lines)
  return made


def posted(rng: random.Random, body: bytes) -> Message:
  """Returns a request whose body is the fault, and whose form is valid."""
  made = Message(body=body)
  made.lines = [
    b'Host: localhost',
    b'Content-Type: application/json',
    b'Content-Length: %d' % len(body),
    b'Connection: close',
  ]
  return made


def _first_line(rng):
  made = valid(rng)
  kind = rng.randrange(4)
  if kind == 0:
    made.method = rng.choice(
      [b'', b'G T', b'G\xc9T', b'(', b'"GET"', b'CONNECT', b'G' * 33, b'GET\t']
    )
  elif kind == 1:
    made.target = rng.choice(_TARGETS)
  elif kind == 2:
    made.version = rng.choice(_VERSIONS)
  else:
    made.joint = rng.choice([b'  ', b'\t', b'', b'\x0b', b'\xa0'])
  return made


_TARGETS = (
  *(b'', b'*', b'echo', b'?a', b'a/b', b'localhost:80', b'//\\evil', b'/a\\b'),
  *(b'http://localhost/', b'http://evil.example/', b'/a b', b'/\tx', b'/#a'),
  *(b'/%', b'/%g0', b'/%0', b'/%4', b'/%00', b'/%0d%0aA:b', b'/%ff%fe'),
  *(b'/%ed%a0%80', b'/%c0%af', b'/\xe9', b'/\xff', b'/\x7f'),
  b'/' + b'a' * 9000,
)
_VERSIONS = (
  *(b'', b'HTTP/0.9', b'HTTP/1.2', b'HTTP/2', b'HTTP/2.0', b'HTTP/3.0'),
  *(b'HTTP/1.1.1', b'HTTP/01.1', b'HTTP/1.10', b'HTTP/-1.1', b'HTTP/1,1'),
  *(b'http/1.1', b'HTTPS/1.1', b'ICY/1.1', b'1.1', b'HTTP/1.1 '),
)


def _line_ends(rng):
  made = valid(rng)
  if rng.random() < 0.3:
    made.end = rng.choice([b'\n', b'\r', b'\r\r\n', b'\n\r', b'\r\n\n'])
    return made
  # In one place of many.
  data = made.data()
  head = data.index(b'\r\n\r\n')
  places = [n for n in range(head) if data[n : n + 2] == b'\r\n']
  at = rng.choice(places)
  bad = rng.choice([b'\n', b'\r', b'\r\r\n', b'\n\n'])
  return data[:at] + bad + data[at + 2 :]


def _control_character(rng):
  data = valid(rng).data()
  at = rng.randrange(data.index(b'\r\n\r\n'))
  return data[:at] + bytes([rng.choice(_CONTROL)]) + data[at:]


def _header(rng):
  made = valid(rng)
  kind = rng.randrange(6)
  at = rng.randrange(len(made.lines) + 1)
  if kind == 0:
    made.lines.insert(at, rng.choice([b'A', b': b', b' A: b', b'\tA: b']))
  elif kind == 1:
    made.lines.insert(
      at, rng.choice([b'A : b', b'A b: c', b'A\t: b', b'[]: b', b'\xc9: c'])
    )
  elif kind == 2:
    made.lines.insert(at, b'A: b\r\n%sc' % rng.choice([b' ', b'\t', b' \t ']))
  elif kind == 3:
    made.lines += [b'A%d: b' % n for n in range(rng.randrange(101, 300))]
  elif kind == 4:
    made.lines.insert(at, b'A: ' + b'b' * rng.randrange(33_000, 60_000))
  else:
    made.lines.insert(
      at, b'Expect: ' + rng.choice([b'', b'x', b'100-continuee'])
    )
  return made


def _host(rng):
  made = valid(rng)
  if rng.random() < 0.3:
    made.lines.append(b'Host: %s' % rng.choice([b'localhost', b'evil', b'']))
  else:
    made.drop(b'Host')
    if rng.random() < 0.8:
      bad = rng.choice(
        [b'a/b', b'a b', b'u@a', b'a?b', b'a\\b', b'"a"', b'\xff']
      )
      made.lines.append(b'Host: ' + bad)
  return made


def _length(rng):
  made = Message(body=b'{"a": 1}')
  made.lines = [b'Host: localhost', b'Content-Type: application/json']
  bad = rng.choice(
    [b'8, 8', b'8,9', b'-8', b'+8', b'8.0', b'0x8', b'8 8', b'', b'1_0', b'8;']
    + [b'\xb2', b'9' * 19, b'9' * 400, b'inf', b'8e0', b'\xd9\xa8', b'"8"']
  )
  length = rng.choice(
    [b'Content-Length: ', b'CONTENT-LENGTH:', b'content-length:']
  )
  if rng.random() < 0.3:
    made.lines += [
      length + b'8',
      length + rng.choice([b'8', b'9', b'0', b'008']),
    ]
  else:
    made.lines.append(length + bad)
  rng.shuffle(made.lines)
  return made


def _coding(rng):
  made = chunked(rng)
  kind = rng.randrange(5)
  if kind == 0:
    made.lines.append(
      b'Content-Length: %d' % rng.choice([0, 4, len(made.body)])
    )
  elif kind == 3:
    made.drop(b'Transfer-Encoding')
    made.lines.append(b'Transfer-Encoding : chunked')
  elif kind == 1:
    made.version = b'HTTP/1.0'
  elif kind == 2:
    made.lines.append(
      b'Transfer-Encoding: %s' % rng.choice([b'chunked', b'gzip'])
    )
  else:
    made.drop(b'Transfer-Encoding')
    bad = rng.choice(
      [b'gzip', b'identity', b'chunked, chunked', b'gzip, chunked', b'xchunked']
      + [b'"chunked"', b'chunked;q=1', b'', b'chunked,', b',chunked', b'chunke']
      + [b'\x0bchunked']
    )
    made.lines.append(b'Transfer-Encoding: ' + bad)
  rng.shuffle(made.lines)
  return made


def _chunk(rng):
  made = chunked(rng)
  good = b'8\r\n{"a": 1}\r\n'
  behind = good[1:]
  sizes = (
    *(b'x', b'-8', b'+8', b'0x8', b' 8', b'8 ', b'8_', b'1_0', b'\xb2', b'7'),
    *(b'9', b'100000000', b'ffffffffff', b'8;a\0', b'8;a\n', b'8;a\nb'),
    b'8;' + b'a' * 300,
  )
  ends = (
    *(b'0\r\nA: b\r\n\r\n', b'0\r\n\n', b'00\n\r\n', b'0\r\n \r\n', b'\r\n'),
    b'0\r\nHost: evil\r\nTransfer-Encoding: x\r\n\r\n',
  )
  made.body = rng.choice(
    [
      *(size + behind for size in sizes),
      *(good + end for end in ends),
      *(b'\r\n' + good, b'8\n{"a": 1}\r\n', b'8\r\n{"a": 1}\n'),
      *(b'8\r\n{"a": 1}', b'8\r\n{"a": 1}\r0', b'1\r\n \r\n' * 5000),
    ]
  )
  made.body += b'0\r\n\r\n'
  return made


def _cut(rng):
  made = rng.choice([valid, chunked])(rng)
  data = made.data()
  return Message(body=data[: rng.randrange(1, len(data))], is_cut=True)


def _noise(rng):
  kind = rng.randrange(5)
  if kind == 0:
    return b'\x16\x03\x01' + rng.randbytes(200)
  if kind == 1:
    return b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + rng.randbytes(9)
  if kind == 2:
    return rng.randbytes(rng.randrange(1, 300)) + b'\r\n\r\n'
  if kind == 3:
    return bytes(rng.choices(b'GET /:HTP1.\r\n \t', k=200)) + b'\n\n'
  return b'\r\n' * rng.randrange(1, 9) + valid(rng).data()


def bodies(rng: random.Random) -> tuple[bytes, ...]:
  """Returns bodies that are no JSON, or none that means one thing."""
  number = b'1' * rng.randrange(20, 5000)
  depth = rng.randrange(33, 3000)
  values = (
    *(b'NaN', b'[-Infinity]', b'1e400', b'01', b'1,', b'"\n"', b'1, "a": 2'),
    *(b'"\\ud800"', b'"\\ude00\\ud83d"', b'"\xff"', b'"\xed\xa0\x80"'),
    *(b'"\xc0\x80"', b'%d' % 2**63, b'-%d' % (2**63 + 1), number),
    *(b'[{"b": 1, "\\u0062": 2}]', b'{"\\uDBFF": 1}', b'1}'),
    *(b'[' * depth + b']' * depth, b'{"a":' * depth + b'1' + b'}' * depth),
  )
  return (
    *(b'{"a": ' + value + b'}' for value in values),
    *(b'', b'{', b'[]', b'1', b'"text"', b'null', b'\xef\xbb\xbf{}', b'{} {}'),
    *(b"{'a': 1}", '{"a": 1}'.encode('utf-16'), b'{"a": ' + b'[' * depth),
    *(rng.randbytes(rng.randrange(1, 99)), b' ' * (2**20 + 1)),
  )


def _body(rng):
  return posted(rng, rng.choice(bodies(rng)))


def _retarget(rng):
  made = posted(rng, b'{}')
  kind = rng.randrange(4)
  if kind == 0:
    made.target = b'/' + rng.randbytes(8).hex().encode()
  elif kind == 1:
    made.method = rng.choice([b'PUT', b'TRACE', b'X', b'DELETE', b'PATCH'])
  elif kind == 2:
    made.drop(b'Content-Type')
    made.lines.append(
      b'Content-Type: ' + rng.choice([b'', b'text/plain', b'*/*'])
    )
  else:
    made.lines.append(
      b'Content-Encoding: ' + rng.choice([b'gzip', b'br', b'x'])
    )
  return made


_RULES = [
  _first_line,
  _line_ends,
  _control_character,
  _header,
  _host,
  _length,
  _coding,
  _chunk,
  _cut,
  _noise,
  _body,
  _retarget,
]


@dataclasses.dataclass
class Drawn:
  """A malformed request; one that is cut ends the client's half."""

  rule: str
  data: bytes
  is_cut: bool


def drawn(rng: random.Random) -> Drawn:
  """Returns a malformed request."""
  rule = rng.choice(_RULES)
  made = rule(rng)
  if not isinstance(made, Message):
    return Drawn(rule.__name__, made, False)
  data = made.body if made.is_cut else made.data()
  return Drawn(rule.__name__, data, made.is_cut)
