"""A real redis-server of one test, which can be killed and come back."""

import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

import pytest
import redis

PROGRAM = shutil.which('redis-server')
needs_server = pytest.mark.skipif(
  PROGRAM is None,
  reason='no redis-server here: apt-get install redis-server',
)
# The kinds of stores, as a fixture's parameters.
STORES = 'sqlite', pytest.param('redis', marks=needs_server)


class Server:
  """A redis-server on a socket.

  Args:
    has_log: whether a write is on the disk before it is acknowledged.
    options: more of the program's.

  Attributes:
    address: as a store takes it.
    socket: the socket's path.
  """

  def __init__(self, has_log: bool, *options: str):
    # A socket's path must be short.
    self._folder = pathlib.Path(tempfile.mkdtemp(prefix='redis-'))
    self.socket = str(self._folder / 's')
    self.address = f'unix://{self.socket}'
    yes = 'yes' if has_log else 'no'
    self._options = ('--appendonly', yes, '--appendfsync', 'always', *options)
    self._process = None
    self.start()

  def start(self):
    """Starts it, with what it had kept."""
    self._process = subprocess.Popen(
      [
        PROGRAM,
        *('--port', '0', '--unixsocket', self.socket, '--save', ''),
        *('--dir', str(self._folder), '--loglevel', 'warning'),
        *self._options,
      ],
      stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 30
    while True:
      try:
        with self.client() as client:
          client.ping()
        return
      except redis.RedisError:
        assert time.monotonic() < deadline, 'redis-server does not answer'
        assert self._process.poll() is None, 'redis-server ended'
        time.sleep(0.02)

  def client(self) -> redis.Redis:
    return redis.Redis(unix_socket_path=self.socket)

  def kill(self):
    self._process.kill()
    self._process.wait()

  def pause(self):
    os.kill(self._process.pid, signal.SIGSTOP)

  def go_on(self):
    os.kill(self._process.pid, signal.SIGCONT)

  def close(self):
    self.kill()
    shutil.rmtree(self._folder)
