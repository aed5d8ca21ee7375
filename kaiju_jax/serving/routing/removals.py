"""Repeats a removal at the replica that a running text moved to.

An engine drops what a running request of a removed conversation still records.
If the text then goes on at another replica, that one knows of no removal. So
the router removes the conversation once more when such a text has ended.
"""

import asyncio
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Iterable
import contextlib

from kaiju_jax.decoding.engine import forgetting
from kaiju_jax.serving.replies import worker as worker_lib
from kaiju_jax.serving.routing import routed_stream


class Removals:
  """The removed conversations of one router that still have running texts.

  Args:
    forget: drops texts from all caches.
  """

  def __init__(self, forget: Callable[[forgetting.Forget], Awaitable[None]]):
    self._forget = forget
    self._pending: set[routed_stream.RoutedStream] = set()
    self._tasks: set[asyncio.Task] = set()

  def note(
    self,
    removed: forgetting.Forget,
    running: Iterable[routed_stream.RoutedStream],
  ) -> None:
    """Notes the running texts whose conversations are removed."""
    conversations = set(removed.conversations)
    self._pending |= {x for x in running if x.conversation in conversations}

  def repeat(self, stream: routed_stream.RoutedStream) -> None:
    """Repeats the removal for a noted text that has ended and had moved."""
    if stream not in self._pending:
      return
    self._pending.discard(stream)
    if stream.moves:
      wanted = forgetting.Forget(conversations=(stream.conversation,))
      task = asyncio.create_task(self._drop(wanted))
      self._tasks.add(task)
      task.add_done_callback(self._tasks.discard)

  async def _drop(self, wanted: forgetting.Forget) -> None:
    with contextlib.suppress(worker_lib.Stopped):
      await self._forget(wanted)
