"""Threads in which owners' work is done in turns, so that none waits for long.

An owner whose work takes long, or who sends much of it, fills only a queue of
their own: the next free thread goes to the owner who has waited longest since
their last turn.

All methods run in the server's event loop.
"""

import asyncio
import collections
from collections.abc import Callable
from collections.abc import Hashable
from concurrent import futures
import contextlib
import contextvars
from typing import TypeVar

_T = TypeVar('_T')
# The owner for whom the current task works; '' for the server itself.
OWNER: contextvars.ContextVar[Hashable] = contextvars.ContextVar(
  'owner', default=''
)


class FairThreads:
  """A pool of threads that serves owners in turns.

  Args:
    name: the threads' names begin with it.
    count: the number of threads.
    each: the most threads that work for one owner at once.
    short: bytes of a text that the event loop itself works on; an attribute.
  """

  def __init__(self, name: str, count: int, each: int, short: int = -1):
    self.short = short
    self._threads = futures.ThreadPoolExecutor(count, name)
    self._free = count
    self._each = each
    self._running: collections.Counter[Hashable] = collections.Counter()
    # Calls that wait, by owner; the owner whose turn is next comes first.
    self._waiting: dict[Hashable, collections.deque] = {}

  async def run(
    self, function: Callable[[], _T], size: int | None = None
  ) -> _T:
    """Calls a function in a thread when it is its owner's turn.

    Once it runs, it runs to its end, even if the caller is cancelled.

    Args:
      size: bytes of a text, in proportion to which it takes time; a short one
        does not leave the event loop. None for a thread in any case.
    """
    if size is not None and size <= self.short:
      return function()
    loop, owner = asyncio.get_running_loop(), OWNER.get()
    result = loop.create_future()
    calls = self._waiting.setdefault(owner, collections.deque())
    calls.append((function, result))
    self._start(loop)
    return await result

  def close(self) -> None:
    """Waits for running functions, and drops the waiting ones."""
    self._threads.shutdown(cancel_futures=True)

  def _start(self, loop: asyncio.AbstractEventLoop) -> None:
    """Starts the next calls, as many as there are free threads."""
    while self._free and (owner := self._find_next()) is not None:
      calls = self._waiting.pop(owner)
      function, result = calls.popleft()
      if calls:
        self._waiting[owner] = calls  # Behind all other owners.
      self._free -= 1
      self._running[owner] += 1
      self._submit(loop, owner, function, result)

  def _find_next(self) -> Hashable | None:
    """Returns the owner whose turn it is; drops cancelled calls."""
    for owner, calls in list(self._waiting.items()):
      while calls and calls[0][1].cancelled():
        calls.popleft()
      if not calls:
        del self._waiting[owner]
      elif self._running[owner] < self._each:
        return owner
    return None

  def _submit(self, loop, owner, function, result: asyncio.Future) -> None:
    def end(work: futures.Future) -> None:
      self._free += 1
      self._running[owner] -= 1
      if not self._running[owner]:
        del self._running[owner]
      self._start(loop)
      if result.cancelled():
        return
      if error := work.exception():
        result.set_exception(error)
      else:
        result.set_result(work.result())

    def notify(work: futures.Future) -> None:
      with contextlib.suppress(RuntimeError):  # The loop has been closed.
        loop.call_soon_threadsafe(end, work)

    self._threads.submit(function).add_done_callback(notify)
