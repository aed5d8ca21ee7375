"""A tokenizer in processes with limits (`process.py`).

Threads that encode at the same time have a process each, so that no text waits
for another's.
"""

import atexit
from collections.abc import Iterator
import functools
import json
import os
import pathlib
import socket
import subprocess
import sys
import threading
from typing import Any
import weakref

import numpy as np

from kaiju_jax.data.guarded import process

_IDLE = 4  # Encoders of a file that are kept for later texts.
_OPEN = 4  # Files that stay open: those of a folder with a chat template.
_ROOT = pathlib.Path(__file__).parents[3]
_CODE = (
  'import sys; sys.path.insert(0, sys.argv[1]);'
  'from kaiju_jax.data.guarded import process; process.main()'
)


class Refused(ValueError):
  """A file or a text that takes too much, or that the library refuses."""


class Tokenizer:
  """A `tokenizer.json`, read and run in guarded processes.

  Attributes:
    opening: the tokens that it puts around a text, of an empty one.
    vocab_size: one more than the largest token.
    added: its added tokens, by name.
  """

  def __init__(self, data: bytes, spells_special: bool = False):
    """Reads a file.

    Args:
      data: its content.
      spells_special: whether text that spells a special token is text.

    Raises:
      Refused: it is no tokenizer, or takes too much time or memory.
    """
    self._data = data
    self._kind = process.SPELLS if spells_special else 0
    self._lock = threading.Lock()
    self._link: socket.socket | None = None
    self._idle: list[socket.socket] = []
    self._owner = 0
    with self._lock:
      found = self._load()
    self.opening: list[int] = found['opening']
    self.vocab_size: int = found['size']
    self.added: dict[str, int] = found['added']

  def encode(
    self, text: str, places: bool = False
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the tokens of a text, piece by piece, without those around it.

    Yields:
      int32 [n], tokens; int64 [n, 2], the first character of each and one past
      its last, or [0, 2] without `places`.

    Raises:
      Refused: a piece of the text takes too much time or memory.
      UnicodeEncodeError: the text holds a half of a surrogate pair.
    """
    link = self._take()
    is_whole = False
    try:
      end = 0
      while end < len(text) or not end:
        begin, end = end, end + process.PIECE
        flags = process.LAST if end >= len(text) else process.PART
        flags |= process.PLACES if places else 0
        data, status = _ask(link, text[begin:end].encode(), flags)
        if status == process.FAILED:
          raise Refused(f'{data.decode()}.')
        if places:
          count = len(data) // 20  # An int32 and two int64 each.
          yield (
            np.frombuffer(data, np.int32, count),
            np.frombuffer(data[4 * count :], np.int64).reshape(-1, 2),
          )
        else:
          yield np.frombuffer(data, np.int32), np.empty((0, 2), np.int64)
      is_whole = True
    finally:
      self._give_back(link, is_whole)

  def _take(self) -> socket.socket:
    """Returns the socket of an encoder that is idle or new."""
    with self._lock:
      if self._owner != os.getpid():  # This process is a copy of its owner.
        self._link, self._idle = None, []
      if self._idle:
        return self._idle.pop()
      if self._link is not None:
        try:
          return _copy(self._link)
        except OSError:
          pass  # It was killed, for instance when memory was short.
      self._load()
      return _copy(self._link)

  def _give_back(self, link: socket.socket, is_whole: bool) -> None:
    with self._lock:
      is_ours = self._owner == os.getpid()
      if is_whole and is_ours and len(self._idle) < _IDLE:
        self._idle.append(link)
      else:
        link.close()

  def _load(self) -> dict[str, Any]:
    """Starts the file's process; returns what the file is."""
    self._link = _first().copy()
    self._owner = os.getpid()
    data, status = _ask(self._link, self._data, self._kind)
    found = json.loads(data)
    if status == process.FAILED:
      raise Refused(found['error'])
    return found


@functools.lru_cache(_OPEN)
def open_tokenizer(data: bytes, spells_special: bool = False) -> Tokenizer:
  """Returns the tokenizer of a file, which stays open for later calls."""
  return Tokenizer(data, spells_special)


class _First:
  """The first process."""

  def __init__(self):
    self._owner = os.getpid()
    self._link, theirs = socket.socketpair()
    with theirs:
      self._process = subprocess.Popen(
        [sys.executable, '-I', '-B', '-c', _CODE, str(_ROOT)],
        stdin=theirs,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={'TOKENIZERS_PARALLELISM': 'false'},
        cwd='/',
      )
    atexit.register(self.close)

  def is_alive(self) -> bool:
    return self._owner == os.getpid() and self._process.poll() is None

  def copy(self) -> socket.socket:
    return _copy(self._link)

  def close(self) -> None:
    """Ends it; all copies end with their clients' sockets."""
    for link in (self._link, *_links):
      link.close()
    if self._owner == os.getpid():
      self._process.wait()


# Those of all copies, of which some stay open until this process ends.
_links: weakref.WeakSet[socket.socket] = weakref.WeakSet()
_started: _First | None = None
_starting = threading.Lock()


def _first() -> _First:
  """Returns the first process, which is started once."""
  global _started
  with _starting:
    if _started is None or not _started.is_alive():
      _started = _First()
    return _started


def _copy(link: socket.socket) -> socket.socket:
  """Asks a process for a copy of itself; returns the copy's socket."""
  own, theirs = socket.socketpair()
  with theirs:
    socket.send_fds(link, [b'+'], [theirs.fileno()])
  _links.add(own)
  return own


def _ask(link: socket.socket, data: bytes, kind: int) -> tuple[bytes, int]:
  """Sends a frame, and returns the answer.

  Raises:
    Refused: the process was ended by a limit.
  """
  try:
    process.send(link, data, kind)
    return process.receive(link)
  except OSError as error:
    raise Refused(
      f'it takes more than {process.SECONDS:g} s of processor time for'
      f' {process.PIECE:,} characters, or more than'
      f' {process.MEMORY // 2**20:,} MiB of memory.'
    ) from error
