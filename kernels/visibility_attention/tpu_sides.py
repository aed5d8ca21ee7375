"""Cuts rows and keys into the blocks that the TPU kernels read.

A row is a query head of a token: q_BLHK is L·H rows of K numbers. Besides its
vectors each row and key has a few numbers: ranges and positions, scales, and in
the backward pass lse and δ. These *facts* are one int32 array [B, X, 8, R] that
holds floats by their bits. They lie along the lanes of registers, and one copy
fetches those of a block.
"""

import enum
import math
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp

from kaiju_jax.kernels import softmax

# Rows of an int32 register; rows without a fact are padding.
_FACTS = 8


class Row(enum.IntEnum):
  """Facts of a row; the first are those that a kernel needs most often."""

  COORDINATE = 0
  HORIZON = 1  # The newest position that its window leaves out.
  FACTOR = 2  # Its scale times the factor of all logits, in base 2.
  LSE = 3  # In base 2.
  DELTA = 4
  SCALE = 5


class Key(enum.IntEnum):
  """Facts of a key; the first are those that a kernel needs most often."""

  START = 0
  LIMIT = 1
  POSITION = 2
  K_SCALE = 3
  V_SCALE = 4


class Rows(NamedTuple):
  """Blocks of rows; dout is None in the forward pass."""

  q_BXRK: Any
  dout_BXRK: Any
  facts_BXER: Any


class Keys(NamedTuple):
  """Blocks of keys."""

  k_BYJK: Any
  v_BYJK: Any
  facts_BYEJ: Any


class Channels(NamedTuple):
  """Scales per channel; None where there are none."""

  k_1K: Any
  v_1K: Any


def cut_rows(
  size,
  q_BLHK,
  q_scale_BLH,
  ranges,
  *,
  window,
  factor,
  cotangents=None,
) -> Rows:
  """Returns blocks of `size` rows.

  Padding repeats the last row, so that no bound of the plan grows wider. Its
  cotangents are zeros.

  Args:
    size: R.
    q_BLHK: queries, floats or codes.
    q_scale_BLH: given where q is multiplied with k as codes.
    ranges: the `Ranges` of queries and keys.
    window: positions that a query looks back; None for all.
    factor: the factor of the logits, in base 2.
    cotangents: the queries' cotangents, in the backward pass.
  """
  B, L, H = q_BLHK.shape[:3]

  def cut(x, mode='edge'):
    return _cut(x.reshape(B, L * H, *x.shape[3:]), size, mode)

  def of_token(x_BL):
    return cut(jnp.broadcast_to(x_BL[:, :, None], (B, L, H)))

  facts = {
    Row.COORDINATE: of_token(ranges.coordinate_BL),
    Row.HORIZON: of_token(ranges.position_BL - (window or 0)),
  }
  if q_scale_BLH is not None:
    facts[Row.FACTOR] = cut(q_scale_BLH * factor)
    facts[Row.SCALE] = cut(q_scale_BLH)
  dout_BXRK = None
  if cotangents:
    dout_BXRK = cut(cotangents.dout_BLHK, 'constant')
    facts[Row.LSE] = cut(cotangents.lse_BLH * softmax.LOG2E)
    facts[Row.DELTA] = cut(cotangents.delta_BLH, 'constant')
  return Rows(cut(q_BLHK), dout_BXRK, _stack(facts))


def cut_keys(size, k_BMK, v_BMK, ranges, scales) -> tuple[Keys, Channels]:
  """Returns blocks of `size` keys, and the scales per channel.

  Padding has start = limit = 0: empty slots.
  """
  facts = {
    Key.START: _cut(ranges.start_BM, size),
    Key.LIMIT: _cut(ranges.limit_BM, size),
    Key.POSITION: _cut(ranges.position_BM, size),
  }
  channels = []
  for fact, scale in (Key.K_SCALE, scales.k), (Key.V_SCALE, scales.v):
    if scale is None or scale.ndim == 2:
      channels.append(None)
    else:
      channels.append(scale.astype(jnp.float32)[None])
    if scale is not None and scale.ndim == 2:
      facts[fact] = _cut(scale, size)
  keys = Keys(_cut(k_BMK, size), _cut(v_BMK, size), _stack(facts))
  return keys, Channels(*channels)


def join(x, shape):
  """Returns blocks [B, X, R, …] as an array of `shape`, without padding."""
  B, X, size, *rest = x.shape
  x = x.reshape(B, X * size, *rest)
  count = math.prod(shape[1:]) // math.prod(rest)
  return x[:, :count].reshape(shape)


def _stack(facts):
  """Returns {fact: [B, X, R]} as int32[B, X, 8, R]."""
  nothing_BXR = jnp.zeros_like(next(iter(facts.values())))

  def bits(x_BXR):
    if not jnp.issubdtype(x_BXR.dtype, jnp.integer):
      x_BXR = x_BXR.astype(jnp.float32)
    return jax.lax.bitcast_convert_type(x_BXR, jnp.int32)

  return jnp.stack(
    [bits(facts.get(n, nothing_BXR)) for n in range(_FACTS)], axis=2
  )


def _cut(x, size, mode='constant'):
  """Returns [B, L, …] as [B, X, size, …], padded at the end of each row."""
  spare = -x.shape[1] % size
  x = jnp.pad(x, [(0, 0), (0, spare)] + [(0, 0)] * (x.ndim - 2), mode=mode)
  return x.reshape(x.shape[0], -1, size, *x.shape[2:])
