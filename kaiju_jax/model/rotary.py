"""Rotary position embeddings (Su et al. 2021), half-split convention.

Pair i of K/2 is (x[i], x[i + K/2]) and turns by position · base^(−2i/K), or by
a rate that `rope_scaling.py` makes of it.

The angles' cosines and sines are a table, made once and indexed by position.
Computed inside the step they would cost a quarter of a small model's step on a
CPU. A table also gives the same bits for every shape of the batch.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax.model import config as model_config
from kaiju_jax.model import rope_scaling

Array = np.ndarray | jax.Array


def rates(
  head_dim: int,
  base: float,
  scaling: rope_scaling.RopeScalingConfig,
) -> np.ndarray:
  """Returns each pair's angle per position in `scaling.angles`, [K/2]."""
  dtype = np.dtype(scaling.angles).type
  exponent_K = np.arange(0, head_dim, 2).astype(dtype) / dtype(head_dim)
  power_K = (base ** exponent_K.astype(np.float64)).astype(dtype)
  # In float32, rounded where other libraries round.
  is_float64 = dtype is np.float64
  rate_K = base**-exponent_K if is_float64 else dtype(1) / power_K
  if scaling.kind == 'linear':
    return rate_K / dtype(scaling.factor)
  if scaling.kind == 'llama3':
    return _llama3(rate_K, scaling, dtype)
  if scaling.kind == 'yarn':
    slow_K = dtype(1) / (dtype(scaling.factor) * power_K)
    kept_K = _kept_by_yarn(len(rate_K), base, scaling, dtype)
    return slow_K * (dtype(1) - kept_K) + rate_K * kept_K
  return rate_K


def _llama3(rate_K, scaling, dtype) -> np.ndarray:
  length = scaling.original_length
  wavelength_K = dtype(2 * math.pi) / rate_K
  slow_K = rate_K / dtype(scaling.factor)
  kept_K = dtype(length) / wavelength_K - dtype(scaling.low)
  kept_K = kept_K / dtype(scaling.high - scaling.low)
  mixed_K = (dtype(1) - kept_K) * rate_K / dtype(scaling.factor)
  mixed_K = mixed_K + kept_K * rate_K
  is_long_K = wavelength_K > dtype(length / scaling.low)
  is_short_K = wavelength_K < dtype(length / scaling.high)
  return np.where(is_long_K, slow_K, np.where(is_short_K, rate_K, mixed_K))


def _kept_by_yarn(pairs: int, base, scaling, dtype) -> np.ndarray:
  """Returns the share of its own rate that each pair keeps, [K/2]."""

  def pair_of(turns: float) -> float:
    """Returns which pair turns so often over the original length."""
    ratio = scaling.original_length / (turns * 2 * math.pi)
    return pairs * math.log(ratio) / math.log(base)

  first = max(math.floor(pair_of(scaling.fast)), 0)
  last = min(math.ceil(pair_of(scaling.slow)), 2 * pairs - 1)
  width = last - first or 0.001
  ramp_K = (np.arange(pairs).astype(dtype) - dtype(first)) / dtype(width)
  return dtype(1) - np.clip(ramp_K, dtype(0), dtype(1))


def table(
  max_length: int,
  head_dim: int,
  base: float,
  scaling: rope_scaling.RopeScalingConfig | None = None,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns cosines and sines, each float32 [max_length, K/2]."""
  scaling = scaling or rope_scaling.RopeScalingConfig()
  return _table(max_length, head_dim, base, dataclasses.astuple(scaling))


@functools.lru_cache(maxsize=8)
def _table(max_length, head_dim, base, fields):
  scaling = rope_scaling.RopeScalingConfig(*fields)
  rate_K = rates(head_dim, base, scaling)
  angles = np.arange(max_length).astype(rate_K.dtype)[:, None] * rate_K
  factor = np.float32(scaling.attention_factor)
  return tuple(
    function(angles.astype(np.float64)).astype(np.float32) * factor
    for function in (np.cos, np.sin)
  )


def scaling_of(
  scaling: rope_scaling.RopeScalingConfig, kind: str
) -> rope_scaling.RopeScalingConfig:
  """Returns the scaling of one kind of layers, 'local' or 'global'."""
  if kind == 'global' or scaling.layers == 'all':
    return scaling
  return rope_scaling.RopeScalingConfig(angles=scaling.angles)


def tables(
  config: model_config.ModelConfig, length: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
  """Returns the `table` of each kind of layers that is rotated.

  Args:
    config: the model's config.
    length: positions, of which there are at most max_length. A compiled program
      that is not given tables holds those of max_length as constants.
  """
  bases = {'local': config.rope_local, 'global': config.rope_global}
  return {
    kind: table(
      min(length, config.max_length),
      config.head_dim,
      base,
      scaling_of(config.rope_scaling, kind),
    )
    for kind, base in bases.items()
    if base
  }


def turns(
  position_BL: jax.Array, table: tuple[Array, Array] | None
) -> tuple[jax.Array, jax.Array] | None:
  """Returns a table's rows at each position [B, L, K/2]; None for None."""
  if table is None:
    return None
  cosine, sine = table
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
