"""Rotary position embeddings (Su et al. 2021), half-split convention.

Pair i of K/2 is (x[i], x[i + K/2]) and turns by position · base^(−2i/K).

The angles' cosines and sines are a numpy table, made once and indexed by
position. Computed inside the step they would cost a quarter of a small model's
step on a CPU. A table also gives the same bits for every shape of the batch.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np


@functools.lru_cache(maxsize=8)
def table(
  max_length: int, head_dim: int, base: float
) -> tuple[np.ndarray, np.ndarray]:
  """Returns cosines and sines, each float32 [max_length, K/2]."""
  rates = base ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
  angles = np.arange(max_length, dtype=np.float64)[:, None] * rates
  return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def turns(
  position_BL: jax.Array, max_length: int, head_dim: int, base: float
) -> tuple[jax.Array, jax.Array] | None:
  """Returns cosines and sines at each position [B, L, K/2]; None for base 0."""
  if not base:
    return None
  cosine, sine = table(max_length, head_dim, base)
  return jnp.asarray(cosine)[position_BL], jnp.asarray(sine)[position_BL]


def rotate(
  x_BLHK: jax.Array, turns_BLK: tuple[jax.Array, jax.Array] | None
) -> jax.Array:
  """Turns each pair of every head by its position's angle, in f32."""
  if turns_BLK is None:
    return x_BLHK
  cosine, sine = (t[:, :, None] for t in turns_BLK)
  first, second = jnp.split(x_BLHK.astype(jnp.float32), 2, axis=-1)
  return jnp.concatenate(
    [first * cosine - second * sine, first * sine + second * cosine], axis=-1
  ).astype(x_BLHK.dtype)
