"""A run that takes a second: text, and an experiment on it."""

import pathlib

from kaiju_jax.data import config as data_config
from kaiju_jax.model import config as model_config
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib


def write_texts(folder: pathlib.Path) -> pathlib.Path:
  """Writes small files of text, and returns their folder."""
  texts = folder / 'texts'
  texts.mkdir()
  for n in range(12):
    (texts / f'{n}.txt').write_text(f'{n} green bottles. ' * 60)
  return texts


def experiment(texts: pathlib.Path, steps: int = 4):
  """Returns an experiment on the texts, some of which are held out."""
  return experiment_lib.Experiment(
    model=model_config.ModelConfig(
      layout='L0',
      d_model=16,
      num_heads=2,
      head_dim=8,
      d_ff=32,
      max_length=64,
      window=8,
    ),
    data=data_config.DataConfig(
      path=str(texts), length=32, batch=2, held_out=0.2, evaluated_rows=2
    ),
    optimizer=training_config.OptimizerConfig(learning_rate=1e-2),
    loop=training_config.LoopConfig(
      steps=steps, log_every=1, evaluate_every=0, checkpoint_every=4
    ),
  )
