"""Modules that sleep for shorter than they say."""

import asyncio
import types


def shorten(patch, module, factor: float = 10.0) -> None:
  """Has a module's `asyncio.sleep` take a part of its seconds."""

  async def sleep(seconds):
    await asyncio.sleep(seconds / factor)

  shortened = vars(asyncio) | {'sleep': sleep}
  patch.setattr(module, 'asyncio', types.SimpleNamespace(**shortened))
