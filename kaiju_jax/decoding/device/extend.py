"""One call of the model with a cache: a chunk of tokens in, hidden states out.

    text    each row's next tokens; positions and slots follow from its length
    chunk   any tokens, with ranges, coordinates, positions and slots from the
            caller: beams, trees, bidirectional spans

Both are pure functions, compiled once for each shape [B, L]. A row of a call
may be any row of the cache. Tokens beyond a row's `count` are padding: no query
sees it, and the cache does not keep it.

In the reference mode a token's hidden state has the bits of the forward pass
over a row as long as the cache, however the row's text was split into calls and
wherever it lies: `reference.jit` compiles both sides so that the shape of a
call moves no bit, and `model/past.py` keeps the keys' order.
"""

from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.decoding.device import cache as cache_lib
from kaiju_jax.decoding.device import packed
from kaiju_jax.decoding.device import tables as tables_lib
from kaiju_jax.kernels import dispatch
from kaiju_jax.model import config as model_config
from kaiju_jax.model import paging
from kaiju_jax.model import past
from kaiju_jax.model import transformer
from kaiju_jax.sharding import collectives

MODES = ('fast', 'reference')
# Tokens of a call, B·L, from which the devices of a mesh split them between
# projections, by platform. With fewer, all devices have all tokens: that takes
# 5 collectives per layer instead of 7, and sends 1.2 times the bytes. Our
# guesses: on a GPU below `mesh_decoding.break_even`; a TPU's compiler scatters
# no fewer than 8 tokens to a device, and all-reduces them instead.
SPLIT_FROM = {'gpu': 256, 'tpu': 64, 'cpu': 64}


class Network(NamedTuple):
  """The model (`unstacked=True`) and its cache's pools; no arrays."""

  model: transformer.Transformer
  pools: dict[str, paging.Pool]
  # The length of the forward pass whose bits each token has in the reference
  # mode; otherwise None.
  reference_length: int | None = None
  # How many a text may hold; None for V.
  tokens: int | None = None
  devices: int = 1  # Those of the mesh.

  def list_gathered(self, size: int) -> frozenset[str]:
    """Returns the kinds of which devices gather pages for calls of L = `size`.

    Gathering moves the keys and values of a row once for each owner; otherwise
    each layer moves its queries, outputs and their scales.
    """
    config, kinds = self.model.config, set()
    layers = config.layers()
    for kind, pool in self.pools.items():
      if pool.stripes == 1:
        continue
      readers = sum(layer.kv_from in pool.owners for layer in layers)
      heads = config.num_heads // config.num_kv_heads
      number = 1 if config.quantization.kv == 'int8' else 2
      queries = size * readers * heads * ((2 + number) * config.head_dim + 8)
      slot = 2 * (number * config.head_dim + 4)
      keys = len(pool.owners) * pool.row_slots * slot
      if self.reference_length is not None or keys < queries:
        kinds.add(kind)
    return frozenset(kinds)


class Chunk(NamedTuple):
  """The tokens of a call in rows `row_B`, and where the cache keeps them."""

  row_B: jax.Array
  tokens_BL: jax.Array
  # Of the queries and the kept keys; start == limit for padding.
  visibility: visibility_lib.Visibility
  # By kind the keys' logical slots, int32 [B, L], −1 for none.
  slot: dict[str, jax.Array]


def chunk(
  network: Network, params: Any, cache: cache_lib.Cache, chunk: Chunk
) -> tuple[jax.Array, cache_lib.Cache]:
  """Returns hidden states [B, L, D], and the cache with the chunk in it.

  Its queries must not see the slots that it is written to. The row's length
  stays (`Cache.length_R`), because the slots hold what the caller chooses.
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

  Each row of `row_B` comes once, has `count_B` tokens (0 leaves it as it is)
  and room for them: `rings` are all rows' tables with that room
  (`cache.rotate`).
  """
  visibility, _ = see(cache.length_R[row_B], count_B, tokens_BL)
  hidden_BLD, made = _run(network, params, cache, row_B, tokens_BL, visibility)
  return hidden_BLD, keep(
    network, cache, rings, row_B, tokens_BL, count_B, hidden_BLD, made
  )


def keep(
  network: Network,
  cache: cache_lib.Cache,
  rings: dict[str, jax.Array],
  row_B: jax.Array,
  tokens_BL: jax.Array,
  count_B: jax.Array,
  hidden_BLD: jax.Array,
  made: dict[int, past.KeyValue],
) -> cache_lib.Cache:
  """Returns the cache with what the layers `made` of the rows' next tokens."""
  visibility, is_kept_BL = see(cache.length_R[row_B], count_B, tokens_BL)
  end_B = cache.length_R[row_B] + count_B
  cache = cache_lib.rotate(cache, network.pools, row_B, end_B, rings)
  slots = cache_lib.slots_of_text(
    cache, network.pools, row_B, visibility.position_BM, is_kept_BL
  )
  cache = cache_lib.write(
    cache, network.pools, _wait_for(row_B, hidden_BLD), visibility, slots, made
  )
  length_R = cache.length_R.at[row_B].set(end_B)
  return cache._replace(length_R=length_R)


def logits(
  network: Network, params: Any, hidden_BLD: jax.Array, by_rows: bool = False
) -> jax.Array:
  """Returns float32 logits [B, L, V]; those of padding are −inf.

  With `by_rows` they are those of this device's part of the tokens
  (`collectives.to_rows`).
  """
  logits_BLV = network.model.apply(
    {'params': params}, hidden_BLD, method='logits'
  )
  if by_rows:
    logits_BLV = collectives.to_rows(logits_BLV)
  else:
    logits_BLV = collectives.whole_letters(logits_BLV, 'V')
  size = logits_BLV.shape[-1]
  if network.tokens in (None, size):
    return logits_BLV
  return jnp.where(jnp.arange(size) < network.tokens, logits_BLV, -jnp.inf)


def see(
  length_B: jax.Array, count_B: jax.Array, tokens_BL: jax.Array
) -> tuple[visibility_lib.Visibility, jax.Array]:
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
  tables = tables_lib.make(
    cache,
    network.pools,
    row_B,
    visibility,
    network.reference_length,
    network.list_gathered(tokens_BL.shape[1]),
  )
  pasts = tables_lib.join_pasts(cache, network.pools, tables)
  params = packed.unpack(params)
  is_small = tokens_BL.size < SPLIT_FROM[dispatch.platform()]
  with collectives.keep_tokens(is_small):
    hidden_BLD, made = network.model.apply(
      {'params': params}, tokens_BL, visibility, pasts, method='extend'
    )
  return hidden_BLD, made


def _wait_for(row_B: jax.Array, hidden_BLD: jax.Array) -> jax.Array:
  """Returns row_B as a value that XLA cannot know before all layers have read.

  Otherwise XLA copies each pool, to read one and write to the other. It drops
  optimization barriers before it decides, so the dependency is on data: on a
  number that is NaN and infinite at once.
  """
  x = hidden_BLD[0, 0, 0]
  return row_B + (jnp.isnan(x) & jnp.isinf(x)).astype(row_B.dtype)


def check(config: model_config.ModelConfig, mode: str, length: int) -> None:
  """Refuses a model, mode or length that no decoder can have: ValueError."""
  model_config.check(config)
  if mode not in MODES:
    raise ValueError(f'mode={mode!r}: expected one of {MODES}.')
  if length > config.max_length:
    raise ValueError(
      f'length={length}: the model has positions up to'
      f' model.max_length={config.max_length}.'
    )


def check_vocabulary(tokens: int | None, vocab_size: int) -> int:
  """Returns how many tokens may be drawn, all for None; or a ValueError."""
  tokens = vocab_size if tokens is None else tokens
  if not 0 < tokens <= vocab_size:
    raise ValueError(
      f'tokens={tokens}: must be in 1…{vocab_size}, the vocabulary'
      ' model.vocab_size.'
    )
  return tokens


def check_tokens(
  tokens_BL: np.ndarray, count_B: np.ndarray, vocab_size: int
) -> None:
  """Refuses tokens outside the vocabulary and counts outside a call.

  Raises ValueError: names the entry, its value and what would be right.
  """
  L = tokens_BL.shape[1]
  for place, count in enumerate(map(int, count_B)):
    if not 0 <= count <= L:
      raise ValueError(
        f'count_B[{place}]={count}: expected 0…{L}, the tokens of a call.'
      )
    tokens_L = tokens_BL[place, :count]
    outside = (tokens_L < 0) | (tokens_L >= vocab_size)
    if outside.any():
      at = int(outside.argmax())
      raise ValueError(
        f'tokens_BL[{place}, {at}]={tokens_L[at]}: a token is'
        f' 0…{vocab_size - 1}.'
      )
