"""Measures changed layers of a teacher on rows of text, without training.

All windows and sinks run in one compiled program: of a row that is one
document, a window only moves the end of the range of queries that see a key
(`visibility.py`). Layers before the first change keep the activations of an
earlier measurement, so that a change of a late layer costs little.
"""

from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.interchange import plain as plain_lib
from kaiju_jax.interchange.surgery import calibrate
from kaiju_jax.interchange.surgery import share
from kaiju_jax.model import block
from kaiju_jax.model import config as model_config
from kaiju_jax.model import kv_heads
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config

_CHUNK = 512  # Positions whose logits are held at once.


class Rows(NamedTuple):
  """Rows to measure on, each one document."""

  tokens_BL: np.ndarray  # int32.
  is_text_BL: np.ndarray  # Whether a token counts in the loss.
  is_answer_BL: np.ndarray  # Whether a token is part of a needle's answer.


class Reading(NamedTuple):
  """What a model makes of the rows, nothing trained."""

  loss: float  # Nats per token of text.
  needle: float  # Nats per token of the answers, the text before it given.
  right: int  # How many of the answers' tokens are the likeliest.


class Student(NamedTuple):
  """A teacher with other layers."""

  layers: tuple[layers_lib.Layer, ...]
  weights: tuple[plain_lib.Layer, ...]
  num_kv_heads: int
  kv: str = 'none'  # 'int8' for keys and values as codes.
  # All that is quantized; None for `kv` alone.
  quantization: quantization_config.QuantizationConfig | None = None


class Fits:
  """Makes students of a teacher; layers that read each other are fitted once.

  Args:
    teacher: the teacher's weights.
    config: the teacher's config.
    statistics: the teacher's, with the pairs of all students.
  """

  def __init__(
    self,
    teacher: plain_lib.Plain,
    config: model_config.ModelConfig,
    statistics: calibrate.Statistics,
  ):
    self._of = teacher, config, statistics
    self._made: dict[tuple[int, ...], dict[int, plain_lib.Layer]] = {}

  def student(
    self, layers: Sequence[layers_lib.Layer], heads: int, kv: str = 'none'
  ) -> Student:
    """Returns the student with these layers, and so many heads of each."""
    weights: dict[int, plain_lib.Layer] = {}
    for owner in layers_lib.owners(layers):
      readers = [i for i, one in enumerate(layers) if one.kv_from == owner]
      key = (heads, *readers)
      if key not in self._made:
        self._made[key] = share.fit_layers(*self._of, readers, heads)
      weights |= self._made[key]
    made = tuple(weights[index] for index in range(len(layers)))
    return Student(tuple(layers), made, heads, kv)


class _Pass(NamedTuple):
  """A student, and the states of its forward pass."""

  student: Student
  x_IBLD: list[jax.Array]  # Inputs of the layers.
  made: dict[int, object]  # Keys and values, by the layer that made them.


class Trials:
  """Reads students of one teacher on the same rows."""

  def __init__(
    self,
    teacher: plain_lib.Plain,
    config: model_config.ModelConfig,
    rows: Rows,
  ):
    """Embeds the rows; the teacher's layers are not read."""
    self._config = dataclasses.replace(
      config,
      dtype='float32',
      quantization=quantization_config.none(),
      remat='none',
    )
    self._turned = [layer.kind for layer in config.layers()]
    tables = {'embedding_DV': teacher.embedding_DV}
    if teacher.head_DV is not None:
      tables['head_DV'] = teacher.head_DV
    tops = {
      'embedding': tables,
      'final_norm': {'gain_D': teacher.final_gain_D},
    }
    self._tops = jax.tree.map(jnp.asarray, tops)
    length = rows.tokens_BL.shape[1]
    seen = visibility_lib.concatenate(
      [visibility_lib.causal(length)] * len(rows.tokens_BL)
    )
    model = transformer.Transformer(self._config)
    self._x_BLD, self._context = jax.jit(
      functools.partial(model.apply, method='enter')
    )({'params': self._tops}, rows.tokens_BL, seen)
    asked_BL = rows.is_text_BL | rows.is_answer_BL
    self._asked = np.nonzero(asked_BL[:, 1:])
    at = self._asked[0], self._asked[1] + 1
    self._targets = rows.tokens_BL[at]
    self._is_answer = rows.is_answer_BL[at]
    self._arrays: dict[int, tuple[np.ndarray, jax.Array]] = {}
    self._base: _Pass | None = None

  def read(self, student: Student, keep: bool = False) -> Reading:
    """Returns what a student makes of the rows.

    Args:
      student: the student.
      keep: whether the next readings begin where they part from this one.
    """
    first = self._first_change(student)
    x_BLD, xs, made = self._x_BLD, [], {}
    if first:
      xs = self._base.x_IBLD[:first]
      x_BLD = self._base.x_IBLD[first]
      made = {i: kv for i, kv in self._base.made.items() if i < first}
    read_later = {one.kv_from for one in student.layers}
    for index in range(first, len(student.layers)):
      layer = student.layers[index]
      if keep:
        xs.append(x_BLD)
      x_BLD, key_value = self._step(student, index)(
        self._on_device(student.weights[index]),
        x_BLD,
        made.get(layer.kv_from),
        self._limits(layer),
        self._context,
      )
      if index in read_later:
        made[index] = key_value
    if keep:
      self._base = _Pass(student, [*xs, x_BLD], made)
    return self._score(x_BLD)

  def _first_change(self, student: Student) -> int:
    """Returns the first layer in which a student is not the kept one."""
    if self._base is None or student[2:] != self._base.student[2:]:
      return 0
    before = self._base.student
    same = [
      layer == other and weights is others
      for layer, other, weights, others in zip(
        student.layers, before.layers, student.weights, before.weights
      )
    ]
    return (same + [False]).index(False)

  def _on_device(self, weights: plain_lib.Layer):
    """Returns a layer's parameters as the model names them."""
    tree: dict[str, dict[str, jax.Array]] = {}
    for name, w in plain_lib.name_parameters(weights).items():
      module, _, leaf = name.partition('.')
      # Most arrays of a changed layer are the teacher's own.
      if id(w) not in self._arrays:
        self._arrays[id(w)] = w, jnp.asarray(w)
      tree.setdefault(module, {})[leaf] = self._arrays[id(w)][1]
    return tree

  def _limits(self, layer: layers_lib.Layer) -> np.ndarray:
    """Returns one past the last query that sees each key, [L]."""
    length = self._x_BLD.shape[1]
    key_L = np.arange(length)
    limit_L = np.full(length, length)
    if layer.window is not None:
      limit_L = np.minimum(limit_L, key_L + layer.window)
      limit_L = np.where(key_L < layer.sinks, length, limit_L)
    return limit_L.astype(np.int32)

  def _step(self, student: Student, index: int):
    """Returns the compiled layer, which all layers of a kind share."""
    floats = self._config.quantization
    config = dataclasses.replace(
      self._config,
      num_kv_heads=student.num_kv_heads,
      quantization=student.quantization
      or dataclasses.replace(floats, kv=student.kv),
    )
    layer = student.layers[index]
    return _compiled(
      model_config.freeze(config),
      self._turned[index] == 'local',
      layer.turned,
    )

  def _score(self, x_BLD: jax.Array) -> Reading:
    """Returns the loss of what is asked, of the last layer's output."""
    x_ND = x_BLD[self._asked]
    count = len(x_ND)
    fill = -count % _CHUNK
    x_ND = jnp.pad(x_ND, ((0, fill), (0, 0)))
    targets_N = jnp.pad(jnp.asarray(self._targets), (0, fill))
    static = model_config.freeze(self._config)
    lost_N, right_N = (
      np.asarray(one)[:count]
      for one in _scored(static, self._tops, x_ND, targets_N)
    )
    needle_N = self._is_answer
    return Reading(
      _mean(lost_N[~needle_N]),
      _mean(lost_N[needle_N]),
      int(right_N[needle_N].sum()),
    )


def _mean(losses_N: np.ndarray) -> float:
  """Returns the mean; NaN where nothing was asked."""
  return float(losses_N.mean(dtype=np.float64)) if len(losses_N) else math.nan


@functools.lru_cache
def _compiled(static: model_config.Static, is_local: bool, turned: bool):
  module = block.TransformerLayer(
    static.config, layers_lib.Layer(None, 0, turned)
  )

  @jax.jit
  def step(params, x_BLD, key_value, limit_M, context):
    heads = kv_heads.here(static.config.num_kv_heads)
    rows = x_BLD.shape[0] * heads
    seen = jax.tree.map(lambda x: x[:1].repeat(rows, 0), context.visibility)
    limit_BM = jnp.broadcast_to(limit_M, seen.limit_BM.shape)
    context = context._replace(visibility=seen._replace(limit_BM=limit_BM))
    if is_local:
      context = context._replace(global_turns=context.local_turns)
    return module.apply({'params': params}, x_BLD, key_value, context)

  return step


@functools.partial(jax.jit, static_argnums=0)
def _scored(static: model_config.Static, tops, x_ND, targets_N):
  model = transformer.Transformer(static.config)
  params = {'params': tops}

  def score(part):
    x_LD, target_L = part
    hidden = model.apply(params, x_LD[None], method='leave')
    logits_LV = model.apply(params, hidden, method='logits')[0]
    picked_L = jnp.take_along_axis(logits_LV, target_L[:, None], 1)[:, 0]
    lost_L = jax.nn.logsumexp(logits_LV, axis=-1) - picked_L
    return lost_L, jnp.argmax(logits_LV, axis=-1) == target_L

  parts = x_ND.reshape(-1, _CHUNK, x_ND.shape[1]), targets_N.reshape(-1, _CHUNK)
  lost, right = jax.lax.map(score, parts)
  return lost.reshape(-1), right.reshape(-1)
