"""Copies pages of a cache to the host's memory and back, as plain bytes.

A page's bytes are those of its keys and values in all layers of its kind, for
each of them codes or floats, and scales if there are any. On a mesh they are
those of all devices' stripes and heads, so that any mesh reads them. All calls
have one shape, so that each direction compiles once.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import functools
import math
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from kaiju_jax.decoding.device import cache as cache_lib
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.model import paging
from kaiju_jax.sharding import collectives

# Bytes of a call, and its least and most pages of each kind; our guess.
_BYTES, _LEAST, _MOST = 2**23, 16, 512


class _Part(NamedTuple):
  """One array of a page: its shape [U, S, …] and its type."""

  shape: tuple[int, ...]
  dtype: np.dtype

  @property
  def size(self) -> int:
    return math.prod(self.shape) * self.dtype.itemsize


class Pending:
  """Copies that the device was told to make; no later call changes them."""

  def __init__(
    self, calls: list[Any], pages: Mapping[str, Mapping[int, int]], heads: int
  ):
    self._calls, self._pages, self._heads = calls, pages, heads

  def read(self) -> dict[str, np.ndarray]:
    """Returns the pages' bytes by kind, uint8 [n, bytes]; any thread may.

    Raises ValueError: a page holds numbers that are not finite.
    """
    return {kind: self._read(kind, x) for kind, x in self._pages.items()}

  def _read(self, kind: str, pages: Mapping[int, int]) -> np.ndarray:
    calls = [jax.device_get(call[kind]) for call in self._calls]
    extent_N = np.array(list(pages.values()), np.int32)
    parts = []
    for arrays in zip(*calls):
      joined = np.concatenate(arrays)
      each = joined.reshape(-1, self._heads, *joined.shape[1:])[: len(pages)]
      short = np.flatnonzero(extent_N < each.shape[2])
      if len(short):
        each = each.copy()
      for n in short:
        # The row that wrote the page may have gone on there.
        each[n, :, extent_N[n] :] = 0
      if not np.issubdtype(each.dtype, np.integer):
        _refuse_not_finite(each.astype(np.float32), kind)
      size = each[:1].nbytes if len(each) else 0
      parts.append(each.view(np.uint8).reshape(len(each), size))
    if not parts:
      return np.zeros((0, 0), np.uint8)
    return np.concatenate(parts, axis=1)


class PageCopies:
  """Copies the pages of one decoder's cache."""

  def __init__(self, decoder: decoder_lib.Decoder, batch: int | None = None):
    """Compiles nothing yet; `batch` is None for calls of some 8 MiB."""
    self._decoder = decoder
    heads, pools = decoder.config.num_kv_heads, decoder.network.pools
    self._parts = {
      name: [
        _Part((heads, pools[name].page, *x.shape[2:]), np.dtype(x.dtype))
        for x in jax.tree.leaves((kind.k, kind.v))
      ]
      for name, kind in decoder.cache.kinds.items()
    }
    # The bytes of a page by kind.
    self.page_bytes: dict[str, int] = {
      kind: sum(part.size for part in parts)
      for kind, parts in self._parts.items()
    }
    fit = _BYTES // max(self.page_bytes.values())
    # The pages of each kind in a call.
    self.batch: int = batch or min(max(fit, _LEAST), _MOST)
    # The arrays of a page by kind, in words.
    self.layout: dict[str, list[str]] = {
      kind: [f'{part.dtype.name} {list(part.shape)}' for part in parts]
      for kind, parts in self._parts.items()
    }
    held = tuple(pools.items())
    self._take = decoder.jit(_taking(held))
    self._put = decoder.jit(_putting(held), donate_argnums=1)

  def warm(self) -> None:
    """Compiles both directions."""
    none = {kind: () for kind in self._parts}
    self._decoder.run(self._put, *self._batch(none, none, 0))
    jax.block_until_ready(self._call(none, 0))

  def take(self, pages: Mapping[str, Mapping[int, int]]) -> Pending:
    """Returns copies of pages, by kind {page: how many of its tokens}.

    They are zero behind these tokens. It does not wait for the device.
    """
    numbers = {kind: list(x) for kind, x in pages.items()}
    calls = range(self._calls(pages))
    taken = [self._call(numbers, call) for call in calls]
    return Pending(taken, pages, self._decoder.config.num_kv_heads)

  def put(
    self,
    pages: Mapping[str, Sequence[int]],
    data: Mapping[str, Sequence[np.ndarray]],
  ) -> None:
    """Writes uint8 [n, bytes], by kind, to pages that have no other reader."""
    for call in range(self._calls(pages)):
      self._decoder.run(self._put, *self._batch(pages, data, call))

  def _call(self, pages: Mapping[str, Sequence[int]], call: int) -> Any:
    numbers = {kind: self._numbers(x, call) for kind, x in pages.items()}
    return self._take(self._decoder.cache, numbers)

  def _batch(self, pages, data, call: int):
    """Returns the page numbers and arrays of one call of `put`."""
    numbers = {kind: self._numbers(x, call) for kind, x in pages.items()}
    arrays = {}
    for kind, parts in self._parts.items():
      rows = np.zeros((self.batch, self.page_bytes[kind]), np.uint8)
      given = data[kind][call * self.batch : (call + 1) * self.batch]
      rows[: len(given)] = given if len(given) else 0
      ends = np.cumsum([part.size for part in parts])
      arrays[kind] = [
        np.ascontiguousarray(rows[:, end - part.size : end])
        .view(part.dtype)
        .reshape(self.batch * part.shape[0], *part.shape[1:])
        for part, end in zip(parts, ends)
      ]
    return numbers, arrays

  def _calls(self, pages: Mapping[str, Sequence[int]]) -> int:
    return -(-max(map(len, pages.values())) // self.batch)

  def _numbers(self, pages: Sequence[int], call: int) -> np.ndarray:
    """Returns the pages of one call, int32, −1 for none."""
    numbers = np.full(self.batch, -1, np.int32)
    found = pages[call * self.batch : (call + 1) * self.batch]
    numbers[: len(found)] = found
    return numbers


# One object per pools, as `decoder._of_cache` has one per change.
@functools.cache
def _taking(pools: cache_lib.Pools) -> Callable[..., Any]:
  """Returns a function that returns the arrays of pages by kind, [n·U, S, …].

  Pages are int32 [n] by kind; −1 gives any page.
  """

  def take(cache: cache_lib.Cache, pages: dict[str, jax.Array]):
    found = {}
    for name, pool in pools:
      from_U = cache_lib.pages_of_heads(pages[name][:, None], pool.heads)[:, 0]
      from_U = jnp.maximum(from_U, 0)
      held = jax.tree.leaves((cache.kinds[name].k, cache.kinds[name].v))
      found[name] = [_join(x[from_U], pool) for x in held]
    return found

  return take


@functools.cache
def _putting(pools: cache_lib.Pools) -> Callable[..., Any]:
  """Returns a function for `Decoder.run` that writes `_taking`'s arrays."""

  def put(params, cache: cache_lib.Cache, pages, arrays):
    del params
    kinds = dict(cache.kinds)
    for name, pool in pools:
      kind = kinds[name]
      held, tree = jax.tree.flatten((kind.k, kind.v))
      to_U = cache_lib.pages_of_heads(pages[name][:, None], pool.heads)[:, 0]
      # A scatter drops what lies beyond the pool's end.
      to_U = jnp.where(to_U >= 0, to_U, held[0].shape[0])
      k, v = tree.unflatten(
        x.at[to_U].set(_part(given, pool), mode='drop')
        for x, given in zip(held, arrays[name])
      )
      kinds[name] = kind._replace(k=k, v=v)
    return None, cache._replace(kinds=kinds)

  return put


def _join(x: jax.Array, pool: paging.Pool) -> jax.Array:
  """Returns pages [n·U, S, …] of all devices, from this one's."""
  devices = collectives.width('tensor')
  if devices == 1:
    return x
  groups, rest = devices // pool.stripes, x.shape[2:]
  parts = lax.all_gather(x, 'tensor').reshape(
    groups, pool.stripes, -1, pool.heads, pool.slots, *rest
  )
  parts = jnp.moveaxis(parts, (2, 0, 3, 1), (0, 1, 2, 3))
  return parts.reshape(-1, pool.page, *rest)


def _part(x: jax.Array, pool: paging.Pool) -> jax.Array:
  """Returns this device's heads and slots of pages [n·U, S, …]."""
  devices = collectives.width('tensor')
  if devices == 1:
    return x
  groups, rest = devices // pool.stripes, x.shape[2:]
  parts = x.reshape(-1, groups, pool.heads, pool.stripes, pool.slots, *rest)
  group = lax.axis_index('tensor') // pool.stripes
  own = lax.dynamic_index_in_dim(parts, group, 1, keepdims=False)
  stripe = collectives.stripe(pool.stripes)
  own = lax.dynamic_index_in_dim(own, stripe, 2, keepdims=False)
  return own.reshape(-1, pool.slots, *rest)


def _refuse_not_finite(x: np.ndarray, kind: str) -> None:
  if not np.isfinite(x).all():
    raise ValueError(f'a {kind} page holds numbers that are not finite.')
