"""Does a model that a laptop trains in minutes answer as a character?

7 layers with windows of 256 and one global, 2.1 M parameters, int8, a
vocabulary of 1,536 tokens, on invented dialogues (`data/dialogues/`). It is
what `make chat TRAIN=1` trains:

    python -m experiments.serve --chat --train --model=runs/chat

which trains the tokenizer first; `experiments.train` with this config needs it
to be there.

The first layer shares keys with none, because shared ones keep a model from
copying (results/induction.md), and a reply copies from the character's text.
The copying heads are suggested to it (`init='induction'`), and its first rows
are repetitions, from which it learns to use them
(`tasks/dialogues/repetitions.py`). The global layer has no rotary
positions, so that it may read beyond the 512 tokens that it was trained on.

Two rows make a step, so that each of two cores computes one. They are short,
because more steps of fewer tokens teach as many facts in less time.

Device:   2 cores of a CPU
Minutes:  3
Result:   of facts in its character's text it tells 70 %, asked in new words
          57 %; runs differ much (experiments/results/chat.md)
"""

from kaiju_jax.data import config as data_config
from kaiju_jax.model import config as model_config
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib

VOCABULARY = 1536


def get_config(
  arm: str = 'kaiju', root: str = 'runs/chat'
) -> experiment_lib.Experiment:
  """Returns the experiment.

  Args:
    arm: 'kaiju', the only one.
    root: folder of the run, which holds the tokenizer.

  Raises:
    ValueError: another arm.
  """
  if arm != 'kaiju':
    raise ValueError(f'arm={arm!r}: must be kaiju.')
  return experiment_lib.Experiment(
    model=model_config.ModelConfig(
      vocab_size=VOCABULARY,
      d_model=160,
      layout='L0 L1 L1 L1 L4 L4 G6',
      num_heads=5,
      head_dim=32,
      d_ff=640,
      max_length=2048,
      window=256,
      rope_global=0.0,
      dtype='float32',
      # One device has no wire.
      quantization=quantization_config.QuantizationConfig(
        wire_gradients='float'
      ),
    ),
    data=data_config.DataConfig(
      task='dialogues',
      tokenizer=f'{root}/tokenizer.json',
      length=512,
      batch=2,
      held_out=0.0,
    ),
    optimizer=training_config.OptimizerConfig(learning_rate=3.5e-3),
    loop=training_config.LoopConfig(steps=770, checkpoint_every=154),
    init='induction',
  )
