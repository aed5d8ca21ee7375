"""Makes a Kaiju student from a teacher's weights, for a run to begin with.

Uptraining (Ainslie et al. 2023) continues training with another model's weights
in a cheaper architecture; `interchange/surgery.py` changes the weights.
Training restores the lost quality, best on the teacher's own distributions
(`experiments.teach`).
"""

import dataclasses
import os
import pathlib
from typing import Any

from kaiju_jax.data import config as data_config
from kaiju_jax.model import config as model_config
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.quantization import config as quantization_config

# The config of a run that begins with the student, in its folder.
CONFIG = 'config.py'


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
    teacher: the teacher's config.
    layout: the layer tuple as in `ModelConfig.layout`; '' for six local layers
      per global one, keys and values shared by three local and two global ones.
    window: positions that a local layer sees, itself included.
    num_kv_heads: heads of keys and values; a divisor of the teacher's.
    int8: whether the student has the default quantization; otherwise none.
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
    # All layers of the teacher are global and have this rotary base.
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
    A message for the user about teacher and student, and the command of a run
    that begins with the student: the folder holds that run's config (`CONFIG`).

  Raises:
    OSError, ValueError: the teacher cannot be read, has local layers or shares
      keys and values, its weights do not fit the student, or the folder exists.
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
  # Only a run without a tokenizer is known to have read bytes.
  tokenizer = found.tokenizer or (None if found.experiment is None else '')
  if tokenizer == '' and config.vocab_size < tokens.BYTES:
    tokenizer = None
  own.write(
    out,
    params,
    config,
    tokenizer,
    masters=True,
    beside={CONFIG: _run(config, tokens.FILE if tokenizer else '')},
  )
  file = pathlib.Path(out) / CONFIG
  return '\n'.join(
    (
      f'{found.origin} → {out}',
      *_compare(found.config, config),
      'A run that begins with it:',
      f'  python -m experiments.train --config={file} --workdir=WORKDIR',
    )
  )


def _compare(teacher, student) -> list[str]:
  """Returns lines on the keys and values of teacher and student."""
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


def _run(config: model_config.ModelConfig, file: str) -> str:
  """Returns the text of the config of a run that begins with the student.

  Args:
    config: the student's config.
    file: its tokenizer's file in the same folder; '' for bytes.
  """
  tokenizer = f'str(FOLDER / {file!r})' if file else "''"
  length = min(data_config.DataConfig().length, config.max_length)
  return _RUN.format(
    imports='\n'.join(sorted(_imports(config))),
    model=_written(config, '    '),
    tokenizer=tokenizer,
    length=length,
  )


def _written(value: Any, indent: str) -> str:
  """Returns the Python expression of a config, with all fields by name."""
  if not dataclasses.is_dataclass(value):
    return repr(value)
  kind = type(value)
  lines = [
    f'{indent}  {field.name}='
    f'{_written(getattr(value, field.name), indent + "  ")},\n'
    for field in dataclasses.fields(value)
  ]
  name = f'{_alias(kind)}.{kind.__name__}'
  return f'{name}(\n{"".join(lines)}{indent})'


def _alias(kind: type) -> str:
  """Returns the name under which a config's module is imported."""
  *_, room, module = kind.__module__.split('.')
  return f'{room}_config' if module == 'config' else module


def _imports(value: Any) -> set[str]:
  """Returns the imports of `_written`, one line each."""
  if not dataclasses.is_dataclass(value):
    return set()
  kind = type(value)
  package, _, module = kind.__module__.rpartition('.')
  line = f'from {package} import {module}'
  if module != _alias(kind):
    line += f' as {_alias(kind)}'
  return {line}.union(
    *(
      _imports(getattr(value, field.name))
      for field in dataclasses.fields(value)
    )
  )


_RUN = '''"""A run that begins with the student in this folder.

    python -m experiments.train --config=THIS/config.py --workdir=WORKDIR \\
        --config.data.path=TEXT --config.loop.steps=STEPS

The model is the one that the weights are of. Text, steps and the rate are the
defaults: set them by flags, or in a copy of this file. To learn from the
teacher, name its store (`experiments.teach`) as well:

    --config.objective.name=distillation --config.data.teacher=STORE
"""

import pathlib

from kaiju_jax.data import config as data_config
{imports}
from kaiju_jax.training import experiment as experiment_lib

FOLDER = pathlib.Path(__file__).parent


def get_config(arm: str = '') -> experiment_lib.Experiment:
  """Returns the run's experiment; there are no arms."""
  if arm:
    raise ValueError(f'arm={{arm!r}}: this config has no arms.')
  return experiment_lib.Experiment(
    model={model},
    data=data_config.DataConfig(tokenizer={tokenizer}, length={length}),
    begin_with=str(FOLDER),
  )
'''
