"""Logs a store's faults for operators, without a line for each failed call.

The first fault of a kind is logged at once, later ones at most every ten
seconds with their number. The end of the faults is logged, too.
"""

from collections.abc import Callable
import logging
import threading
import time

_LOG = logging.getLogger(__name__)
SECONDS = 10.0  # Between two lines about the same kind of fault (our guess).


class Faults:
  """The faults of one store, from any thread."""

  def __init__(self, clock: Callable[[], float] = time.monotonic):
    self._clock = clock
    self._guard = threading.Lock()
    # By kind: when it was last logged, and how often it came since.
    self._kinds: dict[str, tuple[float, int]] = {}
    self.count: int = 0  # The faults since the last call that succeeded.

  def note(self, kind: str, message: str) -> None:
    """Notes a fault; lines are limited per `kind`, one of few words."""
    now = self._clock()
    with self._guard:
      self.count += 1
      last, more = self._kinds.get(kind, (now - SECONDS, 0))
      if now - last < SECONDS:
        self._kinds[kind] = last, more + 1
        return
      self._kinds[kind] = now, 0
    _LOG.warning('%s%s', message, f' ({more} more before.)' if more else '')

  def end(self) -> None:
    """Notes that a call succeeded, which ends the faults."""
    if not self.count:
      return
    with self._guard:
      count, self.count = self.count, 0
      self._kinds.clear()
    if count:
      _LOG.warning('The store answers again, after %d faults.', count)
