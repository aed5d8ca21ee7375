"""A router over replicas that other ingresses use, too."""

import asyncio

from kaiju_jax.serving.routing import router

_LOOK = 0.05  # Seconds between two looks at whether all streams have ended.


class SharedRouter(router.Router):
  """A router whose end is none of its replicas' business."""

  async def drain(self, seconds: float) -> int:
    """Refuses requests here; returns how many had to be ended here."""
    self._is_draining = True
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while self._streams and loop.time() < end:
      await asyncio.sleep(_LOOK)
    left = list(self._streams)
    for stream in left:
      stream.cancel()
    return len(left)
