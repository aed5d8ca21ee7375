"""Holds the cache between the calls that take it.

Calls donate the cache: their output replaces it, so that only one cache's bytes
exist. A call that fails after it took the cache leaves none.
"""

from collections.abc import Callable
from typing import Any

import jax

from kaiju_jax.decoding.device import cache as cache_lib
from kaiju_jax.decoding.device import interrupts


class Closed(RuntimeError):
  """An error: a call failed after it had taken the cache, which is lost."""


class HeldCache:
  def __init__(self, cache: cache_lib.Cache):
    self._cache: cache_lib.Cache | None = cache

  @property
  def is_lost(self) -> bool:
    return self._cache is None

  @property
  def cache(self) -> cache_lib.Cache:
    """The cache after the last call; raises Closed if a call lost it."""
    if self._cache is None:
      raise Closed(
        'a call failed after it had taken the cache, which is lost with all'
        ' texts in it: make another Decoder.'
      )
    return self._cache

  def replace(
    self,
    function: Callable[..., tuple[Any, cache_lib.Cache]],
    params: Any,
    *arguments: Any,
  ) -> Any:
    """Returns the result of `function(params, cache, …)`; keeps its cache."""
    cache = self.cache
    try:
      with interrupts.delay():
        result, self._cache = function(params, cache, *arguments)
    except BaseException:
      if any(x.is_deleted() for x in jax.tree.leaves(self._cache)):
        self._cache = None
      raise
    return result
