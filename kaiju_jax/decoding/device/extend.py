"""One call of the model with a cache: a chunk in, hidden states out.

    text    each row's next tokens, whose positions and slots follow from the
            row's length
    chunk   any tokens with ranges, coordinates, positions and slots that the
            caller chooses: beams, trees, bidirectional spans

Both are pure functions of (params, cache), one compilation for each shape
[B, L]. A row of a call may be any row of the cache. Tokens beyond a row's
`count` are padding, which sees nothing new, is seen by nobody and is not kept.

In the reference mode a token's hidden state has the bits of the forward pass
over a row as long as the cache. It does not matter how the row's text was split
into calls, in which row and pages it lies, or what else the cache holds.
`reference.jit` compiles both sides so that the shape of a call moves no bit,
and `model/past.py` gives attention the keys in the forward pass's order.
"""

from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.decoding.device import cache as cache_lib
from kaiju_jax.model import paging
from kaiju_jax.model import transformer

MODES = ('fast', 'reference')


class Network(NamedTuple):
  """What all calls of one model and one cache share; no arrays.

  Attributes:
    model: a `Transformer` with `unstacked=True`.
    pools: those of the cache.
    reference_length: in the reference mode, the length of the forward pass
      whose bits each token has; None in the fast mode.
  """

  model: transformer.Transformer
  pools: dict[str, paging.Pool]
  reference_length: int | None = None


class Chunk(NamedTuple):
  """Tokens of a call, with all that the cache needs to know about them.

  Attributes:
    row_B: int32, the cache's row.
    tokens_BL: int32.
    visibility: the chunk's queries and, where the cache keeps them, its keys;
      start == limit for padding.
    slot: int32 [B, L] of each kind: the logical slot that keeps the token's
      keys and values; −1 for none.
  """

  row_B: jax.Array
  tokens_BL: jax.Array
  visibility: visibility_lib.Visibility
  slot: dict[str, jax.Array]


def chunk(
  network: Network, params: Any, cache: cache_lib.Cache, chunk: Chunk
) -> tuple[jax.Array, cache_lib.Cache]:
  """Returns hidden states [B, L, D], and the cache with the chunk in it.

  The chunk must not be written to slots that its own queries see. A row's
  length does not change (`Cache.length_R`): a row holds either text or what the
  caller keeps there.
  """
  hidden_BLD, made = _run(network, params, cache, *chunk[:3])
  cache = cache_lib.write(
    cache,
    network.pools,
    _wait_for(chunk.row_B, hidden_BLD),
    chunk.visibility,
    chunk.slot,
    made,
  )
  return hidden_BLD, cache


def text(
  network: Network,
  params: Any,
  cache: cache_lib.Cache,
  rings: dict[str, jax.Array],
  row_B: jax.Array,
  tokens_BL: jax.Array,
  count_B: jax.Array,
) -> tuple[jax.Array, cache_lib.Cache]:
  """Returns hidden states [B, L, D], and the cache with the rows' next tokens.

  Args:
    network: the model and the pools of the cache.
    params: those of `weights.ready`.
    cache: the cache.
    rings: the tables of all rows with room for the tokens (`cache.rotate`).
    row_B: int32, rows of the cache, each at most once.
    tokens_BL: int32.
    count_B: int32, tokens of each row; 0 leaves a row as it is. The rows must
      have room for them.
  """
  visibility, is_kept_BL = _text(cache.length_R[row_B], count_B, tokens_BL)
  hidden_BLD, made = _run(network, params, cache, row_B, tokens_BL, visibility)
  end_B = cache.length_R[row_B] + count_B
  cache = cache_lib.rotate(cache, network.pools, row_B, end_B, rings)
  slots = cache_lib.slots_of_text(
    cache, row_B, visibility.position_BM, is_kept_BL
  )
  cache = cache_lib.write(
    cache, network.pools, _wait_for(row_B, hidden_BLD), visibility, slots, made
  )
  length_R = cache.length_R.at[row_B].set(end_B)
  return hidden_BLD, cache._replace(length_R=length_R)


def _text(length_B, count_B, tokens_BL):
  """Returns the visibility of rows' next tokens, and which are no padding."""
  place_L = jnp.arange(tokens_BL.shape[1], dtype=jnp.int32)
  is_kept_BL = place_L[None] < count_B[:, None]
  # Padding stands at its row's last token, so that a page that all tokens see
  # is a page that all queries see; in a row without tokens it sees nothing.
  place_BL = jnp.minimum(place_L[None], count_B[:, None] - 1)
  position_BL = jnp.maximum(length_B[:, None] + place_BL, 0)
  return visibility_lib.Visibility(
    start_BM=position_BL,
    limit_BM=jnp.where(is_kept_BL, cache_lib.FOREVER, position_BL),
    coordinate_BL=jnp.where(count_B[:, None] > 0, position_BL, -1),
    position_BL=position_BL,
    position_BM=position_BL,
  ), is_kept_BL


def _run(network, params, cache, row_B, tokens_BL, visibility):
  pasts = cache_lib.pasts(
    cache, network.pools, row_B, visibility, network.reference_length
  )
  hidden_BLD, made = network.model.apply(
    {'params': params}, tokens_BL, visibility, pasts, method='extend'
  )
  return hidden_BLD, made


def _wait_for(row_B: jax.Array, hidden_BLD: jax.Array) -> jax.Array:
  """Returns row_B in a form that is known only once all layers have read.

  Otherwise XLA copies each pool, to read one and write to the other. It drops
  optimization barriers before it decides, so the dependency is on data: on a
  number that is NaN and infinite at once, which none is.
  """
  x = hidden_BLD[0, 0, 0]
  return row_B + (jnp.isnan(x) & jnp.isinf(x)).astype(row_B.dtype)
