"""Teaches a model to prefer the replies that users kept to those they swiped.

    python -m experiments.align --model=runs/sft --data=swipes.jsonl \\
        --reference=reference.npz
    python -m experiments.train --config=preference:runs/sft \\
        --config.data.path=swipes.jsonl --config.data.reference=reference.npz \\
        --workdir=runs/preference

The arm is the model to begin with, which is the reference, too; see `sft.py`.
`--config.objective.preference.loss=options` needs no reference.

Result:   experiments/results/alignment.md
"""

from kaiju_jax.experiments.configs import sft
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib


def get_config(arm: str = 'runs/sft') -> experiment_lib.Experiment:
  """Returns the experiment.

  Args:
    arm: the model to begin with.

  Raises:
    OSError, ValueError: there is no such model.
  """
  return _prefer(sft.get_config(arm))


def get_adapters(
  lora: training_config.LoraConfig, dtype: str
) -> experiment_lib.Experiment:
  """Returns the training of adapters, of any model.

  Args:
    lora: the adapters.
    dtype: of the activations; all else of the model is that of `begin_with`.
  """
  experiment = experiment_lib.Experiment(lora=lora)
  experiment.model.dtype = dtype
  experiment.data.length = 1024
  return _prefer(experiment)


def _prefer(
  experiment: experiment_lib.Experiment,
) -> experiment_lib.Experiment:
  experiment.data.task = 'choices'
  experiment.data.path = 'swipes.jsonl'
  experiment.data.reference = 'reference.npz'
  experiment.objective.name = 'preference'
  experiment.optimizer.learning_rate = 1e-4
  return experiment
