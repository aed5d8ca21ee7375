"""Malformed requests on raw sockets: refused, and nothing behind them is run.

Behind each stands a request that is valid. A server that ends the malformed one
elsewhere than a proxy would run it (request smuggling); this one never does.
"""

import collections
import random

import pytest

from kaiju_jax.serving.http import server as server_lib
from tests.serving import malformed
from tests.serving import trivial

_BEHIND = b'GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n'
_CONTROL = trivial.GET.replace(b'\r\n\r\n', b'\r\nConnection: close\r\n\r\n')


def refused(server, one):
  """Sends a malformed request; returns its answers' statuses."""
  behind = b'' if one.is_cut else _BEHIND
  with trivial.connected(server, 20) as client:
    try:
      client.sendall(one.data + behind)
      if one.is_cut:
        client.shutdown(1)
    except ConnectionError:
      pass  # It was refused before all of it was sent.
    received = trivial.rest(client)
  assert received.count(b'HTTP/1.1 ') == len(trivial.statuses(received))
  return trivial.statuses(received)


def check(count, seed):
  """Sends so many; returns how often each status came."""
  rng = random.Random(seed)
  application = trivial.Application()
  found = collections.Counter()
  with server_lib.running(application.app) as server:
    for n in range(count):
      one = malformed.drawn(rng)
      statuses = refused(server, one)
      where = one.rule, n, one.data[:300]
      # One answer at most, and none to what stands behind it. A client that
      # ends in the middle has left: it may get none.
      assert len(statuses) == 1 or (one.is_cut and not statuses), where
      assert all(400 <= x < 500 for x in statuses), (statuses, where)
      found.update(statuses or ['closed'])
      if n % 50 == 0:
        valid = trivial.exchange(server, _CONTROL)
        assert trivial.statuses(valid) == [200], where
    assert '/smuggled' not in application.paths
    assert set(application.paths) == {'/'}
    assert trivial.until(lambda: not server.server_state.connections)
    assert not server.server_state.tasks
  return found


def test_malformed_requests_are_refused():
  found = check(200, 7)
  assert {400, 404, 405, 413, 415, 431, 'closed'} <= set(found), found


@pytest.mark.slow
def test_five_thousand_malformed_requests_are_refused():
  found = check(5000, 8)
  assert sum(found.values()) == 5000
  assert {400, 404, 405, 413, 414, 415, 417, 431} <= set(found), found


def test_what_the_rules_begin_with_is_valid():
  # Otherwise their faults would not be what is refused.
  rng = random.Random(9)
  application = trivial.Application()
  with server_lib.running(application.app) as server:
    for make in (malformed.valid, malformed.chunked) * 10:
      one = make(rng)
      one.lines.append(b'Connection: close')
      received = trivial.exchange(server, one.data())
      assert trivial.statuses(received) == [200], one
    one = malformed.posted(rng, b'{}')
    received = trivial.exchange(server, one.data())
    assert trivial.statuses(received) == [200]
