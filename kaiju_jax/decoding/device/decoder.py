"""A model and its cache: opens rows, extends, records and closes them.

The decoder is the only writer of its cache, always through `Decoder.run`. Each
shape [B, L] of a call compiles once; opening and closing rows compiles nothing.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax.decoding.device import cache as cache_lib
from kaiju_jax.decoding.device import extend
from kaiju_jax.decoding.device import interrupts
from kaiju_jax.decoding.device import placement
from kaiju_jax.decoding.device import weights
from kaiju_jax.decoding.pages import nodes
from kaiju_jax.decoding.pages import prefix_tree
from kaiju_jax.decoding.pages import rows as rows_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.kernels import dispatch
from kaiju_jax.model import config as model_config
from kaiju_jax.model import paging
from kaiju_jax.model import rotary
from kaiju_jax.model import transformer
from kaiju_jax.wire import ternary_plan

# An error: a call failed after it had taken the cache, which is lost.
Closed = interrupts.Closed


# One object per change: decoders of equal shapes share what is compiled for one
# device in the fast mode.
@functools.cache
def _of_cache(
  change: Callable[..., cache_lib.Cache], pools: cache_lib.Pools
) -> Callable[..., Any]:
  """Returns a change of the cache alone, as a function for `Decoder.run`."""

  def function(params, cache, *arguments):
    del params
    return None, change(cache, *arguments, pools)

  return function


def _pools(config, rows, length, page, *, devices, **sizes):
  """Returns pools whose pages the devices share and their kernel reads."""
  heads, platform = config.num_kv_heads, dispatch.platform()
  if page is None:
    page = paging.choose_page(heads, devices, platform)
  sizes |= {'page': page, 'heads': heads, 'devices': devices}
  pools = paging.pools(config.layers(), rows, length, **sizes)
  paging.check_platform(config, pools, platform)
  return pools


class Decoder:
  """One model and one cache of `rows` sequences."""

  # As in `__init__`.
  config: model_config.ModelConfig
  rows: int
  length: int
  extra: int

  def __init__(
    self,
    params: Any,
    config: model_config.ModelConfig,
    *,
    rows: int,
    length: int,
    page: int | None = None,
    extra: int = 0,
    page_counts: dict[str, int] | None = None,
    mode: str = 'fast',
    replica: ternary_plan.State | None = None,
    tokens: int | None = None,
    mesh: jax.sharding.Mesh | None = None,
  ):
    """Allocates the cache.

    Args:
      params, config: float32 master weights or an export (`own.load`); the
        model's.
      rows: sequences that the cache holds at once.
      length: tokens of the longest sequence, prompt and continuation.
      page: slots of a page; by default those that the devices can share.
      extra: slots of a row beyond one sequence's, for a beam search.
      page_counts: pages of a kind's pool; by default every row can be full.
      mode: one of `extend.MODES`.
      replica: the training state's replica, where updates were ternary.
      tokens: the tokenizer's size, beyond which none is drawn; None for all V.
      mesh: from `placement.make`; None for one device.

    Raises ValueError: names the argument, its value and what would be right.
    """
    extend.check(config, mode, length)
    # The number of tokens that a text may hold.
    self.tokens: int = extend.check_vocabulary(tokens, config.vocab_size)
    self._place = placement.Place(mesh, config, mode)
    sizes = dict(extra=extra, pages=page_counts, devices=self._place.devices)
    pools = _pools(config, rows, length, page, **sizes)
    self.config, self.rows = config, rows
    self.length, self.extra = length, extra
    # The model and its pools, for functions that `run` calls.
    self.network: extend.Network = extend.Network(
      transformer.Transformer(config, unstacked=True),
      pools,
      length if mode == 'reference' else None,
      self.tokens,
      self._place.devices,
    )
    # `jax.jit` for the mode and its devices.
    self.jit: Any = self._place.jit
    self._ready = self._place.make_ready(mode)
    turns = {transformer.ROTARY: rotary.tables(config, length + extra)}
    params = {**self._ready(params, replica=replica), **turns}
    # Those of `weights.make_ready`, and rotary tables; some may be `packed`.
    self.params = self._place.put(params)
    # How often another model's took their place.
    self.replaced: int = 0
    self._held = interrupts.HeldCache(
      self._place.make_cache(lambda: cache_lib.make(config, pools, rows))
    )
    # Which rows are open and which pages they and points hold; to read.
    self.account: rows_lib.Rows = rows_lib.Rows(pools, rows)
    # The host's copy of the rows' lengths, to refuse before anything runs.
    self._length_R, self._opened_R = np.zeros((2, rows), np.int64)
    self._lent: set[int] = set()
    self._text = self._writer(functools.partial(extend.text, self.network))
    self._give_pages, self._copy_pages, self._lend, self._settle = (
      self._writer(_of_cache(change, tuple(pools.items())))
      for change in (
        cache_lib.give_pages,
        cache_lib.copy_pages,
        cache_lib.lend,
        cache_lib.settle,
      )
    )
    self._logits = self.jit(functools.partial(extend.logits, self.network))

  @property
  def cache(self) -> cache_lib.Cache:
    """The cache after the last call; Closed if a call lost it."""
    return self._held.cache

  @property
  def cache_bytes(self) -> int:
    return cache_lib.bytes_of(self.cache)

  def replace(
    self, params: Any, replica: ternary_plan.State | None = None
  ) -> None:
    """Exchanges the weights for those of another model of the same config.

    Arguments are those of the constructor. It compiles nothing, and drops all
    points, because their keys and values are the former model's. Raises
    ValueError, and changes nothing, while rows are open, or for a weight that
    is missing, is new, or has another shape or dtype; Closed as
    `run`.
    """
    if self.account.open_rows:
      raise ValueError(
        f'rows {list(self.account.open_rows)} are open with texts of the model'
        ' that is to be replaced: close them first.'
      )
    turns = {transformer.ROTARY: self.params[transformer.ROTARY]}
    params = {**self._ready(params, replica=replica), **turns}
    weights.check_alike(params, self.params)
    self._held.check()
    with interrupts.delay():
      self.params: Any = self._place.put(params)
      self.replaced += 1
      self.account.tree.clear()

  def run(
    self,
    function: Callable[..., tuple[Any, cache_lib.Cache]],
    *arguments: Any,
    appends: Mapping[int, int] | None = None,
  ) -> Any:
    """Runs `function(params, cache, *arguments)` and keeps its cache.

    It is from `jit`, with `donate_argnums=1`, and returns a result, which `run`
    returns, and a cache. One that appends to texts gets the rings as well:
    `function(params, cache, rings, *arguments)` (`extend.text`); `appends` then
    has by row how many tokens. Ctrl-C during the call raises after it, when
    cache and account agree again.

    Raises:
      ValueError: a row that is not open, is lent to a search, or gets more
        tokens than it was opened for; then nothing has run.
      Closed: an earlier call failed after it had taken the cache.
      pages.Full: no page is free for a ring.
    """
    for row, count in (appends or {}).items():
      self._check_room(row, count)
    if appends is None:
      return self._held.replace(function, self.params, *arguments)
    with interrupts.delay():
      growth = self.account.grow(
        {row: self.length_of(row) + count for row, count in appends.items()}
      )
      try:
        result = self._held.replace(
          function, self.params, self.account.rings(), *arguments
        )
      except BaseException:
        growth.undo()
        raise
      growth.keep()
      for row, count in appends.items():
        self._length_R[row] += count
    return result

  def open(
    self,
    length: int | None = None,
    extra: int = 0,
    text: prefix_tree.Text | None = None,
  ) -> int:
    """Takes a free row for a text of up to `length` tokens, and returns it.

    By default that is all that a row holds; `extra` are slots beyond it, for a
    beam search. The row starts with the beginning of `text` that a point has
    (`record`), `length_of` it: never all, because the last token gives the
    logits of the next. Raises TypeError, ValueError: no row could ever hold it;
    pages.Full: no row is free now, or too few pages.
    """
    length = self.length if length is None else length
    request_lib.check_integer('length', length)
    request_lib.check_integer('extra', extra)
    if not 1 <= length <= self.length:
      raise ValueError(
        f'length={length}: a row of this cache holds 1…{self.length} tokens.'
      )
    if text is not None and len(text.tokens) > length:
      raise ValueError(
        f'text has {len(text.tokens)} tokens: the row is opened for {length}.'
      )
    with interrupts.delay():
      opened = self.account.open(length, extra, text)
      try:
        if opened.copies:
          self._copy(opened.copies)
        self._give(opened.row, opened.length, length)
      except BaseException:  # Ctrl-C too: no caller gets the row.
        self.account.close(opened.row)
        raise
    return opened.row

  def close(self, row: int) -> None:
    """Frees a row and releases its pages; ValueError if it is not open."""
    self.account.close(row)
    if not self._held.is_lost:
      self._give(row, 0, 0)

  def warm(self) -> None:
    """Compiles what opens and closes rows; needs a free row (pages.Full)."""
    self.close(self.open(1))
    self._copy({})

  def record(self, row: int, text: prefix_tree.Text) -> nodes.Point:
    """Makes a point of a row's text, which other rows can resume.

    It copies nothing: the point holds the row's own pages, which are not
    written again where the point reads them. `text` is all of the row's tokens,
    or fewer by as many as its ring holds beyond the window. Raises ValueError:
    the row is not open, is lent, holds fewer tokens, or has lost some of the
    window's.
    """
    self.check_text(row)
    if len(text.tokens) > self.length_of(row):
      raise ValueError(
        f'text has {len(text.tokens)} tokens: row {row} holds'
        f' {self.length_of(row)}.'
      )
    return self.account.tree.record(text, self.account.pages_of(row))

  def _give(self, row: int, held: int, length: int) -> None:
    """Tells the device a row's pages, which hold `held` of `length` tokens."""
    firsts = self.account.firsts(row).items()
    with interrupts.delay():
      self.run(
        self._give_pages,
        np.int32(row),
        self.account.table(row),
        {kind: np.int32(first) for kind, first in firsts},
        np.int32(held),
      )
      self._length_R[row] = held
      self._opened_R[row] = length
      self._lent.discard(row)

  def _copy(self, copies: Mapping[str, tuple[int, int]]) -> None:
    """Copies a page of some kinds; all kinds share a compilation."""
    self.run(
      self._copy_pages,
      {
        kind: np.array(copies.get(kind, (-1, -1)), np.int32)[:, None]
        for kind in self.network.pools
      },
    )

  def length_of(self, row: int) -> int:
    """Returns how many tokens a row's text has."""
    return int(self._length_R[row])

  def room_of(self, row: int) -> int:
    """Returns how many more tokens a row takes, of those it was opened for."""
    return int(self._opened_R[row] - self._length_R[row])

  def extend_text(
    self,
    rows: Sequence[int],
    tokens_BL: np.ndarray,
    count_B: Sequence[int] | None = None,
  ) -> jax.Array:
    """Appends to the texts of B open rows; returns hidden states [B, L, D].

    Each row takes the first `count_B` of its int32 `tokens_BL`, by default all;
    the rest is padding. Raises ValueError: a row that is not open, is lent or
    is named twice, a token outside the vocabulary, or more than a row was
    opened for.
    """
    tokens_BL = np.asarray(tokens_BL)
    B, L = tokens_BL.shape
    count_B = np.full(B, L) if count_B is None else np.asarray(count_B)
    rows = list(map(int, rows))
    self._check(rows, tokens_BL, count_B)
    return self.run(
      self._text,
      jnp.asarray(rows, jnp.int32),
      jnp.asarray(tokens_BL, jnp.int32),
      jnp.asarray(count_B, jnp.int32),
      appends=dict(zip(rows, map(int, count_B))),
    )

  def settle(
    self,
    row: int,
    source: dict[str, np.ndarray],
    first: dict[str, int],
    length: int,
  ) -> None:
    """Turns the row of a search into text again; see `cache.settle`."""
    first = {kind: np.int32(position) for kind, position in first.items()}
    # Slots without a token hold whatever the search left.
    held = {}
    for kind, source_M in source.items():
      pool = self.network.pools[kind]
      slot_M = np.flatnonzero(source_M >= 0)
      turning = slot_M[slot_M >= pool.pinned_slots]
      held[kind] = int(first[kind]) + int(turning[0] if len(turning) else 0)
    with interrupts.delay():
      self.run(self._settle, np.int32(row), source, first, np.int32(length))
      self.account.settle(row, first, held)
      self._length_R[row] = length
      self._lent.discard(row)

  def lend(self, row: int) -> None:
    """Gives a row's slots to a search: no text until `settle` or `close`.

    It copies ring pages that others hold; pages.Full if too few are free.
    """
    with interrupts.delay():
      copies = self.account.copy_on_write(row)
      # Padded to the most there may be, so that all share a compilation.
      padded = {}
      for kind in copies:
        size = self.network.pools[kind].row_pages
        padded[kind] = np.full((2, size), -1, np.int32)
        for place, pages in enumerate(copies[kind]):
          padded[kind][:, place] = pages
      self.run(self._lend, np.int32(row), self.account.table(row), padded)
      self._lent.add(row)

  def check_text(self, row: int) -> None:
    """Raises ValueError if a row is not open, or is lent to a search."""
    if not self.account.is_open(row):
      raise ValueError(
        f'row={row}: is not open; open are {self.account.open_rows}.'
      )
    if row in self._lent:
      raise ValueError(
        f'row={row}: holds the tree of a search; adopt one of its results, or'
        ' close the row.'
      )

  def logits(self, hidden_BLD: jax.Array) -> jax.Array:
    """Returns float32 logits [B, L, V] of hidden states."""
    return self._logits(self.params, hidden_BLD)

  def _writer(self, function: Callable[..., Any]) -> Callable[..., Any]:
    return self.jit(function, donate_argnums=1)

  def _check_room(self, row: int, count: int) -> None:
    self.check_text(row)
    if count > self.room_of(row):
      raise ValueError(
        f'row {row} holds {self.length_of(row)} tokens and gets {count}: it was'
        f' opened for {self._opened_R[row]}.'
      )

  def _check(self, rows, tokens_BL, count_B) -> None:
    B = len(tokens_BL)
    if len(rows) != B or len(set(rows)) != B:
      raise ValueError(
        f'rows={rows}: expected {B} different rows, one for each of tokens_BL.'
      )
    extend.check_tokens(tokens_BL, count_B, self.config.vocab_size)
    for row, count in zip(rows, count_B):
      self._check_room(row, int(count))
