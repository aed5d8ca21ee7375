"""Reads a text with a teacher and keeps the second moments of its attention.

One pass. A fit (`share.py`) needs of each layer, as means over tokens:

    squares   E[x xᵀ], x the input of attention behind its norm
    crosses   E[x_o k_rᵀ] and E[x_o v_rᵀ], the inputs of a layer o that shall
              make keys and values for a layer r, and what r makes of its own
    energies  how large keys, values and queries are
    means     E[x] and E[k], which attention partly ignores

Keys are those before the rotary embedding and before their norm, if they have
one; queries stand behind theirs. Where keys and values have biases, x has a
last entry 1. Nothing grows with the number of tokens.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
from typing import NamedTuple

import jax
import numpy as np

from kaiju_jax.data import packing
from kaiju_jax.interchange import plain as plain_lib
from kaiju_jax.model import attention_layers
from kaiju_jax.model import config as model_config
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config


class Statistics(NamedTuple):
  """Second moments of a teacher's attention over a text, float64."""

  tokens: int  # How many tokens they are the means of.
  # How many keys a token sees on average, itself included, where there is no
  # window.
  seen: float
  # {layer: E[x], [E]}; E is D, or D + 1 with biases.
  means: dict[int, np.ndarray]
  key_means: dict[int, np.ndarray]  # {layer: E[k], [U, K]}.
  squares: dict[int, np.ndarray]  # {layer: E[x xᵀ], [E, E]}.
  # {(owner, reader): E[x_owner k_readerᵀ], [E, U, K]}.
  keys: dict[tuple[int, int], np.ndarray]
  # {(owner, reader): E[x_owner v_readerᵀ], [E, U, K]}.
  values: dict[tuple[int, int], np.ndarray]
  # {layer: E[k kᵀ] of each head, [U, K, K]}.
  key_squares: dict[int, np.ndarray]
  # {layer: E[v vᵀ] of each head, [U, K, K]}.
  value_squares: dict[int, np.ndarray]
  # {layer: E[q qᵀ] of each head, [H, K, K]}.
  query_squares: dict[int, np.ndarray]


_SQUARES = ('key_squares', 'value_squares', 'query_squares')


def pairs_of(layers: Sequence[layers_lib.Layer]) -> set[tuple[int, int]]:
  """Returns the (owner, reader) pairs that a student's layers need."""
  return {(layer.kv_from, index) for index, layer in enumerate(layers)}


def measure(
  teacher: plain_lib.Plain,
  config: model_config.ModelConfig,
  batches: Iterable[packing.Batch],
  pairs: Iterable[tuple[int, int]],
) -> Statistics:
  """Returns the statistics of a text.

  Args:
    teacher: the teacher's weights.
    config: the teacher's config.
    batches: the text, in batches of one shape; padding does not count.
    pairs: the (owner, reader) pairs whose crosses are kept; each layer's pair
      with itself is among them.

  Raises:
    ValueError: the text has no token, or an activation is not finite.
  """
  pairs = {*pairs, *((index, index) for index in range(len(teacher.layers)))}
  read = make_reader(teacher, config)
  sums: dict[tuple[str, int | tuple[int, int]], np.ndarray] = {}
  tokens, seen = 0, 0
  for batch in batches:
    is_token_BL = np.asarray(batch.source_BL) >= 0
    x_ITD = np.asarray(read(batch))[:, is_token_BL].astype(np.float64)
    if not np.isfinite(x_ITD).all():
      raise ValueError("the teacher's activations are not finite.")
    for name, sum_ in _sum(teacher, config, x_ITD, pairs):
      sums[name] = sums.get(name, 0.0) + sum_
    tokens += x_ITD.shape[1]
    seen += np.sum(1 + np.asarray(batch.position_BL)[is_token_BL])
  if not tokens:
    raise ValueError('the text has no token to measure the teacher with.')
  found = {field: {} for field in Statistics._fields[2:]}
  for (field, key), sum_ in sums.items():
    found[field][key] = sum_ / tokens
  return Statistics(tokens, float(seen / tokens), **found)


def _sum(
  teacher, config, x_ITD, pairs
) -> Iterator[tuple[tuple[str, int | tuple[int, int]], np.ndarray]]:
  """Yields the sums over one batch's tokens, by field and key."""
  inputs = [extend(x_TD, config) for x_TD in x_ITD]
  made = []
  for index, (layer, x_TE) in enumerate(zip(teacher.layers, inputs)):
    q_THK, k_TUK, v_TUK = project(layer, x_TE, config)
    made.append((k_TUK, v_TUK))
    yield ('means', index), x_TE.sum(0)
    yield ('key_means', index), k_TUK.sum(0)
    yield ('squares', index), x_TE.T @ x_TE
    for field, y_THK in zip(_SQUARES, (k_TUK, v_TUK, q_THK)):
      y_HTK = np.swapaxes(y_THK, 0, 1)
      yield (field, index), np.swapaxes(y_HTK, 1, 2) @ y_HTK
  for owner, reader in sorted(pairs):
    for field, y_TUK in zip(('keys', 'values'), made[reader]):
      cross = np.tensordot(inputs[owner], y_TUK, axes=(0, 0))
      yield (field, (owner, reader)), cross


def extend(x_TD: np.ndarray, config: model_config.ModelConfig) -> np.ndarray:
  """Returns the inputs, with a last entry 1 if there are biases."""
  if not config.qkv_bias:
    return x_TD
  return np.concatenate([x_TD, np.ones((len(x_TD), 1))], axis=1)


def project(
  layer: plain_lib.Layer, x_TE: np.ndarray, config: model_config.ModelConfig
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns a layer's queries, keys and values before rotation, float64.

  Queries are normalized if the model does so; keys are not.

  Args:
    layer: its weights.
    x_TE: its inputs, as `extend` returns them.
    config: the model's config.
  """
  weights = (
    (layer.w_q_DHK, layer.bias_q_HK, layer.q_gain),
    (layer.w_k_DUK, layer.bias_k_UK, None),
    (layer.w_v_DUK, layer.bias_v_UK, None),
  )
  made = []
  for w, bias, gain in weights:
    w = join(w, bias)
    y_THK = np.tensordot(x_TE, w, axes=1)
    if gain is not None:
      axes = (-2, -1) if config.qk_norm == 'all' else (-1,)
      mean_square = np.square(y_THK).mean(axes, keepdims=True)
      y_THK = y_THK / np.sqrt(mean_square + config.norm_epsilon) * gain
    made.append(y_THK)
  return tuple(made)


def join(w: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
  """Returns [E, …] in float64: a weight, its bias as the last row if any."""
  w = w.astype(np.float64)
  return w if bias is None else np.concatenate([w, bias[None]])


def make_reader(
  teacher: plain_lib.Plain, config: model_config.ModelConfig
) -> Callable[[packing.Batch], jax.Array]:
  """Returns the function from a batch to attention's inputs, [I, B, L, D].

  I are the layers. The forward pass is the teacher's in float32, without int8.
  """
  config = dataclasses.replace(
    config,
    dtype='float32',
    quantization=quantization_config.none(),
    remat='none',
  )
  params = plain_lib.params(teacher, config)
  model = transformer.Transformer(config)

  @jax.jit
  def read(params, batch):
    return attention_layers.record(model, params, batch).x_IBLD

  return lambda batch: read(params, batch)
