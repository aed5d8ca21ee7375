"""Runs that take a second: texts, tiny models, experiments, workdirs."""

import json
import operator
import pathlib

import jax
import numpy as np

from kaiju_jax.data import config as data_config
from kaiju_jax.interchange import tokens
from kaiju_jax.model import config as model_config
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.training import checkpoint
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import optimizer
from kaiju_jax.training import state as state_lib
from kaiju_jax.training import workdir
from tests.interchange import toys


def write_texts(folder: pathlib.Path) -> pathlib.Path:
  """Writes small files of text, and returns their folder."""
  texts = folder / 'texts'
  texts.mkdir()
  for n in range(12):
    (texts / f'{n}.txt').write_text(f'{n} green bottles. ' * 60)
  return texts


def tiny_model(**fields) -> model_config.ModelConfig:
  """Returns a model of one local layer; `fields` replace its settings."""
  settings = {
    'layout': 'L0',
    'd_model': 16,
    'num_heads': 2,
    'head_dim': 8,
    'd_ff': 32,
    'max_length': 64,
    'window': 8,
  }
  return model_config.ModelConfig(**settings | fields)


def tiny_experiment(
  texts: pathlib.Path | str, steps: int = 4, **model
) -> experiment_lib.Experiment:
  """Returns an experiment on the texts, some of which are held out."""
  return experiment_lib.Experiment(
    model=tiny_model(**model),
    data=data_config.DataConfig(
      path=str(texts), length=32, batch=2, held_out=0.2, evaluated_rows=2
    ),
    optimizer=training_config.OptimizerConfig(learning_rate=1e-2),
    loop=training_config.LoopConfig(
      steps=steps, log_every=1, evaluate_every=0, checkpoint_every=4
    ),
  )


def tiny_chat_experiment(
  path: pathlib.Path | str, length: int, **model
) -> experiment_lib.Experiment:
  """Returns an experiment on conversations in bytes, in float32."""
  fields = {'d_model': 32, 'layout': 'G0', 'head_dim': 16, 'dtype': 'float32'}
  fields['quantization'] = quantization_config.QuantizationConfig(
    wire_gradients='float'
  )
  one = experiment_lib.Experiment(
    model=tiny_model(vocab_size=256, max_length=length, **fields | model)
  )
  one.data.task, one.data.path = 'conversations', str(path)
  one.data.length, one.data.batch, one.data.held_out = length, 2, 0.0
  return one


def change(experiment, fields: dict):
  """Sets fields by their paths, such as 'data.length'; returns it."""
  for name, value in fields.items():
    holder, _, last = name.rpartition('.')
    inner = operator.attrgetter(holder)(experiment) if holder else experiment
    setattr(inner, last, value)
  return experiment


def assert_equal(one, other):
  """Compares two trees of arrays bit for bit."""
  jax.tree.map(np.testing.assert_array_equal, one, other)


class NoBatches:
  """Batches that have no position."""

  def get_state(self):
    return {}

  def set_state(self, state):
    assert state == {}


def write_run(
  path: pathlib.Path, model: model_config.ModelConfig, moved: float = 1.0
) -> state_lib.TrainState:
  """Saves random parameters in a workdir; returns the state.

  They are `moved` times what the replica of ternary updates has, if any.
  """
  experiment = experiment_lib.Experiment(model=model)
  state = state_lib.create(
    toys.params_of(model),
    optimizer.make(experiment.optimizer),
    hook=state_lib.hook_of(experiment),
  )
  params = jax.tree.map(lambda x: moved * x, state.params)
  state = state.replace(params=params)
  with (
    workdir.open_workdir(path, experiment) as folder,
    checkpoint.Checkpoints(folder, 1) as checkpoints,
  ):
    checkpoints.save(7, state, NoBatches())
  return state


def write_tokenizer(path: pathlib.Path) -> str:
  """Writes a tokenizer whose tokens are not bytes, though as many."""
  tokens.write(path, '', toys.PLAIN)
  fields = json.loads((path / tokens.FILE).read_text())
  vocabulary = fields['model']['vocab']
  one, other = list(vocabulary)[65:67]
  vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
  (path / tokens.FILE).write_text(json.dumps(fields))
  return str(path / tokens.FILE)
