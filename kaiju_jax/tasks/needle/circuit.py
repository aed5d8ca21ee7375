"""Measures the attention of the two heads that find a needle.

Induction takes two heads in two layers (Elhage et al. 2021; Olsson et al.
2022). A *previous-token head* tells each value which key stands before it. A
*match head* in a later layer looks from a repeated key to the values behind the
key's earlier copies. Both show in the attention weights:

    previous = mean weight that values put on the token before them
    match    = mean weight that repeated keys put on those values

A layer's reading is that of its best head. Uniform attention over n visible
tokens reads 1/n. Layers that share keys and values still have queries of their
own, so that each has its own readings.
"""

from collections.abc import Callable
import operator
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.data import packing
from kaiju_jax.kernels import softmax
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.model import transformer
from kaiju_jax.quantization import int8
from kaiju_jax.tasks.needle import questions as needle


class Heads(NamedTuple):
  """Readings of one model, [layers, H]: fractions of attention, 0…1."""

  previous: np.ndarray  # Weight of values on the token before them.
  # Weight of repeated keys on the values behind their earlier copies.
  match: np.ndarray

  def best(self) -> dict[str, float]:
    """Returns each layer's best head, as 'previous_0', …, 'match_0', …"""
    return {
      f'{name}_{layer}': float(np.max(heads))
      for name, reading in zip(self._fields, self)
      for layer, heads in enumerate(reading)
    }


def reader(
  model: transformer.Transformer,
) -> Callable[[Any, packing.Batch], Heads]:
  """Returns (params, rows of pairs) → `Heads`; compiles once per shape.

  The rows are those of `curriculum.Rows`: packed documents of keys and values.
  """
  layers = model.config.layers()
  scale = model.config.head_dim**-0.5

  @jax.jit
  def summed(params, rows: packing.Batch, asked_BLM, before_BLM):
    _, left = model.apply(
      {'params': params},
      rows.tokens_BL,
      rows.visibility(),
      method='hidden',
      mutable=['heads'],
    )
    found = []
    for layer, q_BLHK, k_BMK, logit_H in _operands(
      left['heads'], params, layers
    ):
      visible_BLM = visibility_lib.as_dense(
        rows.visibility(), layer.window, layer.sinks
      )
      weights_BLHM = _weights(scale * q_BLHK, k_BMK, visible_BLM, logit_H)
      found.append(
        [
          jnp.einsum('BLHM,BLM->H', weights_BLHM, wanted_BLM)
          for wanted_BLM in (before_BLM, asked_BLM)
        ]
      )
    return found

  def read(params: Any, rows: packing.Batch) -> Heads:
    asked_BLM, before_BLM = targets(rows)
    sums = np.asarray(
      jax.device_get(summed(params, rows, asked_BLM, before_BLM))
    )
    # A query may have several targets; it counts once.
    counts = [np.sum(x.any(axis=-1)) for x in (before_BLM, asked_BLM)]
    previous_NH, match_NH = (
      sums[:, which] / max(1, count) for which, count in enumerate(counts)
    )
    return Heads(previous_NH, match_NH)

  return read


def targets(rows: packing.Batch) -> tuple[np.ndarray, np.ndarray]:
  """Returns the targets of match heads and of previous-token heads.

  Both are float32 [B, L, M], 1 where query L should look at key M. They ignore
  windows: a local layer reads low for targets out of its reach.
  """
  tokens_BL = np.asarray(rows.tokens_BL)
  source_BL = np.asarray(rows.source_BL)
  length = tokens_BL.shape[1]
  one_document_BLM = source_BL[:, :, None] == source_BL[:, None, :]
  is_previous_LM = np.eye(length, k=-1, dtype=bool)
  is_value_BL = np.isin(tokens_BL, needle.VALUES)
  before_BLM = one_document_BLM & is_previous_LM & is_value_BL[:, :, None]
  same_BLM = tokens_BL[:, :, None] == tokens_BL[:, None, :]
  same_BLM &= np.isin(tokens_BL, needle.KEYS)[:, :, None] & one_document_BLM
  # Move from a key's column to that of the value behind it.
  behind_BLM = np.zeros_like(same_BLM)
  behind_BLM[:, :, 1:] = same_BLM[:, :, :-1]
  is_earlier_LM = np.tri(length, k=-1, dtype=bool)
  asked_BLM = behind_BLM & one_document_BLM & is_earlier_LM
  return asked_BLM.astype(np.float32), before_BLM.astype(np.float32)


def _operands(sown, params, layers: tuple[layers_lib.Layer, ...]):
  """Yields each layer, its queries and keys in float32, and its sink logits."""
  period = len(layers_lib.repeating_block(layers))
  for index, layer in enumerate(layers):
    name = f'layer_{index % period}'
    attention = sown['blocks'][name]['attention']
    (q_NBLHK,), (k_NBMK,) = attention['q_BLHK'], attention['k_BMK']
    repeat = operator.itemgetter(index // period)
    k_BMK = _values(jax.tree.map(repeat, k_NBMK))
    q_BLHK = repeat(q_NBLHK).astype(jnp.float32)
    logit_NH = params['blocks'][name]['attention'].get('sink_logit_H')
    yield layer, q_BLHK, k_BMK, None if logit_NH is None else repeat(logit_NH)


def _values(k_BMK: jax.Array | int8.Quantized) -> jax.Array:
  if not isinstance(k_BMK, int8.Quantized):
    return k_BMK.astype(jnp.float32)
  scales = k_BMK.scales
  scales = scales[..., None] if scales.ndim == 2 else scales[None, None]
  return k_BMK.codes.astype(jnp.float32) * scales


def _weights(q_BLHK, k_BMK, visible_BLM, logit_H) -> jax.Array:
  logits_BLHM = jnp.einsum('BLHK,BMK->BLHM', q_BLHK, k_BMK)
  visible_BLHM = visible_BLM[:, :, None, :]
  logits_BLHM = jnp.where(visible_BLHM, logits_BLHM, -jnp.inf)
  weights_BLHM = jax.nn.softmax(logits_BLHM, axis=-1)
  if logit_H is not None:
    lse_BLH = jax.nn.logsumexp(logits_BLHM, axis=-1)
    weights_BLHM, _ = softmax.add_logit(weights_BLHM, lse_BLH, logit_H)
  # A query that sees nothing, in padding, gets zeros.
  return jnp.where(visible_BLHM, weights_BLHM, 0.0)
