"""Forgets again what a text records that was forgotten while it ran.

An engine drops what a running request of a removed conversation still records.
If the text then goes on at another replica, that one knows of no removal. So
the conversation is forgotten once more when such a text has ended.
"""

import asyncio
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Iterable
import contextlib

from kaiju_jax.decoding.engine import forgetting
from kaiju_jax.serving.replies import worker as worker_lib
from kaiju_jax.serving.routing import routed_stream


class Forgotten:
  """The running texts of one router whose conversations were removed.

  Args:
    forget: drops texts from all caches.
  """

  def __init__(self, forget: Callable[[forgetting.Forget], Awaitable[None]]):
    self._forget = forget
    self._owed: set[routed_stream.RoutedStream] = set()
    self._tasks: set[asyncio.Task] = set()

  def note(
    self,
    wanted: forgetting.Forget,
    running: Iterable[routed_stream.RoutedStream],
  ) -> None:
    """Notes which of the running texts are to be forgotten."""
    gone = set(wanted.conversations)
    self._owed |= {one for one in running if one.whose in gone}

  def settle(self, stream: routed_stream.RoutedStream) -> None:
    """Forgets a text that has ended, if it is owed and has moved."""
    if stream not in self._owed:
      return
    self._owed.discard(stream)
    if stream.moves:
      wanted = forgetting.Forget(conversations=(stream.whose,))
      task = asyncio.create_task(self._drop(wanted))
      self._tasks.add(task)
      task.add_done_callback(self._tasks.discard)

  async def _drop(self, wanted: forgetting.Forget) -> None:
    with contextlib.suppress(worker_lib.Stopped):
      await self._forget(wanted)
