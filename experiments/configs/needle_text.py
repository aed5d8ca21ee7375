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

from kaiju_jax.experiments.configs import needle
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
  experiment_lib.check_arm(arm, ARMS + VARIANTS)
  base, _, variant = arm.partition('_')
  experiment = needle.get_config(base)
  model, data, loop = experiment.model, experiment.data, experiment.loop
  model.d_model, model.num_layers, model.d_ff = 256, 14, 1024
  model.window, model.max_length, model.dtype = 128, 4096, 'bfloat16'
  data.task, data.length, data.batch = 'needle_text', 2048, 32
  loop.steps, loop.checkpoint_every = 3000, 500
  if variant == 'standard':
    experiment.init = 'standard'
  elif variant == 'toy':
    _shrink(experiment)
  return experiment


def _shrink(experiment: experiment_lib.Experiment) -> None:
  model = experiment.model
  model.d_model, model.num_layers, model.d_ff = 64, 7, 128
  model.head_dim = model.window = 32
  model.max_length, model.dtype = 1280, 'float32'
  experiment.data.length, experiment.data.batch = 640, 2
  experiment.loop.steps = experiment.loop.checkpoint_every = 20
