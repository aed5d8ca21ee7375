"""Makes a student's first weights by means of the teacher's.

The student has the teacher's depth and sizes, and any of

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
`mean_of_layers` averages gain · W, and divides by the owner's gain. Biases and
the gains of the keys' norm are averaged as they are.

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
_WEIGHTS = 'w_k_DUK', 'w_v_DUK'
_BIASES = 'bias_k_UK', 'bias_v_UK'


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
  made = pool_layers(teacher, config.layers(), config.num_kv_heads, owners)
  return plain_lib.params(teacher._replace(layers=made), config)


def pool_layers(
  teacher: plain_lib.Plain,
  layers: Sequence[layers_lib.Layer],
  heads: int,
  owners: str = 'mean',
) -> tuple[plain_lib.Layer, ...]:
  """Returns the weights of all of a student's layers; see `student`."""
  if owners not in OWNERS:
    raise ValueError(f'owners={owners!r}: must be one of {", ".join(OWNERS)}.')
  return tuple(
    pool_layer(teacher.layers, layers, index, heads, owners)
    for index in range(len(layers))
  )


def pool_layer(
  layers: Sequence[plain_lib.Layer],
  shared: Sequence[layers_lib.Layer],
  index: int,
  heads: int,
  owners: str = 'mean',
) -> plain_lib.Layer:
  """Returns a student's layer.

  Args:
    layers: the teacher's.
    shared: the student's.
    index: which layer.
    heads: U of the student.
    owners: see `student`.
  """
  layer = layers[index]
  if shared[index].kv_from != index:
    return layer._replace(**dict.fromkeys((*_WEIGHTS, *_BIASES, 'k_gain')))
  readers = [index]
  if owners == 'mean':
    readers = [i for i, one in enumerate(shared) if one.kv_from == index]
  gains = [layers[i].attention_gain_D for i in readers]
  made = {}
  for name in _WEIGHTS:
    weights = [getattr(layers[i], name) for i in readers]
    if gains[0] is not None:
      weights = [mean_of_layers(weights, gains, layer.attention_gain_D)]
    made[name] = pool(np.mean(weights, axis=0, dtype=np.float32), heads)
  for name in _BIASES:
    if getattr(layer, name) is not None:
      biases = [getattr(layers[i], name)[None] for i in readers]
      made[name] = pool(np.mean(biases, axis=0, dtype=np.float32), heads)[0]
  if layer.k_gain is not None:
    every = [layers[i].k_gain for i in readers]
    made['k_gain'] = np.mean(every, axis=0, dtype=np.float32)
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
