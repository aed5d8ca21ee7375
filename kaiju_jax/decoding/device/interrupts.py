"""Delays Ctrl-C until a call has given back the cache that it took.

A call that has begun has donated its buffers; a KeyboardInterrupt before its
results are assigned would lose the cache.
"""

from collections.abc import Iterator
import contextlib
import signal
import threading

# Whether the main thread is in such a block.
_is_held = False


@contextlib.contextmanager
def delay() -> Iterator[None]:
  """Delays Ctrl-C to the end of the block, where its handler then runs.

  Blocks nest. It does nothing outside the main thread, where Python runs no
  signal handlers, or if SIGINT has no Python handler.
  """
  global _is_held
  former = None
  # A block within another has nothing to delay.
  if not _is_held and threading.current_thread() is threading.main_thread():
    former = signal.getsignal(signal.SIGINT)
  if not callable(former):
    yield
    return
  came = []
  _is_held = True
  signal.signal(signal.SIGINT, lambda *signalled: came.append(signalled))
  try:
    yield
  finally:
    signal.signal(signal.SIGINT, former)
    _is_held = False
    for signalled in came:
      # A handler may have put another in its place.
      handler = signal.getsignal(signal.SIGINT)
      if callable(handler):
        handler(*signalled)
