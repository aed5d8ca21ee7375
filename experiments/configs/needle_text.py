"""Does Kaiju's attention find a number hidden in natural text?

"The magic number for London is 48213." The four arms of `needle.py` at a size
for one GPU (14 layers, d 256, window 128, context 2,048, bytes). They are
trained on text with such sentences in it, and asked for numbers in held-out
text. The haystack is any folder of text, or the text in the Python
installation.

    python -m experiments.needle --task=needle_text --data=FOLDER

Device:   one GPU
Minutes:  not measured
Result:   not measured

The same at toy size on a CPU, which shows that everything runs; it is too small
and too short to find anything:

    python -m experiments.needle --task=needle_text --questions=2 \\
      --arms=full_toy,interleaved_toy,kaiju_toy,local_toy
"""

from kaiju_jax.data import config as data_config
from kaiju_jax.experiments.configs import needle
from kaiju_jax.model import config as model_config
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib

ARMS = needle.ARMS
VARIANTS = tuple(
  f'{arm}_{variant}' for variant in ('standard', 'toy') for arm in ARMS
)


def get_config(arm: str = 'kaiju') -> experiment_lib.Experiment:
  """Returns an arm's experiment.

  Args:
    arm: one of ARMS or VARIANTS; `_standard` is the standard initialization,
      `_toy` a size for CPUs.

  Raises:
    ValueError: no such arm; the message lists them.
  """
  if arm not in ARMS + VARIANTS:
    raise ValueError(
      f'arm={arm!r}: must be one of {", ".join(ARMS + VARIANTS)}.'
    )
  base, _, variant = arm.partition('_')
  experiment = experiment_lib.Experiment(
    model=model_config.ModelConfig(
      vocab_size=256,
      d_model=256,
      num_layers=14,
      num_heads=4,
      head_dim=64,
      d_ff=1024,
      max_length=4096,
      window=128,
      dtype='bfloat16',
    ),
    data=data_config.DataConfig(task='needle_text', length=2048, batch=32),
    optimizer=training_config.OptimizerConfig(learning_rate=1e-3),
    loop=training_config.LoopConfig(steps=3000, checkpoint_every=500),
    init='standard' if variant == 'standard' else 'induction',
  )
  needle.dress(experiment, base)
  if variant == 'toy':
    _shrink(experiment)
  return experiment


def _shrink(experiment: experiment_lib.Experiment) -> None:
  model = experiment.model
  model.d_model, model.num_layers, model.d_ff = 64, 7, 128
  model.head_dim = model.window = 32
  model.max_length, model.dtype = 1280, 'float32'
  experiment.data.length, experiment.data.batch = 640, 2
  experiment.loop.steps = experiment.loop.checkpoint_every = 20
