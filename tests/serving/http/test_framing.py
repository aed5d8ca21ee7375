"""Framing: one reading of every request, h11's, or none."""

import random

import h11
import pytest

from kaiju_jax.serving.http import framing
from tests.serving import malformed

LINE = b'GET / HTTP/1.1\r\n'


def fault(data):
  with pytest.raises(framing.Fault) as caught:
    head = framing.Opening().look(data)
    assert head is not None, 'it waits for more'
    head.body.take(data[head.size :])
  return caught.value.status


def first(line):
  return line + b'\r\nHost: a\r\n\r\n'


def with_header(line):
  return b'POST / HTTP/1.1\r\nHost: a\r\n' + line + b'\r\n\r\n'


def chunked(body):
  return with_header(b'Transfer-Encoding: chunked') + body


def test_what_leaves_a_doubt_is_a_fault_however_it_comes():
  rng = random.Random(4)
  statuses = {}
  for n in range(4000):
    one = malformed.drawn(rng)
    # What is well framed is judged later.
    if one.is_cut or one.rule in ('_body', '_retarget'):
      continue
    statuses.setdefault(one.rule, set()).add(fault(one.data))
    if n % 3 == 0:
      with pytest.raises(framing.Fault):
        by_pieces(one.data, rng)
  assert statuses.pop('_first_line') == {400, 414}
  assert statuses.pop('_header') == {400, 417, 431}
  assert statuses.pop('_chunk') == {400, 413}
  assert len(statuses) == 6
  assert all(found == {400} for found in statuses.values()), statuses


@pytest.mark.parametrize(
  'line',
  [
    b'GET / HTTP/1.1',
    b'PATCH /a/%E2%82%AC/%2F?x=%0a&y={a|b}^` HTTP/1.1',
    b"GET /~a!$&'()*+,;=:@[b]?/? HTTP/1.0",
    b'A' * 32 + b' / HTTP/1.1',
  ],
)
def test_first_lines_that_are_some(line):
  assert framing.Opening().look(first(line)).body.is_done


def test_a_host_is_there_once():
  assert fault(LINE + b'\r\n') == 400
  assert framing.Opening().look(b'GET / HTTP/1.0\r\n\r\n') is not None
  for host in (b'', b'[::1]:80', b'a.b-c_d:8000'):
    assert framing.Opening().look(LINE + b'Host: %s\r\n\r\n' % host)


def test_expectations_that_are_not_met():
  assert fault(with_header(b'Expect: 200-ok')) == 417
  assert framing.Opening().look(with_header(b'Expect: 100-Continue'))


def test_heads_are_bounded():
  many = LINE + b'Host: a\r\n' + b'A: b\r\n' * 99 + b'\r\n'
  assert framing.Opening().look(many).size == len(many)
  assert fault(many.replace(b'A: b\r\n', b'A: b\r\nB: b\r\n', 1)) == 431
  room = framing.MOST_HEAD - len(LINE + b'Host: a\r\nA: \r\n\r\n')
  long = LINE + b'Host: a\r\nA: ' + b'b' * room + b'\r\n\r\n'
  assert framing.Opening().look(long).size == framing.MOST_HEAD
  longer = long.replace(b'A: ', b'A: b')
  assert fault(longer) == fault(longer[: framing.MOST_HEAD]) == 431
  target = b'/' + b'a' * (2**13 - 1)
  assert framing.Opening().look(first(b'GET %s HTTP/1.1' % target))
  assert fault(first(b'GET %sa HTTP/1.1' % target)) == 414


def test_chunks_and_lengths_are_bounded():
  most = framing.Chunked()
  most.take(b'1\r\na\r\n' * 4095 + b'0\r\n\r\n')
  assert most.is_done
  assert fault(chunked(b'1\r\na\r\n' * 4096 + b'0\r\n\r\n')) == 413
  assert fault(with_header(b'Content-Length: ' + b'1' * 19)) == 400


def by_pieces(data, rng):
  """Reads a request as it comes, in pieces; returns (head, body) sizes."""
  opening, inbox, body, head = framing.Opening(), b'', None, 0
  size, at = 0, 0
  while at < len(data):
    step = rng.choice([1, 1, 2, 3, 50, 10_000])
    inbox += data[at : at + step]
    at += step
    if body is None:
      found = opening.look(inbox)
      if found is None:
        continue
      head, body = found
      inbox = inbox[head:]
    taken = body.take(inbox)
    size += taken
    inbox = inbox[taken:]
    if body.is_done:
      return head, size
    assert not inbox
  raise AssertionError('it is not whole')


def drawn(rng):
  """Returns a request that is valid, and its body."""
  body = bytes(rng.choices(b'a\r\n0;', k=rng.choice([0, 1, 5, 300, 5000])))
  head = [b'POST /a?b HTTP/1.1', b'Host: a']
  head += [b'X-%d:\t%s ' % (n, b'v ' * n) for n in range(rng.randrange(9))]
  if rng.random() < 0.5:
    head.append(b'Content-Length: %d' % len(body))
    sent = body
  else:
    head.append(b'Transfer-Encoding: Chunked')
    sent, at = b'', 0
    while at < len(body):
      size = rng.choice([1, 2, 16, 1000])
      piece = body[at : at + size]
      at += size
      extension = rng.choice([b'', b';a', b';a="b"'])
      sent += b'%x%s\r\n%s\r\n' % (len(piece), extension, piece)
    sent += b'0\r\n\r\n'
  rng.shuffle(lines := head[1:])
  return b'\r\n'.join([head[0], *lines, b'', b'']) + sent, body


def test_requests_end_where_h11_sees_their_end_however_they_come():
  rng = random.Random(4)
  for _ in range(300):
    data, body = drawn(rng)
    behind = rng.choice([b'', b'GET / HTTP/1.1\r\n', b'\r\n', b'x'])
    connection = h11.Connection(h11.SERVER, 2**16)
    connection.receive_data(data + behind)
    seen = b''
    while not isinstance(event := connection.next_event(), h11.EndOfMessage):
      seen += event.data if isinstance(event, h11.Data) else b''
    assert seen == body
    assert connection.trailing_data[0] == behind
    head, size = by_pieces(data + behind, rng)
    assert head + size == len(data)
    assert data[:head].endswith(b'\r\n\r\n')


@pytest.mark.parametrize(
  'begun',
  [b'\x16', b' ', b'\r', b'GET /\r\n', b'GET / HTTP/1.1\n', b'GET /\rx', b'\0'],
)
def test_what_cannot_become_a_request_is_not_waited_for(begun):
  with pytest.raises(framing.Fault):
    framing.Opening().look(begun)
  opening = framing.Opening()
  with pytest.raises(framing.Fault):
    for n in range(len(begun)):
      assert opening.look(begun[: n + 1]) is None


@pytest.mark.parametrize('begun', [b'', b'G', b'GET / HTTP/1.1\r', b'GET / HT'])
def test_what_may_become_one_is_waited_for(begun):
  assert framing.Opening().look(begun) is None


def test_each_byte_is_looked_at_once():
  # One look over all that has come, per byte, would be 500 million bytes.
  opening, data = framing.Opening(), bytearray(LINE + b'A: ')

  class Counting(bytearray):
    looked = 0

    def find(self, what, begin=0, end=None):
      Counting.looked += len(self) - begin
      return super().find(what, begin, len(self) if end is None else end)

  counting = Counting(data)
  for _ in range(30_000):
    counting += b'x'
    assert opening.look(counting) is None
  assert Counting.looked < 10 * len(counting)
