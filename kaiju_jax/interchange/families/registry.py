"""Picks the family of a config.json by its model_type."""

from collections.abc import Collection
from collections.abc import Mapping
from typing import Any

from kaiju_jax.interchange import fields as fields_lib
from kaiju_jax.interchange.families import arcee
from kaiju_jax.interchange.families import family as family_lib
from kaiju_jax.interchange.families import gemma3
from kaiju_jax.interchange.families import llama
from kaiju_jax.interchange.families import mistral
from kaiju_jax.interchange.families import olmo
from kaiju_jax.interchange.families import qwen
from kaiju_jax.interchange.families import smollm3

FAMILIES = (
  arcee.FAMILY,
  gemma3.FAMILY,
  llama.FAMILY,
  mistral.FAMILY,
  olmo.OLMO2,
  olmo.OLMO3,
  qwen.QWEN2,
  qwen.QWEN3,
  smollm3.FAMILY,
)


def model_types() -> dict[str, family_lib.Family]:
  """Returns {model_type: its family}, sorted."""
  found = {
    name: family
    for family in FAMILIES
    for name in (*family.model_types, *family.wrappings)
  }
  return dict(sorted(found.items()))


def read(
  found: Mapping[str, Any], accepted: Collection[str] = ()
) -> family_lib.Reading:
  """Reads a config.json.

  Args:
    found: the parsed JSON.
    accepted: unknown fields that the caller lets pass, by dotted name.

  Raises:
    ValueError: names the field, its value and what would be right.
  """
  fields = fields_lib.Fields(found, accepted=accepted)
  families = model_types()
  kind = fields.take('model_type')
  if not isinstance(kind, str) or kind not in families:
    raise fields.error(
      'model_type', f'cannot be read; can: {", ".join(families)}'
    )
  _refuse(fields)
  family = families[kind]
  if kind in family.wrappings:
    return family_lib.read(family, _unwrap(family, kind, fields))
  fields = fields_lib.Fields(found, family.defaults, accepted)
  return family_lib.read(family, fields)


def _refuse(fields: fields_lib.Fields) -> None:
  """Refuses weights that are not plain floats, and code."""
  if fields.has('quantization_config'):
    settings = fields.take('quantization_config')
    method = settings.get('quant_method') if isinstance(settings, dict) else ''
    raise ValueError(
      f'quantization_config.quant_method={method!r}: must be absent; weights'
      ' must be bf16, f16 or f32.'
    )
  if fields.has('auto_map'):
    raise fields.error(
      'auto_map',
      'must be absent: this folder brings code of its own, which is never run',
    )


def _unwrap(
  family: family_lib.Family, kind: str, outer: fields_lib.Fields
) -> fields_lib.Fields:
  """Returns the fields of the language model in a larger model's file."""
  wrapping = family.wrappings[kind]
  defaults = dict(family.defaults)
  if outer.has('tie_word_embeddings'):
    defaults['tie_word_embeddings'] = outer.flag('tie_word_embeddings')
  inner = outer.descend(wrapping.name, defaults)
  tied = inner.flag('tie_word_embeddings')
  if tied != defaults['tie_word_embeddings'] and outer.has(
    'tie_word_embeddings'
  ):
    raise outer.error(
      'tie_word_embeddings', f'must be {tied}, as in {wrapping.name}'
    )
  if inner.take('model_type') not in (None, *family.model_types):
    raise inner.error('model_type', f'must be {family.model_types[0]!r}')
  family_lib.ignore_shared(outer)
  outer.ignore(wrapping.ignored)
  outer.finish()
  return inner
