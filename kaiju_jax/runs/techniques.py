"""Measures what each technique of a student costs alone, nothing trained."""

from collections.abc import Callable
from collections.abc import Iterator
import dataclasses
from typing import NamedTuple

import numpy as np

from kaiju_jax.interchange import plain as plain_lib
from kaiju_jax.interchange.surgery import trial
from kaiju_jax.model import config as model_config
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.quantization import config as quantization_config

Layers = tuple[layers_lib.Layer, ...]
# From layers and heads of keys and values to a student's weights.
Make = Callable[[Layers, int], tuple[plain_lib.Layer, ...]]


class Technique(NamedTuple):
  """A technique of a student, and the teacher with it alone."""

  name: str
  layers: Layers
  heads: int  # Of keys and values.
  quantization: quantization_config.QuantizationConfig


def measure(
  teacher: plain_lib.Plain,
  config: model_config.ModelConfig,
  student: model_config.ModelConfig,
  make: Make,
  tokens: np.ndarray,
  size: tuple[int, int],
) -> list[str]:
  """Returns lines for the user: the loss of each technique, cheapest first.

  Args:
    teacher: the teacher's weights.
    config: the teacher's config.
    student: the student's config.
    make: the weights of a student's layers.
    tokens: of a text, int32. Without two tokens there are no lines.
    size: how many rows of the text are read, or as many as it has, and tokens
      of each, at most those that the teacher can read.
  """
  if len(tokens) < 2:
    return []
  count, length = size
  length = min(length, config.max_length, len(tokens))
  count = min(count, len(tokens) // length)
  rows_BL = tokens[: count * length].reshape(count, length)
  is_text_BL = np.ones_like(rows_BL, bool)
  trials = trial.Trials(
    teacher, config, trial.Rows(rows_BL, is_text_BL, ~is_text_BL)
  )

  def read(one: Technique, keep: bool = False) -> float:
    weights = make(one.layers, one.heads)
    given = trial.Student(
      one.layers, weights, one.heads, quantization=one.quantization
    )
    return trials.read(given, keep).loss

  floats = Technique(
    '',
    config.layers(),
    config.num_kv_heads,
    quantization_config.none(),
  )
  base = read(floats, True)
  found = sorted(
    (read(one), one.name) for one in list_techniques(floats, student)
  )
  together = floats._replace(
    layers=student.layers(),
    heads=student.num_kv_heads,
    quantization=student.quantization,
  )
  last = read(together)
  return [
    f'  loss of {count * (length - 1):,} tokens, nothing trained:'
    f' teacher {base:.4f}',
    *(f'    {loss - base:+.4f}  {name}' for loss, name in found),
    f'    {last - base:+.4f}  together, the student',
  ]


def list_techniques(
  teacher: Technique, student: model_config.ModelConfig
) -> Iterator[Technique]:
  """Yields the student's techniques, each alone, and clamps that are left off.

  Args:
    teacher: the teacher without any.
    student: the student's config.
  """
  of, layers = teacher.layers, student.layers()
  without = quantization_config.clamps_of(quantization_config.none())
  int8 = dataclasses.replace(student.quantization, **without)
  if int8 != quantization_config.none():
    yield teacher._replace(name='int8', quantization=int8)
  clamps = quantization_config.clamps_of(student.quantization)
  name = f'clamps at {clamps["clamp_input_k"]:g} and'
  name += f' {clamps["clamp_hidden_k"]:g} times the rms'
  if clamps == without:
    name = f'(left off) {name}'
    clamps |= {'clamp_input': 'input_std', 'clamp_hidden': 'input_std'}
  yield teacher._replace(
    name=name,
    quantization=dataclasses.replace(teacher.quantization, **clamps),
  )
  seen = tuple(
    dataclasses.replace(one, kv_from=i) for i, one in enumerate(layers)
  )
  alone = tuple(dataclasses.replace(one, sinks=0) for one in seen)
  if alone != of:
    yield teacher._replace(name='windows', layers=alone)
  if alone != seen:
    yield teacher._replace(name='windows with sinks', layers=seen)
  if student.num_kv_heads != teacher.heads:
    name = f'{teacher.heads} heads of keys and values as {student.num_kv_heads}'
    yield teacher._replace(name=name, heads=student.num_kv_heads)
  for reader, layer in enumerate(layers):
    owner = layer.kv_from
    if owner == reader:
      continue
    pair = list(of)
    if of[owner].reading != of[reader].reading:
      pair[owner], pair[reader] = seen[owner], seen[reader]
    pair[reader] = dataclasses.replace(pair[reader], kv_from=owner)
    name = f'layer {reader} reads layer {owner}'
    yield teacher._replace(name=name, layers=tuple(pair))
