"""The inputs that all layers of one forward pass share."""

from collections.abc import Mapping
from typing import NamedTuple

import jax

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.model import past


class Context(NamedTuple):
  """The inputs that the scan gives to every layer unchanged."""

  # The queries that see each key; with U heads of keys and values, row b·U + u
  # is that of head u (`kv_heads.py`).
  visibility: visibility_lib.Visibility
  # Rotary cosines and sines [B, L, K/2] of local layers, or None.
  local_turns: tuple[jax.Array, jax.Array] | None
  # The same for global layers.
  global_turns: tuple[jax.Array, jax.Array] | None
  z: jax.Array  # Z-Reg's coefficient for this step, a float32 scalar.
  # Cached keys and values, by the index of the layer that made them, None each
  # where nothing is cached; None for a pass of training.
  pasts: Mapping[int, past.Past | None] | None = None
  # That of a rotated stream (`quantization/rotation.py`), if it is.
  rotation: Mapping[str, jax.Array] | None = None

  @property
  def is_exact(self) -> bool:
    """Whether devices add sums of codes before they scale them.

    A pass of inference does that which caches nothing, or whose mode is
    'reference'; it then has the bits of one device.
    """
    pasts = self.pasts or {}
    return any(x is None or x.tables.plan is None for x in pasts.values())

  def turns_of(
    self, layer: layers_lib.Layer
  ) -> tuple[jax.Array, jax.Array] | None:
    """Returns the cosines and sines of a layer; None if it is not turned."""
    if not layer.turned:
      return None
    return self.global_turns if layer.window is None else self.local_turns
