"""The processes that read and run a tokenizer, each with limits.

A tokenizer.json is a program of a stranger: its expressions may try all ways
through a text, its replacements may grow without end, and its library panics.
So no process of ours runs one. The first process, which `client` starts, copies
itself for each file, and that copy copies itself for each thread that encodes:
a copy shares the vocabulary's memory and takes milliseconds, so that one that
exceeds a limit is replaced at once.

All speak over Unix sockets. The first process and a file's process make a copy
for whoever sends them a socket. Frames are a `HEAD` and so many bytes:

    to a file's copy      the file; back: JSON, with `error` or what it is
    to an encoder         a part of a text; back: tokens, and where they are
"""

import array
from collections.abc import Callable
import contextlib
import itertools
import json
import os
import resource
import signal
import socket
import struct
from typing import Any

PIECE = 2**14  # Characters that are encoded at once, where a cut is free.
MOST = 2**18  # Characters without a free cut.
SECONDS = 0.5  # Of processor time for a `PIECE`.
LOADING = 60  # Seconds of processor time for a file.
# A text of n bytes has at most GROWTH × n + SPARE tokens. (NFKC makes 11 bytes
# of one.)
GROWTH, SPARE = 16, 1024
# Bytes of memory, besides those in proportion to the file.
MEMORY, PER_BYTE = 2**29, 64

# The bytes that follow; a byte that says what they are.
HEAD = struct.Struct('<QB')
SPELLS = 1  # Of a file: special tokens that a text spells are text.
PART, LAST, PLACES = 0, 1, 2  # Flags of a part of a text.
DONE, FAILED = 0, 1


class _Failed(Exception):
  """A text that is not encoded; says why."""


def main() -> None:
  """Serves as the first process; its socket is stdin."""
  for one in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
    signal.signal(one, signal.SIG_IGN)  # It ends when its client does.
  import tokenizers  # noqa: F401  Copies need not import it.

  with socket.socket(fileno=os.dup(0)) as link:
    _copy_for_each(link, _serve_file)


def _copy_for_each(
  link: socket.socket, run: Callable[[socket.socket], None]
) -> None:
  """Makes a copy of this process for each socket that comes, until the end."""
  signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Leaves no zombies.
  while True:
    _, found, _, _ = socket.recv_fds(link, 1, 1)
    if not found:
      return
    with socket.socket(fileno=found[0]) as own:
      if os.fork():
        continue
      link.close()
      with contextlib.suppress(OSError):  # The client has left.
        run(own)
      os._exit(0)


def _serve_file(link: socket.socket) -> None:
  """Reads a file, answers what it is, and makes encoders."""
  import tokenizers

  data, flags = receive(link)
  _limit(MEMORY + PER_BYTE * len(data))
  signal.setitimer(signal.ITIMER_PROF, LOADING)
  try:
    found, tokenizer, cuts = _load(tokenizers, data)
    tokenizer.encode_special_tokens = bool(flags & SPELLS)
  except BaseException as error:  # A panic of the library is no Exception.
    send(link, json.dumps({'error': str(error)[:500]}).encode(), FAILED)
    return
  signal.setitimer(signal.ITIMER_PROF, 0)
  send(link, json.dumps(found).encode(), DONE)
  _copy_for_each(link, lambda own: _serve_texts(own, tokenizer, cuts))


def _load(tokenizers: Any, data: bytes) -> tuple[dict[str, Any], Any, Any]:
  """Returns what a file is, its tokenizer, and where it lets texts be cut."""
  from kaiju_jax.data.guarded import cuts

  tokenizer = tokenizers.Tokenizer.from_buffer(data)
  tokenizer.no_truncation()
  tokenizer.no_padding()
  opening = tokenizer.encode('').ids
  # It puts tokens around a text, and changes where they are.
  tokenizer.post_processor = None
  added = tokenizer.get_added_tokens_decoder()
  found = {
    'opening': opening[:SPARE],
    'size': 1 + max(tokenizer.get_vocab().values(), default=-1),
    'added': {one.content: index for index, one in added.items()},
  }
  return found, tokenizer, cuts.Cuts(tokenizer)


def _limit(memory: int) -> None:
  limits = {
    resource.RLIMIT_AS: memory,
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_CORE: 0,
  }
  for limit, most in limits.items():
    # macOS has no limit of memory.
    with contextlib.suppress(ValueError, OSError):
      resource.setrlimit(limit, (most, most))


def _serve_texts(link: socket.socket, tokenizer: Any, cuts: Any) -> None:
  """Encodes texts until one fails, which may have left the library broken."""
  text = None
  while True:
    data, flags = receive(link)
    text = text or _Text(tokenizer, cuts)
    try:
      answer = text.encode(data.decode(), flags)
    except BaseException as error:  # A panic of the library is no Exception.
      send(link, str(error)[:500].encode(), FAILED)
      return
    signal.setitimer(signal.ITIMER_PROF, 0)
    send(link, answer, DONE)
    if flags & LAST:
      text = None


class _Text:
  """One text, of which parts come in turn."""

  def __init__(self, tokenizer: Any, cuts: Any):
    self._tokenizer = tokenizer
    self._cuts = cuts
    self._held = ''  # What is not encoded yet, behind some context.
    self._context = 0  # Characters of the context.
    self._before = 0  # Characters before what is held.

  def encode(self, part: str, flags: int) -> bytes:
    """Returns tokens, int32 [n], and, if asked, their places, int64 [n, 2].

    What stands behind the last free cut waits for the next part.
    """
    self._held += part
    seconds = SECONDS * max(1, len(self._held) / PIECE)
    # Its signal ends the process, also within the library.
    signal.setitimer(signal.ITIMER_PROF, seconds)
    end, is_last = len(self._held), bool(flags & LAST)
    if not is_last:
      end = self._find_cut()
      if end is None:
        return b''
    around = self._held[: end + self._cuts.overlap]
    encode = self._tokenizer.encode_batch_fast
    if flags & PLACES or self._context or not is_last:
      encode = self._tokenizer.encode_batch
    (encoding,) = encode([around], add_special_tokens=False)
    ids = encoding.ids
    most = GROWTH * len(around.encode()) + SPARE
    if len(ids) > most:
      raise _Failed(
        f'it makes {len(ids):,} tokens of {len(around):,} characters'
      )
    first = self._count(encoding, self._context, around)
    past = len(ids) if is_last else self._count(encoding, end, around)
    answer = array.array('i', ids[first:past]).tobytes()
    if flags & PLACES:
      places = itertools.chain(*encoding.offsets[first:past])
      answer += array.array('q', (self._before + x for x in places)).tobytes()
    kept = max(0, end - self._cuts.overlap)
    self._held, self._context = self._held[kept:], end - kept
    self._before += kept
    return answer

  def _find_cut(self) -> int | None:
    """Returns the last free cut of what is held; None for none."""
    past = len(self._held) - self._cuts.overlap + 1
    found = self._cuts.find(
      self._held, max(self._context + 1, past - PIECE), past
    )
    if found is None and len(self._held) - self._context > MOST:
      why = self._cuts.whole and f': {self._cuts.whole} reads it as a whole'
      raise _Failed(
        f'the text has {MOST:,} characters in a row without a place at which it'
        f' could be cut and keep its tokens{why}'
      )
    return found

  def _count(self, encoding: Any, place: int, around: str) -> int:
    """Returns how many tokens are left of a free cut."""
    if not place:
      return 0
    found = self._cuts.count_left(encoding, place, around)
    if found is None:
      raise _Failed(
        'the tokens of the text depend on more of it than a piece of'
        f' {PIECE:,} characters'
      )
    return found


def send(link: socket.socket, data: bytes, kind: int) -> None:
  """Sends a frame.

  Raises:
    OSError: the other side has left.
  """
  link.sendall(HEAD.pack(len(data), kind) + data)


def receive(link: socket.socket) -> tuple[bytes, int]:
  """Returns the bytes of a frame and what they are.

  Raises:
    OSError: the other side has left.
  """
  size, kind = HEAD.unpack(_read(link, HEAD.size))
  return _read(link, size), kind


def _read(link: socket.socket, size: int) -> bytes:
  data = bytearray(size)
  view = memoryview(data)
  while view:
    count = link.recv_into(view)
    if not count:
      raise ConnectionError('the other side has left')
    view = view[count:]
  return bytes(data)
