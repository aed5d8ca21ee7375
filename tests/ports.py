"""A port for a program that cannot choose one itself."""

import itertools
import os
import socket

# Below those that the kernel gives to whoever asks for any: what another test
# opens between here and there cannot take it. Workers begin at different ones.
_FIRST, _MANY = 20_000, 12_000
_next = itertools.count(os.getpid() * 101)


def free() -> int:
  """Returns a port of this machine that nobody listens at."""
  for number in itertools.islice(_next, _MANY):
    port = _FIRST + number % _MANY
    try:
      with socket.create_server(('127.0.0.1', port)):
        return port
    except OSError:
      continue
  raise OSError('no port is free')
