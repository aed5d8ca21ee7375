"""Tells operators that a store fails, without a line for each call of many.

The first fault of a kind is logged at once, further ones at most every ten
seconds, with how many there were meanwhile; so is the end of the faults.
"""

from collections.abc import Callable
import logging
import threading
import time

_LOG = logging.getLogger(__name__)
SECONDS = 10.0  # Between two lines about the same kind of fault (our guess).


class Faults:
  """The faults of one store, from any thread.

  Args:
    clock: seconds, from any moment on.
  """

  def __init__(self, clock: Callable[[], float] = time.monotonic):
    self._clock = clock
    self._guard = threading.Lock()
    # By kind: when it was last logged, and how often it came since.
    self._kinds: dict[str, tuple[float, int]] = {}
    self._count = 0

  def note(self, kind: str, message: str) -> None:
    """Notes a fault.

    Args:
      kind: few different ones; each is limited by itself.
      message: what failed, and where.
    """
    now = self._clock()
    with self._guard:
      self._count += 1
      last, more = self._kinds.get(kind, (now - SECONDS, 0))
      if now - last < SECONDS:
        self._kinds[kind] = last, more + 1
        return
      self._kinds[kind] = now, 0
    _LOG.warning('%s%s', message, f' ({more} more before.)' if more else '')

  def end(self) -> None:
    """Notes that the store has done what it was asked."""
    if not self._count:
      return
    with self._guard:
      count, self._count = self._count, 0
      self._kinds.clear()
    if count:
      _LOG.warning('The store answers again, after %d faults.', count)
