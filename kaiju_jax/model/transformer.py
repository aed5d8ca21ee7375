"""The Kaiju model: embedding, scanned layer blocks, final norm, output head.

JAX traces and compiles only the repeating block of the layer tuple (14 layers
where global layers share in pairs). A scan runs the block N times, and every
parameter of the block has a leading N.
"""

from collections.abc import Callable
from collections.abc import Mapping
import threading
from typing import Any

import cachetools
from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.model import block
from kaiju_jax.model import config as model_config
from kaiju_jax.model import context as context_lib
from kaiju_jax.model import embedding
from kaiju_jax.model import kv_heads
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.model import norm
from kaiju_jax.model import past
from kaiju_jax.model import rotary
from kaiju_jax.quantization import int8
from kaiju_jax.quantization import rotation
from kaiju_jax.sharding import collectives

# The name beside the parameters under which a program may get `rotary.tables`.
ROTARY = 'rotary'


class Transformer(nn.Module):
  """The model tokens_BL → logits_BLV."""

  config: model_config.ModelConfig  # Shape and techniques.
  # The quantity that Attention Z-Reg pulls to zero, 'lse' or 'mean_logit'.
  z_target: str = 'lse'
  # Whether each layer has its own parameters, `layer_0`, `layer_1`, …, instead
  # of a slice of stacked ones (`decoding/device/weights.py`).
  unstacked: bool = False

  def setup(self) -> None:
    config = self.config
    model_config.check(config)
    self.embedding: embedding.Embedding = embedding.Embedding(config)
    self.blocks: nn.Module = self._blocks(config.layers())
    self.final_norm: norm.RMSNorm = norm.RMSNorm(config.norm_epsilon)

  def _blocks(self, layers: tuple[layers_lib.Layer, ...]) -> nn.Module:
    if self.unstacked:
      return block.Block(self.config, layers, self.z_target)
    repeating = layers_lib.repeating_block(layers)
    scanned = nn.scan(
      block.Block,
      variable_axes={'params': 0, 'replica': 0, 'readings': 0, 'heads': 0},
      split_rngs={'params': True},
      in_axes=nn.broadcast,
      length=len(layers) // len(repeating),
      unroll=self.config.unroll,
      # Nothing is computed once for all repeats: no second trace looks for it.
      # Initialization keeps it: that trace decides which keys are drawn.
      check_constancy_invariants=self.is_initializing(),
    )
    return scanned(self.config, repeating, self.z_target)

  def __call__(
    self, tokens_BL: jax.Array, visibility: visibility_lib.Visibility
  ) -> jax.Array:
    """Returns float32 logits [B, L, V] of every token's successor."""
    return self.logits(self.hidden(tokens_BL, visibility))

  def hidden(
    self,
    tokens_BL: jax.Array,
    visibility: visibility_lib.Visibility,
    z: jax.Array | float = 0.0,
  ) -> jax.Array:
    """Returns the normed hidden states [B, L, D] that the head reads.

    Args:
      tokens_BL: int32, 0…V−1; the result of other tokens is undefined. L is at
        most `max_length`.
      visibility: the queries that see each key; the keys are the row itself,
        and all fields [B, L].
      z: Attention Z-Reg's coefficient c (`z_reg.py`).

    Raises:
      ValueError: rows longer than `max_length`, a visibility of another shape,
        or, if it is concrete, one that leaves the row or the positions.
    """
    _check(tokens_BL, visibility, self.config.max_length)
    context = self.context_of(visibility, z)
    x_BLD, _ = self.blocks(self.embedding(tokens_BL), context)
    return self.leave(x_BLD)

  def extend(
    self,
    tokens_BL: jax.Array,
    visibility: visibility_lib.Visibility,
    pasts: Mapping[int, past.Past | None],
  ) -> tuple[jax.Array, dict[int, past.KeyValue]]:
    """Runs a chunk that continues the sequences in a cache.

    Args:
      tokens_BL: the chunk.
      visibility: the ranges of the chunk's keys and the coordinates of its
        queries, in the cache's coordinates.
      pasts: the cached keys and values, by the index of the layer that made
        them; None each for whole rows, which nothing precedes.

    Returns:
      hidden_BLD, normed as by `hidden`, and the chunk's own keys and values, by
      the index of the layer that made them.

    Raises:
      ValueError: the model's parameters are stacked, or its layers do not share
        both keys and values.
    """
    if not self.unstacked:
      raise ValueError(
        'unstacked=False: the layers of a scan have no cache of their own; use'
        ' Transformer(config, unstacked=True) with `weights.ready`.'
      )
    if self.config.shared != 'both':
      raise ValueError(
        f'model.shared={self.config.shared!r}: a cache has keys and values of'
        " the same layers; only 'both' can be decoded."
      )
    x_BLD, context = self.enter(tokens_BL, visibility)
    x_BLD, made = self.blocks(x_BLD, context._replace(pasts=pasts))
    return self.leave(x_BLD, tokens_BL.shape), made

  def enter(
    self, tokens_BL: jax.Array, visibility: visibility_lib.Visibility
  ) -> tuple[jax.Array, context_lib.Context]:
    """Returns what the first layer reads in `extend`, and its context.

    On a mesh each device has its part of the tokens (`collectives.lay_flat`),
    or all of them (`collectives.keep_tokens`), and the turns of all.
    """
    context = self.context_of(visibility, 0.0, collectives.lay_flat)
    return self.embedding(collectives.lay_flat(tokens_BL)), context

  def leave(
    self, x_BLD: jax.Array, chunk: tuple[int, ...] | None = None
  ) -> jax.Array:
    """Returns the normed hidden states of the last layer's output.

    With `chunk`, B and L, x is what devices have of a chunk, and the result is
    whole.
    """
    hidden_BLD = self.final_norm(self._turn(x_BLD, back=True))[0]
    if chunk is None:
      return hidden_BLD
    return collectives.lay_rows(collectives.enter(hidden_BLD), chunk)

  def _turn(self, x_BLD: jax.Array, back: bool = False) -> jax.Array:
    """Returns a stream, turned where the parameters hold a rotation."""
    held = self.get_variable('params', rotation.NAME)
    return x_BLD if held is None else rotation.turn(held, x_BLD, back)

  def logits(self, hidden_BLD: jax.Array) -> jax.Array:
    """Returns float32 logits [B, L, V] of hidden states."""
    return self.embedding.logits(self._turn(hidden_BLD))

  def head(self) -> jax.Array | int8.Quantized:
    """Returns the gathered table [D, V] that `embedding.logits` takes."""
    return self.embedding.head()

  def context_of(
    self,
    visibility: visibility_lib.Visibility,
    z: jax.Array | float,
    lay: Callable[[jax.Array], jax.Array] = lambda x_BL: x_BL,
  ) -> context_lib.Context:
    """Returns what all layers of a pass share; see `hidden`.

    `lay` gives the rows of positions in which the turns lie.
    """
    config = self.config
    if self.has_variable('params', ROTARY):
      tables = self.get_variable('params', ROTARY)
    else:
      tables = rotary.tables(config, config.max_length)
    local_turns, global_turns = (
      rotary.turns(lay(visibility.position_BL), tables.get(kind))
      for kind in ('local', 'global')
    )
    seen = kv_heads.repeat(visibility, kv_heads.here(config.num_kv_heads))
    return context_lib.Context(
      seen,
      local_turns,
      global_turns,
      jnp.asarray(z, jnp.float32),
      rotation=self.get_variable('params', rotation.NAME),
    )


def _check(tokens_BL, visibility, max_length: int) -> None:
  """Refuses tokens and positions that a gather would silently clamp."""
  length = tokens_BL.shape[1]
  if length > max_length:
    raise ValueError(
      f'tokens_BL has shape {tokens_BL.shape}: rows are longer than the'
      f' positions of model.max_length={max_length}.'
    )
  for name, field in zip(visibility_lib.Visibility._fields, visibility):
    if np.shape(field) != tokens_BL.shape:
      raise ValueError(
        f'{name} has shape {np.shape(field)}: expected {tokens_BL.shape}, that'
        ' of tokens_BL.'
      )
  if any(isinstance(field, jax.core.Tracer) for field in visibility):
    return
  visibility_lib.check(visibility, length)
  furthest = int(np.max(visibility.position_BL))
  if furthest >= max_length:
    raise ValueError(
      f'position_BL reaches {furthest}: must be less than'
      f' model.max_length={max_length}.'
    )


def parameter_shapes(config: model_config.ModelConfig) -> Any:
  """Returns the tree of a model's float32 parameters' shapes.

  Nothing is computed. To trace a model takes a second, so that the trees of the
  latest configs are kept.
  """
  return jax.tree.map(lambda leaf: leaf, _traced_shapes(config))


@cachetools.cached(cachetools.LRUCache(16), key=repr, lock=threading.Lock())
def _traced_shapes(config: model_config.ModelConfig) -> Any:
  def start():
    tokens_BL = jnp.zeros((1, 1), jnp.int32)
    return Transformer(config).init(
      jax.random.key(0), tokens_BL, visibility_lib.causal(1)
    )

  return jax.eval_shape(start)['params']
