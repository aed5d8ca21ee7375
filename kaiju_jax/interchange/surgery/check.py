"""Refuses a teacher and a student of which surgery can make no start."""

import dataclasses

from kaiju_jax.model import config as model_config
from kaiju_jax.model import layers as layers_lib

# Fields that a student has from its teacher.
_SAME = (
  'vocab_size',
  'd_model',
  'num_heads',
  'head_dim',
  'd_ff',
  'tied_embedding',
  'scaled_embedding',
  'feedforward',
  'norms',
  'qk_norm',
  'qkv_bias',
  'norm_epsilon',
)


def check(
  teacher: model_config.ModelConfig, student: model_config.ModelConfig
) -> None:
  """Refuses a pair of configs.

  Raises:
    ValueError: names the field, its value and what would be right.
  """
  model_config.check(student)
  layers = teacher.layers()
  for index, layer in enumerate(layers):
    if layer.kv_from != index:
      raise ValueError(
        f'the teacher has the layers {layers_lib.draw(layers)}: all must make'
        ' their own keys and values.'
      )
  for name in _SAME:
    student_value, given = getattr(student, name), getattr(teacher, name)
    if student_value != given:
      raise ValueError(
        f"model.{name}={student_value!r}: must be {given!r}, the teacher's."
      )
  if len(student.layers()) != len(layers):
    raise ValueError(
      f'the student has {len(student.layers())} layers'
      f' ({layers_lib.draw(student.layers())}): must have {len(layers)}, as the'
      ' teacher has.'
    )
  _check_heads(teacher, student)
  _check_layers(teacher, student)


def _check_heads(teacher, student) -> None:
  heads, most = student.num_kv_heads, teacher.num_kv_heads
  if most % heads:
    raise ValueError(
      f'model.num_kv_heads={heads}: must divide the {most} heads of keys and'
      ' values of the teacher, which are merged.'
    )
  layers = student.layers()
  is_merged = heads < most or len(layers_lib.owners(layers)) < len(layers)
  if teacher.qk_norm == 'all' and is_merged:
    raise ValueError(
      "the teacher has model.qk_norm='all': its heads are normalized together,"
      f' so that model.num_kv_heads must be {most} and no layer may read'
      " another's keys and values."
    )


def _check_layers(teacher, student) -> None:
  """Refuses a layer with other rotary angles or without its sink logits."""
  pairs = zip(teacher.layers(), student.layers(), strict=True)
  for index, (theirs, ours) in enumerate(pairs):
    if _angles(teacher, theirs) != _angles(student, ours):
      raise ValueError(
        f'layer {index}: {theirs.letter} in the teacher, {ours.letter} in the'
        ' student, whose rotary angles differ: must be'
        f' {theirs.letter}.'
      )
    if theirs.sink_logit and not ours.sink_logit:
      raise ValueError(
        f'layer {index}: sink_logit in the teacher, none in the student: must'
        f" be L{index}s or G{index}s in the student's layout."
      )


def _angles(config: model_config.ModelConfig, layer: layers_lib.Layer):
  """Returns all that determines the angles of a layer; None if not turned."""
  base = config.rope_global if layer.window is None else config.rope_local
  if not layer.turned or not base:
    return None
  scaling = config.rope_scaling
  if layer.window is not None and scaling.layers == 'global':
    return base, 'default', scaling.angles
  return base, *(
    getattr(scaling, field.name)
    for field in dataclasses.fields(scaling)
    if field.name != 'layers'
  )
