"""A model and its cache: open a row, extend it, close it.

The cache is donated to every call and replaced by what comes back, so that one
decoder has one cache's bytes. Each shape [B, L] of a call compiles once; rows
open and close without compiling anything.
"""

from collections.abc import Sequence
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax.decoding import cache as cache_lib
from kaiju_jax.decoding import extend
from kaiju_jax.decoding import pages
from kaiju_jax.decoding import weights
from kaiju_jax.model import config as model_config
from kaiju_jax.model import paging
from kaiju_jax.model import transformer
from kaiju_jax.wire import ternary_plan


class Decoder:
  """One model, one cache of `rows` sequences.

  Attributes:
    config: the model's.
    network: of `extend`'s functions, for those who fuse more into a call.
    params: of `weights.ready`.
    cache: the cache after the last call.
    jit: `jax.jit` with what the mode asks of the compiler.
    length: tokens that a row can hold.
    rows: sequences that the cache can hold.
  """

  def __init__(
    self,
    params: Any,
    config: model_config.ModelConfig,
    *,
    rows: int,
    length: int,
    page: int = paging.PAGE,
    extra: int = 0,
    page_counts: dict[str, int] | None = None,
    mode: str = 'fast',
    replica: ternary_plan.State | None = None,
  ):
    """Allocates the cache.

    Args:
      params: float32 master weights, or an export (`own.load`).
      config: the model's.
      rows: sequences that the cache holds at once.
      length: tokens of the longest, prompt and continuation.
      page: slots of a page.
      extra: slots of a row beyond those of one sequence: a beam search's.
      page_counts: pages of a kind's pool, where not every row is to be full.
      mode: of `extend.MODES`.
      replica: the training state's, where updates were ternary.

    Raises:
      ValueError: names the argument, its value and what would be right.
    """
    model_config.check(config)
    if mode not in extend.MODES:
      raise ValueError(f'mode={mode!r}: expected one of {extend.MODES}.')
    if length > config.max_length:
      raise ValueError(
        f'length={length}: the model has positions up to'
        f' model.max_length={config.max_length}.'
      )
    pools = paging.pools(
      config.layers(), rows, length, page=page, extra=extra, pages=page_counts
    )
    self.config = config
    self.rows = rows
    self.length = length
    self.network = extend.Network(
      transformer.Transformer(config, unstacked=True),
      pools,
      length if mode == 'reference' else None,
    )
    # All committed to one device, or each call would compile twice: for the
    # cache as it is made, and as it comes back.
    (device,) = jnp.zeros(()).devices()
    self.params = jax.device_put(weights.ready(params, config, replica), device)
    self.cache = jax.device_put(cache_lib.make(config, pools, rows), device)
    self._pages = pages.Pages(pools, rows)
    # The host's copy of the rows' lengths, to refuse before anything runs.
    self._length_R = np.zeros(rows, np.int64)
    self._lent: set[int] = set()
    options = extend.REFERENCE_OPTIONS if mode == 'reference' else None
    self.jit = jit = functools.partial(jax.jit, compiler_options=options)
    self._text = jit(
      functools.partial(extend.text, self.network), donate_argnums=1
    )
    self._chunk = jit(
      functools.partial(extend.chunk, self.network), donate_argnums=1
    )
    self._give_pages = jit(cache_lib.give_pages, donate_argnums=0)
    self._reissue = jit(cache_lib.reissue, donate_argnums=0)
    self._settle = jit(cache_lib.settle, donate_argnums=0)
    self._logits = jit(
      functools.partial(self.network.model.apply, method='logits')
    )

  @property
  def cache_bytes(self) -> int:
    return cache_lib.bytes_of(self.cache)

  def open(self, length: int | None = None, extra: int = 0) -> int:
    """Takes a free row for a text of up to `length` tokens.

    Raises:
      ValueError: no row could ever hold it.
      pages.Full: none is free now.
    """
    row, tables = self._pages.open(
      self.length if length is None else length, extra
    )
    self._give(row, tables)
    return row

  def close(self, row: int) -> None:
    """Gives a row and its pages back.

    Raises:
      ValueError: the row is not open.
    """
    self._pages.close(row)
    self._give(
      row,
      {
        kind: np.full(pool.row_pages, -1, np.int32)
        for kind, pool in self.network.pools.items()
      },
    )

  def _give(self, row: int, tables: dict[str, np.ndarray]) -> None:
    self.cache = self._give_pages(self.cache, np.int32(row), tables)
    self._length_R[row] = 0
    self._lent.discard(row)

  def length_of(self, row: int) -> int:
    """Returns how many tokens a row's text has."""
    return int(self._length_R[row])

  def extend_text(
    self,
    rows: Sequence[int],
    tokens_BL: np.ndarray,
    count_B: Sequence[int] | None = None,
  ) -> jax.Array:
    """Appends to the rows' texts; returns hidden states [B, L, D].

    Args:
      rows: of the cache, open, each at most once.
      tokens_BL: int32, each row's next tokens.
      count_B: how many of them each row takes, the rest is padding; all by
        default.

    Raises:
      ValueError: a row that is not open, lent or named twice, a token outside
        the vocabulary, or a text longer than its row.
    """
    tokens_BL = np.asarray(tokens_BL)
    B, L = tokens_BL.shape
    count_B = np.full(B, L) if count_B is None else np.asarray(count_B)
    self._check(rows, tokens_BL, count_B)
    hidden_BLD, self.cache = self._text(
      self.params,
      self.cache,
      jnp.asarray(rows, jnp.int32),
      jnp.asarray(tokens_BL, jnp.int32),
      jnp.asarray(count_B, jnp.int32),
    )
    self.account(rows, count_B)
    return hidden_BLD

  def extend_chunk(self, chunk: extend.Chunk) -> jax.Array:
    """Runs a chunk with ranges and slots of its own; see `extend.chunk`."""
    hidden_BLD, self.cache = self._chunk(self.params, self.cache, chunk)
    return hidden_BLD

  def reissue(
    self, row: int, ranges: dict[str, tuple[np.ndarray, ...]]
  ) -> None:
    """Gives a row's slots new ranges; see `cache.reissue`."""
    self.cache = self._reissue(self.cache, np.int32(row), ranges)

  def settle(
    self,
    row: int,
    source: dict[str, np.ndarray],
    first: dict[str, int],
    length: int,
  ) -> None:
    """Makes a row of a search's tokens text again; see `cache.settle`."""
    first = {kind: np.int32(position) for kind, position in first.items()}
    self.cache = self._settle(
      self.cache, np.int32(row), source, first, np.int32(length)
    )
    self._length_R[row] = length
    self._lent.discard(row)

  def lend(self, row: int) -> None:
    """Gives a row's slots to a search: no text until `settle` or `close`."""
    self._lent.add(row)

  def check_text(self, row: int) -> None:
    """Refuses a row that holds no text of its own.

    Raises:
      ValueError: it is not open, or lent to a search.
    """
    if row not in self._pages.open_rows:
      raise ValueError(
        f'row={row}: is not open; open are {self._pages.open_rows}.'
      )
    if row in self._lent:
      raise ValueError(
        f'row={row}: holds the tree of a search; adopt one of its results, or'
        ' close the row.'
      )

  def logits(self, hidden_BLD: jax.Array) -> jax.Array:
    """Returns float32 logits [B, L, V] of hidden states."""
    return self._logits({'params': self.params}, hidden_BLD)

  def account(self, rows: Sequence[int], count_B: Sequence[int]) -> None:
    """Notes how many tokens a call outside this class appended to rows."""
    self._length_R[np.asarray(rows)] += np.asarray(count_B)

  def _check(self, rows, tokens_BL, count_B) -> None:
    rows = list(map(int, rows))
    B, L = tokens_BL.shape
    if len(rows) != B or len(set(rows)) != B:
      raise ValueError(
        f'rows={rows}: expected {B} different rows, one for each of tokens_BL.'
      )
    for place, row in enumerate(rows):
      count = int(count_B[place])
      if not 0 <= count <= L:
        raise ValueError(
          f'count_B[{place}]={count}: expected 0…{L}, the tokens of a call.'
        )
      self.check_text(row)
      if self.length_of(row) + count > self.length:
        raise ValueError(
          f'row {row} holds {self.length_of(row)} tokens and gets {count}: a'
          f' row of this cache holds {self.length}.'
        )
      tokens_L = tokens_BL[place, :count]
      outside = (tokens_L < 0) | (tokens_L >= self.config.vocab_size)
      if outside.any():
        at = int(outside.argmax())
        raise ValueError(
          f'tokens_BL[{place}, {at}]={tokens_L[at]}: a token is'
          f' 0…{self.config.vocab_size - 1}.'
        )
