"""Fine-tunes a trained model on conversations: its replies, and their ends.

    python -m experiments.train --config=sft:runs/chat \\
        --config.data.path=chats.jsonl --workdir=runs/sft
    python -m experiments.train --config=sft:open/llama --config.lora.rank=8 \\
        --config.data.path=chats.jsonl --workdir=runs/adapters

The arm is the model to begin with: a workdir, an export with float weights, or
a Hugging Face folder. Its model, tokenizer and chat template are taken from
there. Lines of conversations are those of `kaiju_jax/data/conversations.py`.
Only the assistant's replies and the tokens that end them are learnt.

Result:   experiments/results/alignment.md
"""

import dataclasses

from kaiju_jax.data import config as data_config
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib


def get_config(arm: str = 'runs/chat') -> experiment_lib.Experiment:
  """Returns the experiment.

  Args:
    arm: the model to begin with.

  Raises:
    OSError, ValueError: there is no such model.
  """
  from kaiju_jax.runs import load

  before = load.describe(arm)
  optimizer = training_config.for_others(1e-4)  # Our guess.
  if before.experiment is not None:
    optimizer = dataclasses.replace(
      before.experiment.optimizer, learning_rate=1e-3
    )
  return experiment_lib.Experiment(
    model=before.config,
    data=data_config.DataConfig(
      task='conversations',
      path='chats.jsonl',
      tokenizer=before.tokenizer,
      chat_template=before.chats,
      length=min(1024, before.config.max_length),
      batch=2,
    ),
    optimizer=optimizer,
    loop=training_config.LoopConfig(
      steps=300, evaluate_every=100, checkpoint_every=100
    ),
    begin_with=arm,
  )
