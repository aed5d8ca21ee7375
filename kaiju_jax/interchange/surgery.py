"""Makes a student's first weights from a teacher with more keys and values.

The teacher is a model whose layers are all global and make their own keys and
values. The student has the same depth and sizes, and any of

    fewer heads      each of the student's heads of keys and values is the mean
                     of the neighbouring heads of the teacher whose query heads
                     it now serves (Ainslie et al. 2023 found the mean better
                     than one of the heads, and one of the heads better than
                     new weights)
    shared keys      an owner's projections are the mean over the layers that
                     share them, or the owner's own
    windows, int8    change no weight

The mean over layers is our guess. A projection reads its layer's normed input
x/rms(x) · gain, so two layers' weights are not in the same units. Therefore
`mean_of_layers` averages gain · W, and divides by the owner's gain.

Parameters that the teacher lacks, Bungee's scalars, start at 0 as in a new
model. A student with as many heads and layers of keys and values as the teacher
has the teacher's parameters, bit for bit.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kaiju_jax.interchange import plain as plain_lib
from kaiju_jax.model import config as model_config
from kaiju_jax.model import layers as layers_lib

OWNERS = ('mean', 'own')
# Fields of the student that are the teacher's.
_SAME = (
  'vocab_size',
  'd_model',
  'num_heads',
  'head_dim',
  'd_ff',
  'tied_embedding',
  'scaled_embedding',
)
# Fields that neither of them may have.
_PLAIN = {
  'feedforward': 'relu2',
  'norms': 'before',
  'qk_norm': 'none',
  'qkv_bias': False,
}


def check(
  teacher: model_config.ModelConfig, student: model_config.ModelConfig
) -> None:
  """Refuses a teacher or a student that `student` cannot take.

  Raises:
    ValueError: names the field, its value and what would be right.
  """
  model_config.check(student)
  layers = teacher.layers()
  for index, layer in enumerate(layers):
    if layer.window is not None or layer.kv_from != index:
      raise ValueError(
        f'the teacher has the layers {layers_lib.draw(layers)}: all must be'
        ' global and make their own keys and values.'
      )
    if not layer.turned:
      raise ValueError(
        f'the teacher has the layers {layers_lib.draw(layers)}: all must be'
        ' rotated.'
      )
  for name, wanted in _PLAIN.items():
    given = getattr(teacher, name)
    if given != wanted:
      raise ValueError(
        f'the teacher has model.{name}={given!r}: must be {wanted!r}; surgery'
        ' knows no other.'
      )
  for name in _SAME:
    student_value, given = getattr(student, name), getattr(teacher, name)
    if student_value != given:
      raise ValueError(
        f"model.{name}={student_value}: must be {given}, the teacher's."
      )
  if len(student.layers()) != len(layers):
    raise ValueError(
      f'the student has {len(student.layers())} layers'
      f' ({layers_lib.draw(student.layers())}): must have {len(layers)}, as the'
      ' teacher has.'
    )
  heads, most = student.num_kv_heads, teacher.num_kv_heads
  if most % heads:
    raise ValueError(
      f'model.num_kv_heads={heads}: must divide the {most} heads of keys and'
      ' values of the teacher, which become their means.'
    )


def student(
  teacher: plain_lib.Plain,
  config: model_config.ModelConfig,
  owners: str = 'mean',
) -> Any:
  """Returns the float32 parameters with which the student's training begins.

  Args:
    teacher: the teacher's weights (`plain.weights`).
    config: the student's config, which the caller has passed to `check`.
    owners: the projections that layers share: 'mean', the mean over the layers,
      or 'own', those of their owner.

  Raises:
    ValueError: another value of `owners`.
  """
  if owners not in OWNERS:
    raise ValueError(f'owners={owners!r}: must be one of {", ".join(OWNERS)}.')
  layers = config.layers()
  made = [
    _layer(teacher.layers, layers, index, config.num_kv_heads, owners)
    for index in range(len(layers))
  ]
  return plain_lib.params(teacher._replace(layers=tuple(made)), config)


def _layer(
  layers: Sequence[plain_lib.Layer],
  shared: Sequence[layers_lib.Layer],
  index: int,
  heads: int,
  owners: str,
) -> plain_lib.Layer:
  """Returns one layer's weights."""
  layer = layers[index]
  if shared[index].kv_from != index:
    return layer._replace(w_k_DUK=None, w_v_DUK=None)
  readers = [index]
  if owners == 'mean':
    readers = [i for i, one in enumerate(shared) if one.kv_from == index]
  gain_D = layer.attention_gain_D
  made = {
    name: pool(
      mean_of_layers(
        [getattr(layers[i], name) for i in readers],
        [layers[i].attention_gain_D for i in readers],
        gain_D,
      ),
      heads,
    )
    for name in ('w_k_DUK', 'w_v_DUK')
  }
  return layer._replace(**made)


def pool(w_DUK: np.ndarray, heads: int) -> np.ndarray:
  """Returns [D, heads, K], the means of each U / heads neighbouring heads."""
  D, U, K = w_DUK.shape
  return w_DUK.reshape(D, heads, U // heads, K).mean(axis=2)


def mean_of_layers(
  weights: Sequence[np.ndarray], gains: Sequence[np.ndarray], gain_D: np.ndarray
) -> np.ndarray:
  """Returns the mean of gain · W over layers, divided by `gain_D`.

  Args:
    weights: each layer's projection, [D, U, K].
    gains: the gain of each layer's norm, [D].
    gain_D: the owner's gain. Where it is 0 the result has no effect, and is the
      mean of W.
  """
  parts = []
  for w_DUK, other_D in zip(weights, gains):
    ratio_D = np.divide(
      other_D, gain_D, out=np.ones_like(gain_D), where=gain_D != 0
    )
    parts.append(w_DUK * ratio_D[:, None, None])
  return np.mean(parts, axis=0, dtype=np.float32)
