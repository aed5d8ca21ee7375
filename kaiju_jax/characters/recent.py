"""What was used of late, within a size: the oldest makes room."""

import collections
from collections.abc import Hashable
import hashlib
import threading
from typing import Any


class Recent:
  """A mapping that forgets what was not used for the longest; thread-safe."""

  def __init__(self, most: int):
    """Begins empty.

    Args:
      most: what the sizes of all values add up to, at most.

    Raises:
      ValueError: no size.
    """
    if most < 1:
      raise ValueError(f'most={most}: must be at least 1.')
    self._most = most
    self._held: collections.OrderedDict[Hashable, tuple[Any, int]] = (
      collections.OrderedDict()
    )
    self._lock = threading.Lock()
    self.size = 0

  def __len__(self) -> int:
    return len(self._held)

  def get(self, key: Hashable) -> Any | None:
    """Returns a value, which becomes the newest; None where it is not held."""
    with self._lock:
      found = self._held.get(key)
      if found is None:
        return None
      self._held.move_to_end(key)
      return found[0]

  def put(self, key: Hashable, value: Any, size: int) -> None:
    """Holds a value, unless it alone is too large."""
    with self._lock:
      self._drop(key)
      if size > self._most:
        return
      self._held[key] = (value, size)
      self.size += size
      while self.size > self._most:
        self.size -= self._held.popitem(last=False)[1][1]

  def drop(self, key: Hashable) -> None:
    """Forgets a value, where it is held."""
    with self._lock:
      self._drop(key)

  def _drop(self, key: Hashable) -> None:
    if key in self._held:
      self.size -= self._held.pop(key)[1]


def key(*parts: str | bytes) -> bytes:
  """Returns a digest of parts and of where each ends."""
  sums = hashlib.blake2b(digest_size=16)
  for part in parts:
    if isinstance(part, str):
      part = part.encode(errors='surrogatepass')
    sums.update(b'%d:' % len(part))
    sums.update(part)
  return sums.digest()
