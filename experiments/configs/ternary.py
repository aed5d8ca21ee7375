"""Does a model train as well when its replicas follow by ternary updates?

A small Kaiju model on the text of `tiny`, Bungee on, on eight data-parallel
workers, one row each. Gradients cross in Squinch in all arms, which differ in
the int8 weights that the forward pass reads:

    int8           made from the masters and gathered, each channel's largest
                   weight on code 127
    ternary        replicas that follow by −1, 0 or 1; no grid finer than what
                   never lags at the peak rate
    ternary_fine   the same with grids as fine as their channels', which may lag

Command:  XLA_FLAGS=--xla_force_host_platform_device_count=8 \\
            python -m experiments.ablate --fsdp=8 --seeds=0,1,2 \\
            --arms=int8,ternary --config=ternary \\
            --out=runs/ternary --config.loop.log_every=1
Device:   4 shared cores of a CPU that had much other work
Minutes:  1.5 to 2 per run
Result:   ternary against int8, three seeds: training loss of the last 100 steps
          +0.01 % (−0.05 … +0.07), held-out bits per byte +0.00 % (−0.09 …
          +0.09). `ternary_fine` was not run.
"""

from kaiju_jax.experiments.configs import tiny
from kaiju_jax.training import experiment as experiment_lib

ARMS = ('int8', 'ternary', 'ternary_fine')


def get_config(arm: str = 'ternary') -> experiment_lib.Experiment:
  """Returns an arm's experiment.

  Args:
    arm: one of ARMS; which int8 weights the forward pass reads.

  Raises:
    ValueError: no such arm.
  """
  experiment_lib.check_arm(arm, ARMS)
  experiment = tiny.get_config()
  model = experiment.model
  model.d_model = 64
  model.num_layers = 7
  model.head_dim = 16
  model.d_ff = 256
  model.max_length = 128
  model.window = 32
  if arm != 'int8':
    model.quantization.wire_weights = 'ternary'
  if arm == 'ternary_fine':
    model.quantization.ternary.least_scale = 1e-9
  experiment.data.length = 128
  experiment.data.batch = 8
  experiment.loop.steps = 400
  experiment.loop.evaluate_every = 400
  experiment.loop.checkpoint_every = 400
  return experiment
