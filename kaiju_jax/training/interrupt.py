"""Turns Ctrl-C and SIGTERM into a request to stop after the current step."""

from concurrent import futures
import os
import signal
import threading
from typing import Any
from typing import Self

import jax

_NOTICE = (
  b'\nInterrupted: finishing this step and saving. Again to abort at once.\n'
)
_WAKE_S = 0.1
_WAITER = futures.ThreadPoolExecutor(1, 'step_waiter')


class Interrupt:
  """A context in which the first SIGINT or SIGTERM sets `requested`.

  The first signal also restores the former handlers, so that a second one has
  its usual effect: KeyboardInterrupt for Ctrl-C, the end of the process for
  SIGTERM. Signals that are ignored (`nohup`) stay ignored. Outside the main
  thread, where Python cannot handle signals, this class does nothing.
  """

  def __init__(self):
    self.requested = False
    self._former = {}

  def __enter__(self) -> Self:
    if threading.current_thread() is threading.main_thread():
      for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) not in (signal.SIG_IGN, None):
          self._former[number] = signal.signal(number, self._request)
    return self

  def __exit__(self, *_: object) -> None:
    self._restore()

  def _request(self, number, frame) -> None:
    # Whoever reads `requested` may send the second signal at once.
    self._restore()
    self.requested: bool = True
    # A print within a print that the signal interrupted would raise.
    os.write(2, _NOTICE)

  def _restore(self) -> None:
    while self._former:
      number, handler = self._former.popitem()
      signal.signal(number, handler)


def wait(arrays: Any) -> None:
  """Waits for arrays like `jax.block_until_ready`, and handles signals.

  Python runs no signal handler while its main thread waits inside XLA, and two
  signals in one long step would count as one. So another thread waits there.
  """
  ready = _WAITER.submit(jax.block_until_ready, arrays)
  # The kernel may hand a signal to any thread. It does not wake the main one,
  # which then handles the signal when it wakes by itself.
  while not ready.done():
    futures.wait([ready], timeout=_WAKE_S)
  ready.result()
