"""Files of labelled spans, and an experiment that reads one."""

import json

from kaiju_jax.data import config as data_config
from kaiju_jax.model import config as model_config
from kaiju_jax.objectives import config as objective_config
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib

NAMES = 'one', 'two'


WORDS = 'the', 'old', 'knight', 'sang'


def write(path, count=40, marked=(2, 4)):
  """Writes texts; each `marked`-th one has 'zorb' or 'quam' behind a word."""
  lines = []
  for number in range(count):
    text, found = WORDS[number % 4] + ' ', []
    for name, word, every in zip(NAMES, ('zorb', 'quam'), marked):
      if number % every == 0:
        end = len(text) + len(word)
        found.append({'start': len(text), 'end': end, 'dimension': name})
        text += word + ' '
    lines.append(json.dumps({'text': f'{text}{number}', 'spans': found}))
  path.write_text('\n'.join(lines))
  return str(path)


def experiment_of(path, **changes):
  head = objective_config.TokenHeadTraining(NAMES, frozen=True)
  one = experiment_lib.Experiment(
    model=model_config.ModelConfig(
      vocab_size=256, d_model=16, num_layers=1, num_heads=1, head_dim=16,
      d_ff=16, max_length=64, window=8, dtype='float32',
      quantization=quantization_config.none(),
    ),
    data=data_config.DataConfig(
      task='spans', path=path, length=32, batch=2, held_out=0.3,
      evaluated_rows=4, **changes,
    ),
    objective=objective_config.ObjectiveConfig('token_head', head),
    optimizer=training_config.OptimizerConfig(learning_rate=0.1),
    loop=training_config.LoopConfig(
      steps=4, checkpoint_every=2
    ),
  )  # fmt: skip
  return one
