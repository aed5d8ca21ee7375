"""Do attention sinks, or learned sink logits, help a model made of windows?

A model that was trained without windows loses much where they drop its first
tokens (`experiments/results/smollm2.md`). These are trained with windows from
the start: seven layers, bytes, on the Python installation's prose and code, a
window in every layer.

    full       no window
    w16, w64   windows of 16 and of 64
      _1, _4   and one, or four, sinks
      _logit   and a learned sink logit per head instead

    python -m experiments.ablate --config=sinks --out=runs/sinks \\
      --seeds=0,1,2 --jobs=2 --config.loop.steps=200
    python -m experiments.needle --seeds=0,1,2 --out=runs/sinks_needle \\
      --arms=interleaved,interleaved_sink1,interleaved_sink4,interleaved_logit

Device:   one shared core of a CPU
Minutes:  about one of processor time per run
Result:   experiments/results/smollm2.md
"""

from kaiju_jax.experiments.configs import ablation
from kaiju_jax.training import experiment as experiment_lib

_SINKS = {
  '': {},
  '_1': {'sinks': 1},
  '_4': {'sinks': 4},
  '_logit': {'sink_logit': True},
}
_WINDOWS = 'w16', 'w64'
# Each arm's baseline has its window and nothing beside.
ARMS = {'full': 'full'} | {
  f'{window}{name}': window for window in _WINDOWS for name in _SINKS
}


def get_config(arm: str = 'w64_4') -> experiment_lib.Experiment:
  """Returns an arm's experiment.

  Args:
    arm: one of ARMS.

  Raises:
    ValueError: no such arm.
  """
  experiment_lib.check_arm(arm, ARMS)
  experiment = ablation.get_config('bf16')
  model = experiment.model
  model.local_share = model.global_share = 1
  model.period = 1 if arm == 'full' else 0
  window, separator, name = arm.partition('_')
  if arm != 'full':
    model.window = int(window[1:])
  for field, value in _SINKS[separator + name].items():
    setattr(model, field, value)
  return experiment
