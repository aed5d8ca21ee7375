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

Parameters hold both matrices: Q under `NAME`, the other one in each
feed-forward. `interchange/stream.py` rotates weights as it reads them. A norm
behind a part (`norms='both'`, 'after') has its gain between two rotations, and
such a model is not rotated.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax.model import config as model_config

NAME, TURN = 'rotation', 'turn_DD'
MIX = 'mix_JJ'  # In the parameters of a feed-forward.
SPAN = 32  # J


def fits(config: model_config.ModelConfig) -> bool:
  """Returns whether a rotation passes through a model's norms."""
  return config.norms == 'before'


def matrix(d_model: int, seed: int = 0) -> np.ndarray:
  """Returns an orthogonal matrix Q [D, D], float32.

  It is a Hadamard matrix over the power of two in D, times a random orthogonal
  one over the odd rest, with random signs.
  """
  rng = np.random.default_rng(seed)
  even = d_model & -d_model
  odd = d_model // even
  rest, _ = np.linalg.qr(rng.standard_normal((odd, odd)))
  signs = rng.choice([-1.0, 1.0], (d_model, 1))
  return (signs * np.kron(_hadamard(even), rest)).astype(np.float32)


def _hadamard(size: int) -> np.ndarray:
  """Returns the orthogonal Hadamard matrix of a power of two."""
  found = np.ones((1, 1))
  while len(found) < size:
    found = np.block([[found, found], [found, -found]])
  return found / size**0.5


def mixing(config: model_config.ModelConfig) -> np.ndarray | None:
  """Returns the matrix [J, J] of hidden activations; None for no mixing."""
  if config.feedforward == 'relu2' or config.d_ff % SPAN:
    return None
  return _hadamard(SPAN).astype(np.float32)


def mix(x: Any, mix_JJ: Any) -> Any:
  """Returns x with each J neighbours of its last axis times the matrix."""
  parts = x.reshape(*x.shape[:-1], -1, len(mix_JJ))
  return (parts @ mix_JJ.astype(x.dtype)).reshape(x.shape)


def add(
  params: Any, config: model_config.ModelConfig, turn_DD: np.ndarray
) -> Any:
  """Returns the parameters of rotated weights with the matrices beside them.

  Args:
    params: of any form, stacked or not.
    config: the model's config.
    turn_DD: Q.
  """
  params = {**params, NAME: {TURN: jax.device_put(turn_DD)}}
  mix_JJ = mixing(config)
  if mix_JJ is None:
    return params
  blocks = {}
  for name, layer in params['blocks'].items():
    # Stacked over as many repeats as the norm's gain.
    repeats = layer['feedforward_norm']['gain_D'].shape[:-1]
    held = jax.device_put(np.broadcast_to(mix_JJ, (*repeats, SPAN, SPAN)))
    blocks[name] = {**layer, 'feedforward': {**layer['feedforward'], MIX: held}}
  return {**params, 'blocks': blocks}


def turn(held: Any, x_BLD: jax.Array, back: bool = False) -> jax.Array:
  """Returns a stream times Q, or Qᵀ; as it is where nothing is rotated.

  Args:
    held: what the parameters have under `NAME`; None for no rotation.
    x_BLD: the stream, in the model's dtype.
    back: whether to multiply by Qᵀ.
  """
  if held is None:
    return x_BLD
  spec = 'BLD,ED->BLE' if back else 'BLD,DE->BLE'
  return jnp.einsum(spec, x_BLD, held[TURN].astype(x_BLD.dtype))
