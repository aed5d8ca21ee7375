"""A thread-safe least-recently-used mapping, bounded by its values' sizes."""

from collections.abc import Callable
from collections.abc import Hashable
import contextlib
import hashlib
import threading
from typing import Any

import cachetools


class LruCache:
  """A mapping that forgets what was not used for the longest; thread-safe."""

  def __init__(self, most: int, size: Callable[[Any], int] | None = None):
    """Begins empty.

    Values' sizes, 1 each without `size`, add up to at most `most`.

    Raises:
      ValueError: `most` is below 1.
    """
    if most < 1:
      raise ValueError(f'most={most}: must be at least 1.')
    self._held = cachetools.LRUCache(most, size)
    self._lock = threading.Lock()

  def get(self, key: Hashable) -> Any | None:
    """Returns a value, which becomes the newest; None where it is not held."""
    with self._lock:
      return self._held.get(key)

  def put(self, key: Hashable, value: Any) -> None:
    """Holds a value, unless it alone is too large."""
    with self._lock:
      self._held.pop(key, None)
      with contextlib.suppress(ValueError):  # It is too large.
        self._held[key] = value

  def drop(self, key: Hashable) -> None:
    """Forgets a value, where it is held."""
    with self._lock:
      self._held.pop(key, None)


def key(*parts: str | bytes) -> bytes:
  """Returns a digest of parts and of where each ends."""
  sums = hashlib.blake2b(digest_size=16)
  for part in parts:
    if isinstance(part, str):
      part = part.encode(errors='surrogatepass')
    sums.update(b'%d:' % len(part))
    sums.update(part)
  return sums.digest()
