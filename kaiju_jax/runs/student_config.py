"""Writes the config of a run that begins with a student, as Python's text."""

import dataclasses
from typing import Any

from kaiju_jax.data import config as data_config
from kaiju_jax.model import config as model_config
from kaiju_jax.objectives import config as objective_config


def write(
  config: model_config.ModelConfig,
  file: str,
  text: str = '',
  alignment: objective_config.AttentionAlignment | None = None,
  chats: bool = False,
) -> str:
  """Returns the text of the config of a run that begins with the student.

  Args:
    config: the student's config.
    file: its tokenizer's file in the same folder; '' for bytes.
    text: path of the run's text; '' for the default.
    alignment: the teacher of the arm 'align'.
    chats: whether the folder has the chat template of the teacher.
  """
  alignment = alignment or objective_config.AttentionAlignment()
  tokenizer = f'str(FOLDER / {file!r})' if file else "''"
  length = min(data_config.DataConfig().length, config.max_length)
  return _RUN.format(
    imports='\n'.join(sorted(_imports(config) | _imports(alignment))),
    model=_written(config, '    '),
    alignment=_written(alignment, '      '),
    tokenizer=tokenizer,
    length=length,
    path=text,
    chats='str(FOLDER)' if chats else "''",
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

The arm align (`--config=THIS/config.py:align`) comes before, on few tokens:
each layer's attention learns to do as the teacher's does. The next run begins
with it:

    --config.begin_with=ITS_WORKDIR
"""

import pathlib

from kaiju_jax.data import config as data_config
{imports}
from kaiju_jax.training import experiment as experiment_lib

FOLDER = pathlib.Path(__file__).parent


def get_config(arm: str = '') -> experiment_lib.Experiment:
  """Returns the run's experiment, or that of the arm 'align'."""
  if arm not in ('', 'align'):
    raise ValueError(f"arm={{arm!r}}: must be 'align', or none.")
  experiment = experiment_lib.Experiment(
    model={model},
    data=data_config.DataConfig(
      path={path!r},
      tokenizer={tokenizer},
      chat_template={chats},
      length={length},
    ),
    begin_with=str(FOLDER),
  )
  if arm:
    experiment.objective = objectives_config.ObjectiveConfig(
      name='attention_alignment',
      attention_alignment={alignment},
    )
  return experiment
'''
