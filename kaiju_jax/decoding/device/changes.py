"""Changes of the cache alone, as functions for `Decoder.run`.

Each is one object, so that decoders of equal shapes share what is compiled.
"""

from collections.abc import Callable
import functools
from typing import Any

from kaiju_jax.decoding.device import cache as cache_lib


def _of_cache(change: Callable[..., cache_lib.Cache]) -> Callable[..., Any]:
  def function(params, cache, *arguments):
    del params
    return None, change(cache, *arguments)

  return function


GIVE_PAGES = _of_cache(cache_lib.give_pages)
REISSUE = _of_cache(cache_lib.reissue)


@functools.cache
def copy_pages(heads: int) -> Callable[..., Any]:
  return _of_cache(functools.partial(cache_lib.copy_pages, heads=heads))


@functools.cache
def lend(heads: int) -> Callable[..., Any]:
  """Returns a function that copies pages and gives a row the copies."""

  def change(cache, row, pages, copies):
    cache = cache_lib.copy_pages(cache, copies, heads)
    return cache_lib.set_table(cache, row, pages)

  return _of_cache(change)


@functools.cache
def settle(heads: int) -> Callable[..., Any]:
  return _of_cache(functools.partial(cache_lib.settle, heads=heads))
