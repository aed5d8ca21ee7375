"""Fine-tunes a trained model on conversations: its replies, and their ends.

    python -m experiments.train --config=sft:runs/chat \\
        --config.data.path=chats.jsonl --workdir=runs/sft

The arm is the workdir of the model to begin with; its model, tokenizer and
chat template are taken from there. Lines of conversations are those of
`kaiju_jax/data/conversations.py`. Only the assistant's replies and the tokens
that end them are learnt.

Result:   experiments/results/alignment.md
"""

import dataclasses

from kaiju_jax.data import config as data_config
from kaiju_jax.runs import load
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import workdir as workdir_lib


def get_config(arm: str = 'runs/chat') -> experiment_lib.Experiment:
  """Returns the experiment.

  Args:
    arm: workdir of the model to begin with.

  Raises:
    OSError, ValueError: there is no run.
  """
  before = workdir_lib.load_experiment(arm)
  return experiment_lib.Experiment(
    model=before.model,
    data=data_config.DataConfig(
      task='conversations',
      path='chats.jsonl',
      tokenizer=load.tokenizer_of(arm, before.data.tokenizer),
      chat_template=before.data.chat_template,
      length=min(1024, before.model.max_length),
      batch=2,
    ),
    optimizer=dataclasses.replace(before.optimizer, learning_rate=1e-3),
    loop=training_config.LoopConfig(
      steps=300, evaluate_every=100, checkpoint_every=100
    ),
    begin_with=arm,
  )
