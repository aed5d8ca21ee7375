"""Between a store and its Redis: cuts the line where a test says."""

import contextlib
import pathlib
import select
import socket
import tempfile
import threading
import time


class Proxy:
  """Forwards a socket, and cuts it once after a word from the client.

  Attributes:
    address: as a store takes it.
    word: what the client says last; the server hears it, and its answer is
      lost. None cuts nothing.
    cuts: how often it has cut.
    is_silent: whether it takes connections and forwards nothing.
    accepted: how many connections it has taken.
  """

  def __init__(self, server: str):
    self._server = server
    self._folder = tempfile.TemporaryDirectory(prefix='proxy-')
    path = str(pathlib.Path(self._folder.name) / 's')
    self.address = f'unix://{path}'
    self.word, self.cuts = None, 0
    self.is_silent, self.accepted = False, 0
    self._listener = socket.socket(socket.AF_UNIX)
    self._listener.bind(path)
    self._listener.listen()
    threading.Thread(target=self._accept, daemon=True).start()

  def close(self):
    self._listener.close()
    self._folder.cleanup()

  def _accept(self):
    while True:
      try:
        client, _ = self._listener.accept()
      except OSError:
        return
      self.accepted += 1
      threading.Thread(
        target=self._forward, args=(client,), daemon=True
      ).start()

  def _forward(self, client):
    # Either end may go first.
    broken = contextlib.suppress(OSError)
    with broken, client, socket.socket(socket.AF_UNIX) as server:
      server.connect(self._server)
      while True:
        for one in select.select([client, server], [], [])[0]:
          while self.is_silent:
            time.sleep(0.01)
          data = one.recv(1 << 20)
          if not data:
            return
          other = server if one is client else client
          other.sendall(data)
          if one is client and self.word and self.word in data:
            server.recv(1)  # It has been done.
            self.word = None
            self.cuts += 1
            return
