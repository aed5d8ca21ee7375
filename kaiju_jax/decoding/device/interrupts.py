"""Keeps the cache between calls, and delays Ctrl-C until one has given it back.

A call that has begun has donated its buffers; a KeyboardInterrupt before its
results are assigned would lose the cache.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import signal
import threading
from typing import Any

import jax

from kaiju_jax.decoding.device import cache as cache_lib

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


class Closed(RuntimeError):
  """An error: a call failed after it had taken the cache, which is lost."""


class HeldCache:
  """The cache between the calls that take it.

  Calls donate the cache: their output replaces it, so that only one cache's
  bytes exist. A call that fails after it took the cache leaves none.
  """

  def __init__(self, cache: cache_lib.Cache):
    self._cache: cache_lib.Cache | None = cache

  @property
  def is_lost(self) -> bool:
    return self._cache is None

  @property
  def cache(self) -> cache_lib.Cache:
    """The cache after the last call; raises Closed if a call lost it."""
    self.check()
    return self._cache

  def check(self) -> None:
    """Raises Closed if a call lost the cache."""
    if self._cache is None:
      raise Closed(
        'a call failed after it had taken the cache, which is lost with all'
        ' texts in it: make another Decoder.'
      )

  def replace(
    self,
    function: Callable[..., tuple[Any, cache_lib.Cache]],
    params: Any,
    *arguments: Any,
  ) -> Any:
    """Returns the result of `function(params, cache, …)`; keeps its cache."""
    cache = self.cache
    try:
      with delay():
        result, self._cache = function(params, cache, *arguments)
    except BaseException:
      if any(x.is_deleted() for x in jax.tree.leaves(self._cache)):
        self._cache = None
      raise
    return result
