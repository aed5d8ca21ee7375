"""Fits a student's keys and values to what its layers and heads need.

A student's owner makes one head of keys and values for several *members*: heads
of the teacher, in its own layer and in those that read it. All that a linear
map can change behind the owner's projection belongs to the members, so it is
folded into their other weights:

    values   v ≈ v'·A with any A [K, K] per member, folded into w_o. v' is the
             owner's best rank-K map to the values of all members, where an
             error counts as it does behind w_o (w_oᵀ w_o).
    keys     the rotary embedding turns the pair (k[i], k[i + K/2]), a complex
             number, and commutes with nothing but a complex factor per pair.
             So k_i ≈ a_i·k'_i, and conj(a_i) is folded into w_q. k' is the best
             rank-1 fit per pair, where an error counts as much as the
             member's queries are large in that pair. Keys that are not turned
             are fitted as values are. What all keys have in common counts only
             as far as the rotation makes logits differ by it: a softmax ignores
             the rest, which is most of the keys of slow pairs.
    keys with QK-norm
             nothing can be folded behind a norm but phases, and these only if
             the queries' gains are alike in a pair; elsewhere they are
             approximate. k' is the least-squares map to the members' keys, each
             divided by its root mean square, times its gain, and turned by its
             phase. The norm behind it then makes k' as large in every token;
             its gain makes it as large as the fit on average.

A head that is its own only member keeps its bits. Except for keys with QK-norm,
the error on the calibration text is the least of all such maps, hence never
above that of means. That the errors of all tokens count alike, whatever
attention gives them, is our choice: it needs no second pass.
"""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.interchange import plain as plain_lib
from kaiju_jax.interchange.surgery import calibrate
from kaiju_jax.interchange.surgery import least_squares
from kaiju_jax.model import config as model_config
from kaiju_jax.model import rotary


class Member(NamedTuple):
  """A head of keys and values of the teacher."""

  layer: int
  head: int


class Fit(NamedTuple):
  """One head that an owner makes, and what its members fold."""

  # Its projection, with the bias as the last row if there is one.
  w_EK: np.ndarray
  # {member: a, complex [K/2] of rotated keys, otherwise [K, K]}.
  folds: dict[Member, np.ndarray]
  # The weighted error that is left, over that of no key or value.
  residual: float
  # With QK-norm, the gain of the norm behind it.
  gain_K: np.ndarray | None = None


def student(
  teacher: plain_lib.Plain,
  teacher_config: model_config.ModelConfig,
  config: model_config.ModelConfig,
  statistics: calibrate.Statistics,
) -> Any:
  """Returns the float32 parameters with which the student's training begins.

  Args:
    teacher: the teacher's weights.
    teacher_config: the teacher's config.
    config: the student's config, which the caller has passed to `check`.
    statistics: the teacher's, with the pairs of the student's layers.
  """
  made = list(teacher.layers)
  layers = config.layers()
  heads = config.num_kv_heads
  for owner in sorted({layer.kv_from for layer in layers}):
    readers = [i for i, one in enumerate(layers) if one.kv_from == owner]
    fitted = fit_layers(teacher, teacher_config, statistics, readers, heads)
    for index, layer in fitted.items():
      made[index] = layer
  return plain_lib.params(teacher._replace(layers=tuple(made)), config)


def fit_layers(
  teacher: plain_lib.Plain,
  config: model_config.ModelConfig,
  statistics: calibrate.Statistics,
  readers: Sequence[int],
  heads: int,
) -> dict[int, plain_lib.Layer]:
  """Returns the student's layers that read one layer's keys and values.

  Args:
    teacher: the teacher's weights.
    config: the teacher's config.
    statistics: the teacher's, with the readers' pairs.
    readers: the layers, their owner first.
    heads: U of the student.
  """
  owner, *others = readers
  if not others and heads == config.num_kv_heads:
    return {owner: teacher.layers[owner]}
  keys, values = [], []
  for members in merge(readers, config.num_kv_heads, heads):
    keys.append(fit_keys(teacher, config, statistics, owner, members))
    values.append(fit_values(teacher, config, statistics, owner, members))
  made = {
    reader: _fold(teacher.layers[reader], reader, config, keys, values)
    for reader in readers
  }
  made[owner] = _own(made[owner], keys, values)
  for reader in others:
    made[reader] = made[reader]._replace(
      w_k_DUK=None, w_v_DUK=None, bias_k_UK=None, bias_v_UK=None, k_gain=None
    )
  return made


def merge(readers: Sequence[int], heads: int, fewer: int) -> list[list[Member]]:
  """Returns the members of each of the student's heads.

  Args:
    readers: the layers that read the owner.
    heads: U of the teacher.
    fewer: U of the student, a divisor of `heads`.
  """
  size = heads // fewer
  return [
    [
      Member(layer, head)
      for layer in readers
      for head in range(first, first + size)
    ]
    for first in range(0, heads, size)
  ]


def fit_values(
  teacher: plain_lib.Plain,
  config: model_config.ModelConfig,
  statistics: calibrate.Statistics,
  owner: int,
  members: Sequence[Member],
) -> Fit:
  """Returns the fit of one head's values.

  Args:
    teacher: the teacher's weights.
    config: the teacher's config.
    statistics: the teacher's.
    owner: the layer that makes the head.
    members: the heads of the teacher that it stands for.
  """
  return _fit_linear(
    least_squares.whiten(statistics.squares[owner]),
    [statistics.values[owner, m.layer][:, m.head] for m in members],
    [statistics.value_squares[m.layer][m.head] for m in members],
    [_value_weight(teacher, config, statistics, m) for m in members],
    members,
  )


def _value_weight(teacher, config, statistics, member: Member) -> np.ndarray:
  """Returns what an error of a head's values costs behind w_o, [K, K]."""
  layer = teacher.layers[member.layer]
  w_DHK = layer.w_o_DHK.astype(np.float64)
  is_normed = layer.attention_out_gain_D is not None
  if is_normed:
    w_DHK = w_DHK * layer.attention_out_gain_D[:, None, None]
  weights = [
    np.einsum('DHK,DHJ->KJ', w_DHK[:, heads], w_DHK[:, heads])
    for heads in _query_heads(config)
  ]
  if not is_normed:
    return weights[member.head]
  # Behind a norm, layers are as large as each other.
  size = sum(
    np.sum(weight_KK * square_KK)
    for weight_KK, square_KK in zip(
      weights, statistics.value_squares[member.layer]
    )
  )
  return weights[member.head] / max(size, np.finfo(float).tiny)


def _query_heads(config: model_config.ModelConfig) -> list[slice]:
  """Returns the query heads that read each head of keys and values."""
  size = config.num_heads // config.num_kv_heads
  return [slice(u * size, (u + 1) * size) for u in range(config.num_kv_heads)]


def _fit_linear(inputs, crosses, squares, weights, members) -> Fit:
  """Returns the best head [K] for targets of which any linear map is taken.

  Args:
    inputs: the owner's.
    crosses: E[x yᵀ] of each member, [E, K].
    squares: E[y yᵀ] of each member, [K, K].
    weights: what an error of each costs, [K, K].
    members: the heads of the teacher.
  """
  K = squares[0].shape[0]
  roots = [_root(weight_KK) for weight_KK in weights]
  cross_EY = np.concatenate(
    [cross @ root for cross, (root, _) in zip(crosses, roots)], axis=1
  )
  w_EK, a_KY = least_squares.reduce_rank(inputs, cross_EY, K)
  folds_NKK = np.stack(
    [
      a_KK @ inverse
      for a_KK, (_, inverse) in zip(np.split(a_KY, len(members), 1), roots)
    ]
  )
  # Any basis of v' is as good. The one in which the folds are nearest to 1 has
  # channels of the teacher's sizes, which int8 and training need.
  left_KK, _, right_KK = np.linalg.svd(folds_NKK.sum(0))
  turn_KK = left_KK @ right_KK
  size = np.trace(turn_KK.T @ folds_NKK.mean(0)) / K
  size = size if size > 0 else 1.0
  total = sum(np.sum(w * s) for w, s in zip(weights, squares))
  left = total - np.sum((inputs.inverse_ER.T @ inputs.square_EE @ w_EK) ** 2)
  folds = dict(zip(members, turn_KK.T @ folds_NKK / size))
  return Fit(w_EK @ turn_KK * size, folds, _share(left, total))


def _root(weight_KK: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns M with M Mᵀ = weight, and its pseudo-inverse."""
  values_K, vectors_KK = np.linalg.eigh(weight_KK)
  kept = values_K > 1e-14 * max(values_K[-1], np.finfo(float).tiny)
  root_K = np.sqrt(np.where(kept, values_K, 0))
  inverse_K = np.divide(1, root_K, out=np.zeros_like(root_K), where=kept)
  return vectors_KK * root_K, inverse_K[:, None] * vectors_KK.T


def _share(left: float, total: float) -> float:
  return float(np.clip(left / max(total, np.finfo(float).tiny), 0, None))


def fit_keys(
  teacher: plain_lib.Plain,
  config: model_config.ModelConfig,
  statistics: calibrate.Statistics,
  owner: int,
  members: Sequence[Member],
) -> Fit:
  """Returns the fit of one head's keys; see `fit_values`."""
  inputs = least_squares.whiten(statistics.squares[owner])
  mean_E = statistics.means[owner]
  means = [statistics.key_means[m.layer][m.head] for m in members]
  crosses = [statistics.keys[owner, m.layer][:, m.head] for m in members]
  squares = [statistics.key_squares[m.layer][m.head] for m in members]
  weights = [_query_weight(config, statistics, m) for m in members]
  if config.qk_norm == 'none' and not _base(config, owner):
    return _fit_linear(
      least_squares.center(inputs, mean_E, 1.0),
      [cross - np.outer(mean_E, mean) for cross, mean in zip(crosses, means)],
      [square - np.outer(mean, mean) for square, mean in zip(squares, means)],
      weights,
      members,
    )
  scales = [_key_scale(teacher, statistics, m) for m in members]
  is_normed = config.qk_norm != 'none'
  ignored_P = np.zeros(config.head_dim // 2)
  if not is_normed:  # A norm makes keys larger or smaller by their mean.
    ignored_P = _ignored(config, statistics.seen, owner)
  means_PN = np.stack(
    [_pair(mean * scale) for mean, scale in zip(means, scales)], -1
  )
  cross_PEN = np.stack(
    [_pair(cross * scale) for cross, scale in zip(crosses, scales)], -1
  ).transpose(1, 0, 2)
  cross_PEN -= ignored_P[:, None, None] * mean_E[:, None] * means_PN[:, None]
  square_PN = np.stack(
    [
      _pair_squares(np.diagonal(square) * scale**2)
      for square, scale in zip(squares, scales)
    ],
    -1,
  )
  square_PN -= ignored_P[:, None] * np.abs(means_PN) ** 2
  weight_PN = np.stack([_pair_squares(np.diagonal(w)) for w in weights], -1)
  fit_pair = least_squares.fit_phases if is_normed else least_squares.fit_common
  found = [
    fit_pair(least_squares.center(inputs, mean_E, ignored), cross_EN, weight_N)
    for ignored, cross_EN, weight_N in zip(ignored_P, cross_PEN, weight_PN)
  ]
  w_EP = np.stack([w_E for w_E, _ in found], -1)
  a_PN = np.stack([a_N for _, a_N in found])
  own_P = np.sum(w_EP.conj() * (inputs.square_EE @ w_EP), axis=0).real
  own_P -= ignored_P * np.abs(mean_E @ w_EP) ** 2
  left = _left(own_P, cross_PEN, square_PN, weight_PN, w_EP, a_PN)
  fit = Fit(
    np.concatenate([w_EP.real, w_EP.imag], axis=1),
    {m: a_PN[:, n] for n, m in enumerate(members)},
    _share(left, np.sum(weight_PN * square_PN)),
  )
  if not is_normed:
    return fit
  large = _size(statistics, members[0])
  return _behind_norm(fit, teacher.layers[owner], inputs.square_EE, large)


def _ignored(config, seen: float, index: int) -> np.ndarray:
  """Returns how much of the keys' mean square a softmax ignores, [K/2].

  A query sees a key k of every token as k · exp(i · rate · distance); what is
  alike at all distances changes no attention. That all distances count alike is
  our choice, and so is the query: the last of `seen` tokens.

  Args:
    config: the teacher's config.
    seen: how many keys a token sees, without a window.
    index: the layer.
  """
  layer = config.layers()[index]
  kind = 'global' if layer.window is None else 'local'
  scaling = rotary.scaling_of(config.rope_scaling, kind)
  rate_P = rotary.rates(config.head_dim, _base(config, index), scaling)
  count = max(round(seen), 1)
  distance_M = np.arange(count)
  if layer.window is not None:
    is_sink_M = count - 1 - distance_M < layer.sinks
    distance_M = distance_M[(distance_M < layer.window) | is_sink_M]
  turned_MP = np.exp(1j * np.outer(distance_M, rate_P))
  return np.abs(turned_MP.mean(0)) ** 2


def _base(config: model_config.ModelConfig, index: int) -> float:
  """Returns the base of a layer's angles; 0 if it is not turned."""
  layer = config.layers()[index]
  base = config.rope_global if layer.window is None else config.rope_local
  return base if layer.turned else 0.0


def _pair(x: np.ndarray) -> np.ndarray:
  """Returns the last axis [K] as rotary pairs, complex [K/2]."""
  first, second = np.split(x, 2, axis=-1)
  return first + 1j * second


def _pair_squares(square_K: np.ndarray) -> np.ndarray:
  """Returns E|pair|² of each rotary pair, [K/2], from E[x²]."""
  return np.sum(np.split(square_K, 2), axis=0)


def _size(statistics, member: Member) -> float:
  """Returns the root mean square of a head's keys before their norm."""
  square_KK = statistics.key_squares[member.layer][member.head]
  return np.sqrt(np.trace(square_KK) / len(square_KK)) or 1.0


def _key_scale(teacher, statistics, member: Member) -> np.ndarray | float:
  """Returns what the norm multiplies a head's keys by on average, [K]."""
  gain_K = teacher.layers[member.layer].k_gain
  if gain_K is None:
    return 1.0
  return gain_K.astype(np.float64) / _size(statistics, member)


def _query_weight(config, statistics, member: Member) -> np.ndarray:
  """Returns E[q qᵀ] over the queries that read a head of keys, [K, K]."""
  heads = _query_heads(config)[member.head]
  return statistics.query_squares[member.layer][heads].sum(0)


def _left(own_P, cross_PEN, square_PN, weight_PN, w_EP, a_PN) -> float:
  """Returns Σ weight · E|k − a·x·w|²; own_P is E|x·w|²."""
  met_PN = np.matmul(w_EP.T.conj()[:, None], cross_PEN)[:, 0]
  error_PN = (
    square_PN
    - 2 * (a_PN.conj() * met_PN).real
    + np.abs(a_PN) ** 2 * own_P[:, None]
  )
  return float(np.sum(weight_PN * error_PN))


def _behind_norm(fit, owner: plain_lib.Layer, square_EE, large: float) -> Fit:
  """Returns the fit with the gain of the norm behind its projection.

  The projection is made `large`, the root mean square before the norm.
  """
  gain_K = owner.k_gain.astype(np.float64)
  gain_K = np.where(gain_K == 0, 1.0, gain_K)
  w_EK = fit.w_EK / gain_K
  size = np.sqrt(np.mean(np.sum(w_EK * (square_EE @ w_EK), axis=0))) or 1.0
  return fit._replace(w_EK=w_EK * (large / size), gain_K=gain_K * size)


def _own(layer: plain_lib.Layer, keys, values) -> plain_lib.Layer:
  """Returns an owner's layer with the projections of its fits."""
  changes = {}
  for letter, fits in ('k', keys), ('v', values):
    w_EUK = np.stack([fit.w_EK for fit in fits], 1).astype(np.float32)
    rows = layer.w_q_DHK.shape[0]
    changes[f'w_{letter}_DUK'] = w_EUK[:rows]
    if layer.bias_q_HK is not None:
      changes[f'bias_{letter}_UK'] = w_EUK[rows]
  if layer.k_gain is not None:
    # One gain serves all heads: sizes differ by what their fits lost.
    gain_UK = np.stack([fit.gain_K for fit in keys])
    changes['k_gain'] = gain_UK.mean(0).astype(np.float32)
  return layer._replace(**changes)


def _fold(layer, index, config, keys, values) -> plain_lib.Layer:
  """Returns a reader's layer with the heads' factors in its w_q and w_o."""
  bias = layer.bias_q_HK
  q_EHK = calibrate.join(layer.w_q_DHK, bias)
  o_DHK = layer.w_o_DHK.astype(np.float64)
  q_EHK, o_DHK = q_EHK.copy(), o_DHK.copy()
  heads = _query_heads(config)
  for key, value in zip(keys, values):
    for member, a in key.folds.items():
      if member.layer == index:
        part = heads[member.head]
        q_EHK[:, part] = _fold_queries(q_EHK[:, part], a, layer.q_gain)
    for member, a_KK in value.folds.items():
      if member.layer == index:
        part = heads[member.head]
        o_DHK[:, part] = o_DHK[:, part] @ a_KK.T
  rows = layer.w_q_DHK.shape[0]
  return layer._replace(
    w_q_DHK=q_EHK[:rows].astype(np.float32),
    w_o_DHK=o_DHK.astype(np.float32),
    bias_q_HK=None if bias is None else q_EHK[rows].astype(np.float32),
  )


def _fold_queries(q_EHK, a: np.ndarray, gain_K) -> np.ndarray:
  """Returns queries' weights that meet k' as they met k ≈ a·k'.

  Behind a norm with a gain, they are turned as if it stood before the norm.
  """
  if not np.iscomplexobj(a):
    return q_EHK @ a.T
  gain_K = 1.0 if gain_K is None else np.where(gain_K == 0, 1.0, gain_K)
  turned_EHP = _pair(q_EHK * gain_K) * a.conj()
  turned_EHK = np.concatenate([turned_EHP.real, turned_EHP.imag], axis=-1)
  return turned_EHK / gain_K
