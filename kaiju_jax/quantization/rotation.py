"""Rotates what a model computes between its tables, so that codes lose less.

A few channels of a trained model's residual stream are large. A token's int8
codes have one scale, so that these channels cost the others their bits. An
orthogonal matrix Q spreads them over all channels (QuaRot, Ashkboos et al.
2024). With the norms' gains g folded, because rms(x·Q) = rms(x):

    tables of the vocabulary    E → E·Q
    read from the stream        w → Qᵀ·(g ⊙ w), and g → 1
    written to the stream       w → w·Q

The stream turns back before the last norm, so that hidden states, and heads on
them, stay what they are; what the table of the output reads is turned again.
The hidden activations of a gate, whose outliers are their own, are mixed with
`SPAN` neighbours by a Hadamard matrix. In floats the model computes the same.

Q flips signs, s, and multiplies by symmetric orthogonal matrices along the axes
of [n₀, n₁, …], into which D is divided: Hadamard matrices of up to 64, and
Hartley's for the odd rest. Parameters hold them under `NAME`, and the matrix of
hidden activations in each feed-forward. `interchange/stream.py` rotates weights
as it reads them. A norm behind a part (`norms='both'`, 'after') has its gain
between w and Q, so that there nothing is folded: what such a norm gives is
turned at run time.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

NAME, SIGNS = 'rotation', 'signs_D'
MIX = 'mix_JJ'  # In the parameters of a feed-forward.
SPAN = 32  # J
_LARGEST = 64  # Of a Hadamard matrix.


def parameters(d_model: int) -> dict[str, np.ndarray]:
  """Returns what a model of width D holds of Q: s and the matrices, float32."""
  signs_D = np.random.default_rng(0).choice([-1.0, 1.0], d_model)
  even = d_model & -d_model  # The power of two in D.
  odd = d_model // even
  sizes = []
  while even > 1:
    sizes.append(min(even, _LARGEST))
    even //= sizes[-1]
  matrices = [_hadamard(size) for size in sizes]
  matrices.append(_hartley(odd))
  held = {f'axis_{axis}': matrix for axis, matrix in enumerate(matrices)}
  return {
    name: x.astype(np.float32) for name, x in (held | {SIGNS: signs_D}).items()
  }


def _hadamard(size: int) -> np.ndarray:
  """Returns the symmetric orthogonal Hadamard matrix of a power of two."""
  found = np.ones((1, 1))
  while len(found) < size:
    found = np.block([[found, found], [found, -found]])
  return found / size**0.5


def _hartley(size: int) -> np.ndarray:
  """Returns Hartley's matrix, cos + sin of 2πij/n over √n, symmetric, too."""
  angles = 2 * np.pi / size * (np.outer(*[np.arange(size)] * 2) % size)
  return (np.cos(angles) + np.sin(angles)) / size**0.5


def turn(held: Any, x: Any, back: bool = False) -> Any:
  """Returns x·Q, or x·Qᵀ, over the last axis, in x's dtype.

  Args:
    held: `parameters`.
    x: arrays of numpy or of JAX, [..., D].
    back: whether to multiply by Qᵀ.
  """
  signs = held[SIGNS].astype(x.dtype).reshape(*[1] * (x.ndim - 1), -1)
  matrices = [held[f'axis_{axis}'] for axis in range(len(held) - 1)]
  if back:
    return _spread(x, matrices) * signs
  return _spread(x * signs, matrices)


def _spread(x: Any, matrices: Sequence[Any]) -> Any:
  """Multiplies each axis of x, [..., n₀·n₁·…], by its matrix."""
  shape = x.shape
  for matrix in matrices:
    # The first axis becomes the last one, until all have been the first.
    x = x.reshape(*shape[:-1], len(matrix), -1).swapaxes(-1, -2)
    x = (x @ matrix.astype(x.dtype)).reshape(shape)
  return x


def mixing(feedforward: str, d_ff: int) -> np.ndarray | None:
  """Returns the matrix [J, J] of hidden activations; None for no mixing.

  Without a gate they are not negative, and coded on as many levels more.
  """
  if feedforward == 'relu2' or d_ff % SPAN:
    return None
  return _hadamard(SPAN).astype(np.float32)


def mix(x: Any, mix_JJ: Any) -> Any:
  """Returns x with each J neighbours of its last axis times the matrix.

  Raises ValueError: the axis, or a device's part of it, is no multiple of J.
  """
  if x.shape[-1] % len(mix_JJ):
    raise ValueError(
      f'{x.shape[-1]} hidden activations on a device: must be a multiple of'
      f' {len(mix_JJ)}, which a rotation mixes; take a narrower tensor axis.'
    )
  parts = x.reshape(*x.shape[:-1], -1, len(mix_JJ))
  return (parts @ mix_JJ.astype(x.dtype)).reshape(x.shape)


def add(params: Any, held: Any, mix_JJ: np.ndarray | None) -> Any:
  """Returns the parameters of rotated weights with the matrices beside them.

  Args:
    params: of any form, stacked or not.
    held: `parameters`.
    mix_JJ: that of `mixing`.
  """
  params = {**params, NAME: jax.device_put(held)}
  if mix_JJ is None:
    return params
  blocks = {}
  for name, layer in params['blocks'].items():
    # Stacked over as many repeats as the gain of any norm.
    norm = next(x for one, x in layer.items() if one.endswith('_norm'))
    repeats = norm['gain_D'].shape[:-1]
    mixes = jax.device_put(np.broadcast_to(mix_JJ, (*repeats, SPAN, SPAN)))
    feedforward = {**layer['feedforward'], MIX: mixes}
    blocks[name] = {**layer, 'feedforward': feedforward}
  return {**params, 'blocks': blocks}
