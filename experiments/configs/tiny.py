"""Does a small Kaiju model learn real text with every technique on?

14 layers (6:1, keys and values shared in threes, global ones in pairs), 2.37 M
parameters, bytes, on the prose and code of the Python installation at hand.

    python -m experiments.train --config=tiny \\
      --workdir=runs/tiny

And does int8 cost loss against bf16?

    python -m experiments.ablate --config=tiny \\
      --arms=int8,bf16 --baseline=bf16 --seeds=0,1,2 --jobs=3 --out=runs/tiny \\
      --config.loop.log_every=1

Device:   4 shared cores of a CPU, three runs at a time
Minutes:  not noted
Result:   training loss of the last 100 steps 1.3510 in int8, 1.3502 in bf16:
          +0.06 % (−0.21 … +0.33 %, 95 %, paired by seed); held-out bits per
          byte 2.1287 and 2.1234. A byte-unigram model needs 4.54.
"""

from kaiju_jax.data import config as data_config
from kaiju_jax.model import config as model_config
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib

ARMS = ('int8', 'bf16', 'f32')


def get_config(arm: str = 'int8') -> experiment_lib.Experiment:
  """Returns an arm's experiment.

  Args:
    arm: 'int8' with every technique on; 'bf16' and 'f32' are the same model
      without int8, clamping or Bungee.

  Raises:
    ValueError: no such arm.
  """
  experiment_lib.check_arm(arm, ARMS)
  experiment = experiment_lib.Experiment(
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
