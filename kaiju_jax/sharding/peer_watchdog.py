"""Ends a job at once when one of its processes dies: a watchdog per process.

A process that waits for a dead peer inside a collective waits forever, or gets
an error that does not name the peer. So each process keeps a connection to
process 0 that carries nothing else:

    process 0 ──┬── process 1        the kernel closes a dead process's
                ├── process 2        connections, whatever killed it; process 0
                └── process 3        reads the end and tells the others

Each process then prints which one died and ends. TCP's keepalive notices within
half a minute that a host has vanished. A process that fails sends its reason
before it ends. Imports no jax.
"""

from collections.abc import Callable
from collections.abc import Iterable
import contextlib
import json
import os
import secrets
import selectors
import socket
import sys
import threading
import time
from typing import Any
from typing import NoReturn

# TCP closes a silent connection after 10 + 4·5 seconds.
_KEEPALIVE = {'TCP_KEEPIDLE': 10, 'TCP_KEEPINTVL': 5, 'TCP_KEEPCNT': 4}
_PATIENCE = 5.0
_GRACE = 1.0


def leave_at_once(line: str, status: int = 1) -> NoReturn:
  """Prints a line and ends this process without waiting for any thread."""
  with contextlib.suppress(OSError, ValueError):
    sys.stdout.flush()
    sys.stderr.flush()
  os.write(2, f'{line}\n'.encode())
  os._exit(status)


class PeerWatchdog:
  """One process's end of the connections.

  Args:
    index: the index of this process.
    count: the number of all processes.
    peers: {process: connection}; process 0 has all others, and each other
      process has process 0.
    end: called with the message, in the watching thread, when a peer is gone
      or has failed; must not return.
  """

  def __init__(
    self,
    index: int,
    count: int,
    peers: dict[int, socket.socket],
    end: Callable[[str], Any] = leave_at_once,
  ):
    self._index = index
    self._count = count
    self._peers = peers
    self._end = end
    self._telling = threading.Lock()
    threading.Thread(
      target=self._watch, name='peer_watchdog', daemon=True
    ).start()

  def fail(self, why: str, details: str = '', status: int = 1) -> NoReturn:
    """Ends this process with a message, and sends it to the others.

    It waits a second first. If a peer's death caused the error, the watching
    thread finds that peer within this second and ends the process with its
    name instead.
    """
    time.sleep(_GRACE)
    with self._telling:
      what = f'error: {self._name(self._index)} failed: {why}'
      self._tell({'end': what}, self._peers)
      leave_at_once(f'{details}error: {why}', status)

  def leave(self) -> None:
    """Tells the others that this process is done and its end is no failure."""
    with self._telling:
      self._tell({'done': True}, self._peers)

  def _name(self, process: int) -> str:
    return f'process {process} of {self._count}'

  def _watch(self) -> None:
    with selectors.DefaultSelector() as selector:
      for process, peer in self._peers.items():
        selector.register(peer, selectors.EVENT_READ, (process, bytearray()))
      while selector.get_map():
        for key, _ in selector.select():
          if self._is_done(key.fileobj, *key.data):
            selector.unregister(key.fileobj)

  def _is_done(self, peer, process: int, heard: bytearray) -> bool:
    try:
      data = peer.recv(1 << 16)
    except OSError:
      data = b''
    if not data:
      self._stop(
        f'error: {self._name(process)} is gone: killed, or its host is. The'
        ' same command, for all processes, resumes from the last checkpoint.'
      )
    heard += data
    while b'\n' in heard:
      line, _, rest = bytes(heard).partition(b'\n')
      heard[:] = rest
      message = json.loads(line)
      if 'end' in message:
        self._stop(message['end'])
      if 'done' in message:
        return True
    return False

  def _stop(self, what: str) -> None:
    with self._telling:
      if self._index == 0:
        self._tell({'end': what}, self._peers)
      self._end(what)

  def _tell(self, message: dict[str, Any], peers: Iterable[int]) -> None:
    line = json.dumps(message).encode() + b'\n'
    for process in peers:
      with contextlib.suppress(OSError):
        self._peers[process].sendall(line)


class Server:
  """The socket on which process 0 accepts the others' connections.

  Attributes:
    address: hosts, port and token, for `connect`; JSON can hold it. The token
      keeps other programs out.
  """

  def __init__(self):
    # The backlog holds every process of a large job at once.
    dual = socket.has_dualstack_ipv6()
    self._server = socket.create_server(
      ('', 0),
      family=socket.AF_INET6 if dual else socket.AF_INET,
      dualstack_ipv6=dual,
      backlog=4096,
    )
    self.address = {
      'hosts': _own_hosts(),
      'port': self._server.getsockname()[1],
      'token': secrets.token_hex(16),
    }

  def accept(self, count: int, timeout: float) -> dict[int, socket.socket]:
    """Returns the connections of the processes that came, by index.

    Args:
      count: the number of all processes.
      timeout: seconds to wait for processes 1 … count − 1.
    """
    peers = {}
    deadline = time.monotonic() + timeout
    with self._server, contextlib.suppress(TimeoutError):
      while len(peers) < count - 1:
        self._server.settimeout(max(0.01, deadline - time.monotonic()))
        peer, _ = self._server.accept()
        process = _greet(peer, self.address['token'])
        if process is None:
          peer.close()
        else:
          peers[process] = peer
    return peers


def connect(address: dict[str, Any], process: int) -> socket.socket | None:
  """Returns a connection to process 0, or None if none of its hosts answers."""
  for host in address['hosts']:
    try:
      peer = socket.create_connection((host, address['port']), _PATIENCE)
      hello = {'token': address['token'], 'process': process}
      peer.sendall(json.dumps(hello).encode() + b'\n')
      if peer.recv(1) == b'!':
        return _kept_alive(peer)
    except OSError:
      pass
  return None


def _greet(peer: socket.socket, token: str) -> int | None:
  """Returns the peer's process index, or None if its token is wrong."""
  peer.settimeout(_PATIENCE)
  try:
    hello = json.loads(peer.makefile('rb').readline(1000))
    if not secrets.compare_digest(hello['token'], token):
      return None
    peer.sendall(b'!')
    _kept_alive(peer)
    return hello['process']
  except (OSError, ValueError, TypeError, KeyError):
    return None


def _kept_alive(peer: socket.socket) -> socket.socket:
  peer.settimeout(None)
  peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
  peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
  for name, value in _KEEPALIVE.items():
    if hasattr(socket, name):  # macOS has other names.
      peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
  return peer


def _own_hosts() -> list[str]:
  """Returns names and addresses of this host for its peers to try.

  The address of the default route comes first: a name may resolve to a
  loopback address, as on Debian.
  """
  hosts = []
  with (
    contextlib.suppress(OSError),
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe,
  ):
    probe.connect(('192.0.2.1', 9))  # No host has it; nothing is sent.
    hosts.append(probe.getsockname()[0])
  return list(dict.fromkeys([*hosts, socket.getfqdn(), '127.0.0.1']))
