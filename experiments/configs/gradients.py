"""What do six bits per gradient cost in loss, over eight workers?

`tiny` on eight data-parallel workers (rows of 256, one row each), its gradients
reduced in bf16, in Squinch and, as contrasts, rounded to int4 in blocks of 32
along D or of 256 in memory's order. Weights cross as int8 in every arm.

Command:  XLA_FLAGS=--xla_force_host_platform_device_count=8 \\
            python -m experiments.ablate --fsdp=8 --seeds=0,1,2 --jobs=2 \\
            --config=gradients --baseline=bf16 \\
            --arms=bf16,squinch,int4,int4_flat --out=runs/gradients \\
            --config.loop.log_every=1
Device:   4 shared cores of a CPU that had much other work
Minutes:  6 to 13 per run, two or three at a time
Result:   training loss of the last 100 steps against bf16: Squinch −0.02 %
          (−0.10 … +0.07), int4 along D +0.00 % (−0.09 … +0.10); int4 as memory
          has it, on five seeds, +1.23 % (+0.68 … +1.78). `squinch_floor` and
          `squinch_fitted` were not run.
"""

from kaiju_jax.experiments.configs import tiny
from kaiju_jax.training import experiment as experiment_lib

ARMS = (
  'bf16',
  'squinch',
  'int4',
  'int4_flat',
  'squinch_floor',
  'squinch_fitted',
)


def get_config(arm: str = 'squinch') -> experiment_lib.Experiment:
  """Returns an arm's experiment.

  Args:
    arm: one of ARMS; what a gradient crosses the wire as.

  Raises:
    ValueError: no such arm.
  """
  experiment_lib.check_arm(arm, ARMS)
  experiment = tiny.get_config()
  experiment.model.quantization.wire_gradients = (
    'float' if arm == 'bf16' else arm
  )
  experiment.data.length = 256
  experiment.data.batch = 8
  experiment.loop.steps = 500
  experiment.loop.evaluate_every = 500
  experiment.loop.checkpoint_every = 500
  return experiment
