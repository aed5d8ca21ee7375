"""Reads rotary bases and scalings of a config.json in both of its spellings.

    before version 5    rope_theta, rope_scaling {rope_type or type, …}
    since version 5     rope_parameters {rope_type, rope_theta, …}, or one such
                        object under each of `LAYER_TYPES`

A file that has both must say the same in both. Angles are float32, as the
models were trained.
"""

import dataclasses
import math
from typing import Any

from kaiju_jax.interchange import fields as fields_lib
from kaiju_jax.model import rope_scaling

FULL, SLIDING = 'full_attention', 'sliding_attention'
LAYER_TYPES = FULL, SLIDING
Scaling = rope_scaling.RopeScalingConfig
_UNSCALED = Scaling(angles='float32')
_KINDS = dict.fromkeys(('default', 'linear', 'llama3', 'yarn'))


class _Found:
  """The spellings of one kind of layers' base and scaling."""

  def __init__(self):
    self.bases: list[tuple[str, float]] = []
    self.scalings: list[tuple[str, Scaling]] = []

  def add_base(self, fields: fields_lib.Fields, name: str, path: str) -> None:
    if fields.has(name):
      self.bases.append((path, fields.number(name, 1.0)))
    fields.ignore([name])

  def add(self, fields, path: str, max_length: int) -> None:
    """Reads an object with a scaling, and perhaps a base."""
    self.add_base(fields, 'rope_theta', f'{path}.rope_theta')
    self.scalings.append((path, _scaling(fields, max_length)))
    fields.finish()

  def add_old(self, fields: fields_lib.Fields, max_length: int) -> None:
    """Reads rope_theta and rope_scaling."""
    self.add_base(fields, 'rope_theta', 'rope_theta')
    if fields.has('rope_scaling'):
      self.add(fields.descend('rope_scaling'), 'rope_scaling', max_length)
    fields.ignore(['rope_scaling'])

  def base(self, default: float | None) -> float:
    base = fields_lib.agree(self.bases)
    if base is None and default is None:
      raise ValueError(
        'rope_theta: missing; must be given, because versions of transformers'
        ' differ in its default.'
      )
    return default if base is None else base

  def scaling(self) -> Scaling:
    found = fields_lib.agree(self.scalings)
    return _UNSCALED if found is None else found


def read(
  fields: fields_lib.Fields, max_length: int, default: float
) -> dict[str, Any]:
  """Returns the fields of `ModelConfig` for a model with one kind of angles.

  Args:
    fields: the file's fields.
    max_length: its max_position_embeddings.
    default: the base of a file that gives none.

  Raises:
    ValueError: names the field, its value and what would be right.
  """
  found = _Found()
  if fields.has('rope_parameters'):
    found.add(fields.descend('rope_parameters'), 'rope_parameters', max_length)
  fields.ignore(['rope_parameters'])
  found.add_old(fields, max_length)
  base = found.base(default)
  return {
    'rope_local': base,
    'rope_global': base,
    'rope_scaling': found.scaling(),
  }


def read_by_layer_type(
  fields: fields_lib.Fields,
  max_length: int,
  default: float | None,
  local: str | None = None,
  default_local: float | None = None,
) -> dict[str, Any]:
  """Returns the same for a model whose sliding layers have angles of their own.

  Args:
    fields: the file's fields.
    max_length: its max_position_embeddings.
    default: the base of full layers in a file that gives none; None to refuse
      such a file.
    local: the old name of the sliding layers' base; None where it is that of
      the full layers.
    default_local: the sliding layers' base in a file that gives none; None for
      that of the full layers.

  Raises:
    ValueError: names the field, its value and what would be right.
  """
  full, sliding = _Found(), _Found()
  if fields.has('rope_parameters'):
    nested = fields.descend('rope_parameters')
    for kind, found in zip(LAYER_TYPES, (full, sliding)):
      path = f'rope_parameters.{kind}'
      if nested.has(kind):
        found.add(nested.descend(kind), path, max_length)
      nested.ignore([kind])
    nested.finish()
  fields.ignore(['rope_parameters'])
  full.add_old(fields, max_length)
  if local is not None:
    sliding.add_base(fields, local, local)
  base = full.base(default)
  if sliding.scaling().kind != 'none':
    raise ValueError(
      f'rope_parameters.{SLIDING}.rope_type={sliding.scaling().kind!r}: must be'
      " 'default': only the full layers' angles are scaled."
    )
  scaling = full.scaling()
  if scaling.kind != 'none':
    scaling = dataclasses.replace(scaling, layers='global')
  return {
    'rope_global': base,
    'rope_local': sliding.base(default_local or base),
    'rope_scaling': scaling,
  }


def _scaling(fields: fields_lib.Fields, max_length: int) -> Scaling:
  """Returns the scaling that one object describes."""
  fields.require('partial_rotary_factor', 1.0, 'whole heads are rotated')
  kinds = [
    (name, fields.choice(name, {kind: kind for kind in _KINDS}))
    for name in ('rope_type', 'type')
    if fields.has(name)
  ]
  kind = fields_lib.agree(kinds) or 'default'
  if kind == 'default':
    return _UNSCALED
  factor = fields.number('factor', 1.0)
  if kind == 'linear':
    return dataclasses.replace(_UNSCALED, kind=kind, factor=factor)
  length = fields.count('original_max_position_embeddings', max_length)
  common = dict(kind=kind, factor=factor, original_length=length)
  if kind == 'llama3':
    low, high = _pair(fields, 'low_freq_factor', 'high_freq_factor')
    return dataclasses.replace(_UNSCALED, **common, low=low, high=high)
  slow, fast = _pair(fields, 'beta_slow', 'beta_fast', (1.0, 32.0))
  fields.require('truncate', True, 'the ramp begins and ends at whole pairs')
  return dataclasses.replace(
    _UNSCALED,
    **common,
    slow=slow,
    fast=fast,
    attention_factor=_attention_factor(fields, factor),
  )


def _pair(fields, less: str, more: str, defaults=(None, None)):
  """Returns two positive numbers, the first below the second."""
  low = fields.number(less, 1e-6, defaults[0])
  high = fields.number(more, 1e-6, defaults[1])
  if low >= high:
    raise fields.error(less, f'must be less than {more}={high:g}')
  return low, high


def _attention_factor(fields, factor: float) -> float:
  """Returns what multiplies yarn's cosines and sines."""
  names = 'mscale', 'mscale_all_dim'
  scales = [fields.number(name, 0.0, 0.0) for name in names]
  if fields.has('attention_factor'):
    return fields.number('attention_factor', 1e-6)
  fields.ignore(['attention_factor'])
  if not all(scales):
    scales = 1.0, 0.0
  above, below = (0.1 * scale * math.log(factor) + 1 for scale in scales)
  return above / below
