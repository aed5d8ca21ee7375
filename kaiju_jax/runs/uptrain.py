"""From a teacher to a Kaiju student that training begins with.

Uptraining (Ainslie et al. 2023) goes on with another model's weights in a
cheaper architecture, instead of starting anew: `interchange/surgery.py` says
how the weights change. What is lost comes back by training, best after the
teacher's own distributions (`experiments.teach`).
"""

import dataclasses
import os

from kaiju_jax.model import config as model_config
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.quantization import config as quantization_config


def student_of(
  teacher: model_config.ModelConfig,
  *,
  layout: str = '',
  window: int = 128,
  num_kv_heads: int = 1,
  int8: bool = True,
) -> model_config.ModelConfig:
  """Returns the student's config: the teacher's sizes in Kaiju's layers.

  Args:
    teacher: the teacher's.
    layout: the layer tuple as `ModelConfig.layout`; '' for six local layers to
      a global one, keys and values shared by three local and two global ones.
    window: positions that a local layer sees, itself included.
    num_kv_heads: heads of keys and values; a divisor of the teacher's.
    int8: whether all that can be int8 is; otherwise nothing is.
  """
  depth = len(teacher.layers())
  default = model_config.ModelConfig()
  quantization = quantization_config.none()
  if int8:
    quantization = quantization_config.QuantizationConfig()
  return dataclasses.replace(
    teacher,
    num_layers=depth,
    layout=layout,
    window=window,
    period=default.period,
    local_share=default.local_share,
    global_share=default.global_share,
    # All layers of the teacher turn as its global ones.
    rope_local=teacher.rope_global,
    num_kv_heads=num_kv_heads,
    unroll=1,
    quantization=quantization,
  )


def write(
  teacher: str | os.PathLike,
  out: str | os.PathLike,
  *,
  layout: str = '',
  window: int = 128,
  num_kv_heads: int = 1,
  int8: bool = True,
  owners: str = 'mean',
) -> str:
  """Writes a student as a new folder in our own format, with float32 masters.

  Args:
    teacher: the teacher's workdir, export, or Hugging Face folder.
    out: the new folder.
    layout: see `student_of`.
    window: see `student_of`.
    num_kv_heads: see `student_of`.
    int8: see `student_of`.
    owners: one of `surgery.OWNERS`.

  Returns:
    What was made of what, for the user, and the flags that give the model of
    a training run the student's shape.

  Raises:
    OSError, ValueError: the teacher cannot be read, has local layers or shares
      keys and values, or the student is no version of it; the folder exists.
  """
  from kaiju_jax.interchange import own
  from kaiju_jax.interchange import plain
  from kaiju_jax.interchange import surgery
  from kaiju_jax.interchange import tokens
  from kaiju_jax.runs import load

  found = load.from_anywhere(teacher)
  config = student_of(
    found.config,
    layout=layout,
    window=window,
    num_kv_heads=num_kv_heads,
    int8=int8,
  )
  surgery.check(found.config, config)
  weights = plain.weights(found.params, found.config, found.replica)
  params = surgery.student(weights, config, owners)
  # Only of a run it is known that its text was bytes.
  tokenizer = found.tokenizer or (None if found.experiment is None else '')
  if tokenizer == '' and config.vocab_size < tokens.BYTES:
    tokenizer = None
  own.write(out, params, config, tokenizer, masters=True)
  return '\n'.join(
    (
      f'{found.origin} → {out}',
      *_compared(found.config, config),
      'A run that begins with it:',
      f'  --config.begin_with={out} \\',
      *_flags(config),
    )
  )


def _compared(teacher, student) -> list[str]:
  """Returns lines on keys and values before and after."""
  length = student.max_length
  rows = []
  for name, config in ('teacher', teacher), ('student', student):
    heads = config.num_kv_heads
    rows.append(
      f'  {name}: {layers_lib.draw(config.layers())};'
      f' {heads} head{"" if heads == 1 else "s"} of keys and values,'
      f' {kv_bytes(config, length):,.0f} bytes per token at'
      f' {length:,} tokens'
    )
  return rows


def kv_bytes(config: model_config.ModelConfig, length: int) -> float:
  """Returns a model's bytes of keys and values per token of `length`."""
  from kaiju_jax.costs import footprint

  return footprint.kv_caches(config, length)[0].per_token


def _flags(config: model_config.ModelConfig) -> list[str]:
  """Returns a run's flags for all of a model's fields, a line each."""
  fields = dataclasses.asdict(config)
  nested = fields.pop('quantization')
  nested.pop('ternary')
  values = {
    **fields,
    **{f'quantization.{name}': value for name, value in nested.items()},
  }
  lines = [
    f'  --config.model.{name}={_shown(value)}' for name, value in values.items()
  ]
  return [f'{line} \\' for line in lines[:-1]] + lines[-1:]


def _shown(value) -> str:
  text = str(value)
  return f"'{text}'" if ' ' in text else text
