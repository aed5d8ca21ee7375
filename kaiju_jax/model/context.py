"""What one forward pass tells to all of its layers."""

from collections.abc import Mapping
from typing import NamedTuple

import jax

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.model import past


class Context(NamedTuple):
  """Broadcast over the scanned layers.

  Attributes:
    visibility: which positions each token is seen by; its rows are those of
      the keys, b·U + u for head u of several (`kv_heads.py`).
    local_turns: rotary cosines and sines [B, L, K/2] of local layers, or None.
    global_turns: the same for global layers.
    z: Z-Reg's coefficient for this step, a float32 scalar.
    pasts: what a cache holds from before, by the index of the layer that made
      it; None for a pass without a cache.
  """

  visibility: visibility_lib.Visibility
  local_turns: tuple[jax.Array, jax.Array] | None
  global_turns: tuple[jax.Array, jax.Array] | None
  z: jax.Array
  pasts: Mapping[int, past.Past] | None = None
