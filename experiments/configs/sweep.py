"""What does the best learning rate, batch and size look like on a laptop?

Two layers (a local and a global one with keys of its own), bytes, on the prose
and code of the Python installation at hand. It is small enough that a grid of
fifty runs ends in minutes; `experiments.rates` and `experiments.scaling` change
its width, and the arm `batch` is the run that `experiments.critical_batch`
branches off.

    python -m experiments.rates
    python -m experiments.scaling
    python -m experiments.train --config=sweep:batch \\
      --workdir=runs/batch/base
    python -m experiments.critical_batch --model=runs/batch/base --at=.1,.3

Device:   2 cores of a CPU
Minutes:  experiments/results/schedules.md
Result:   experiments/results/schedules.md
"""

from kaiju_jax.data import config as data_config
from kaiju_jax.model import config as model_config
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib

ARMS = ('float', 'int8', 'batch')


def get_config(arm: str = 'float') -> experiment_lib.Experiment:
  """Returns an arm's experiment.

  Args:
    arm: 'float' without int8, clamping or Bungee; 'int8' with them; 'batch' is
      'float' with a small batch, at a constant rate until it decays, and keeps
      a checkpoint of each twentieth of the run.

  Raises:
    ValueError: no such arm.
  """
  experiment_lib.check_arm(arm, ARMS)
  experiment = experiment_lib.Experiment(
    model=model_config.ModelConfig(
      layout='L0 G1',
      d_model=64,
      num_heads=4,
      head_dim=16,
      d_ff=256,
      max_length=64,
      window=32,
      dtype='float32',
    ),
    data=data_config.DataConfig(length=64, batch=8, evaluated_rows=512),
    optimizer=training_config.OptimizerConfig(learning_rate=8e-3, warmup=0.05),
    loop=training_config.LoopConfig(
      tokens=200 * 512, log_every=50, checkpoint_every=10_000
    ),
  )
  if arm != 'int8':
    experiment.model.quantization = quantization_config.none()
  if arm == 'batch':
    experiment.data.batch = 2
    experiment.optimizer.schedule = 'wsd'
    experiment.optimizer.learning_rate = 8e-3
    experiment.loop.tokens = 4_000 * 128
    experiment.loop.checkpoint_every = 200
    experiment.loop.checkpoints_kept = 20
  return experiment
