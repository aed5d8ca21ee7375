"""Does a small Kaiju model learn real text with every technique on?

14 layers (6:1, keys and values shared in threes, global ones in pairs), 1.9 M
parameters, bytes, on the prose and code of the Python installation at hand.

Command:  python -m experiments.train --config=experiments/configs/tiny.py \\
            --workdir=runs/tiny
"""

from kaiju_jax import config as config_lib
from kaiju_jax.data import config as data_config
from kaiju_jax.model import config as model_config
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.training import config as training_config

ARMS = ('int8', 'bf16', 'f32')


def get_config(arm: str = 'int8') -> config_lib.Experiment:
  """Returns an arm's experiment.

  Args:
    arm: 'int8' with every technique on; 'bf16' and 'f32' are the same model
      without int8, clamping or Bungee.

  Raises:
    ValueError: no such arm.
  """
  if arm not in ARMS:
    raise ValueError(f'arm={arm!r}: must be one of {", ".join(ARMS)}.')
  experiment = config_lib.Experiment(
    model=model_config.ModelConfig(
      vocab_size=256,
      d_model=128,
      num_layers=14,
      num_heads=4,
      head_dim=32,
      d_ff=512,
      max_length=512,
      window=64,
      quantization=quantization_config.QuantizationConfig(bungee=True),
    ),
    data=data_config.DataConfig(length=512, batch=4),
    optimizer=training_config.OptimizerConfig(learning_rate=2e-3),
    loop=training_config.LoopConfig(
      steps=800, evaluate_every=400, checkpoint_every=400
    ),
  )
  if arm != 'int8':
    experiment.model.quantization = quantization_config.none()
  if arm == 'f32':
    experiment.model.dtype = 'float32'
  return experiment
