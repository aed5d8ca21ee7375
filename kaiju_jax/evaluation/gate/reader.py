"""Reads texts as a served model does: logits, keys and values.

It runs the forward pass of the decoder's own parameters, codes or floats.
`kaiju agreement` measures how far a cache is from it.
"""

from collections.abc import Iterator
import functools
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.device import packed
from kaiju_jax.model import kv_heads

# Tokens whose logits exist at a time.
PART = 256


class Reading(NamedTuple):
  """A text as a model reads it."""

  # Iterates over float32 [≤ PART, V], the next token's of each token.
  logits: Iterator[np.ndarray]
  # By layer that owns keys and values: (keys, values), arrays or `Quantized`,
  # [U, L, K]. Behind the text they hold padding.
  stored: dict[int, tuple[Any, Any]]


class Reader:
  """A model and the one length that its forward pass is compiled for."""

  def __init__(self, decoder: decoder_lib.Decoder, length: int):
    """Takes the model.

    Args:
      length: the most tokens of a text; a shorter one is padded at its end,
        which no token before it sees.
    """
    self._decoder = decoder
    # The same shape for texts of about the same length, within the positions.
    rounded = -(-length // PART) * PART
    self._length = min(rounded, decoder.config.max_length)
    self._run = decoder.jit(functools.partial(run, decoder))

  def read(self, tokens_L: np.ndarray) -> Reading:
    """Returns a text's logits, keys and values.

    Raises:
      ValueError: it has more tokens than are read.
    """
    count = len(tokens_L)
    if count > self._length:
      raise ValueError(f'{count} tokens: at most {self._length} are read.')
    padded_1L = np.pad(tokens_L, (0, self._length - count))[None]
    hidden_1LD, stored = self._run(self._decoder.params, padded_1L)

    def logits():
      for begin in range(0, count, PART):
        part_LV = self._decoder.logits(hidden_1LD[:, begin : begin + PART])[0]
        yield np.asarray(part_LV)[: count - begin]

    return Reading(logits(), stored)


def run(decoder: decoder_lib.Decoder, params: Any, tokens_BL: Any) -> Any:
  """Returns hidden_BLD and {layer that owns keys and values: (k, v) [B, L, K]}.

  `params` are `decoder.params`, so that a jitted call does not copy them.
  """
  B, L = tokens_BL.shape
  config, pools = decoder.config, decoder.network.pools.values()
  owners = [owner for pool in pools for owner in pool.owners]
  hidden_BLD, made = decoder.network.model.apply(
    {'params': packed.unpack(params)},
    tokens_BL,
    visibility_lib.concatenate([visibility_lib.causal(L)] * B),
    dict.fromkeys(owners),
    method='extend',
  )
  return hidden_BLD, kv_heads.gather(made, config.num_kv_heads)
