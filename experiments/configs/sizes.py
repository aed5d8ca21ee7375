"""How well do Kaiju models of full size learn, each on a slice that holds it?

The named shapes of `kaiju_jax/model/presets.py` with every technique on, on
text that you bring:

    python -m experiments.train --config=sizes:13b \\
      --accelerator=h100_64 --multihost --workdir=/runs/13b \\
      --config.data.path=/runs/text --config.data.tokenizer=/runs/tokenizer.json

    arm          rows per microbatch slices that its rows divide over
    250m, 1b     64 of 4,096         h100_8
    3b           64 of 4,096         h100_8, v5p_128, v5e_256
    13b          64 of 8,192         h100_64, v5p_256, v6e_256
    34b          32 of 8,192         h100_128, v5p_512
    110b         64 of 8,192         h100_512, v5p_1024; with
                                     --config.data.batch=512
                                     --config.data.microbatches=1, h100_4096

Without `data.path` a run reads the prose and code of the Python installation,
over and over: enough to see that it starts. The three largest have a
vocabulary of 65,536 and need the `tokenizer.json` of at most so many tokens
that `data.tokenizer` names; the others read bytes.

A run has 20 tokens per parameter, peak rates fall as widths rise, and a step
has 0.26 to 4.2 M tokens: all our guess, as the shapes are.

Device:   none yet, except a CPU that is too small
Minutes:  not measured
Result:   not run to any end. That its commands work is seen on 4 shared cores:
          250m at full width, four steps of 2 × 512 tokens (about 100 tokens
          per second), evaluated and saved; 13b with its 42 layers, microbatches
          and a tokenizer, but narrow, six steps on --fsdp=4 --tensor=2. That
          rows and shapes divide over the slices above is tested. They fit, as
          compiled by `python -m experiments.aot_report
          --config=sizes:ARM --accelerator=…` (JAX
          0.10.2; argument + temporary GiB per device, which has 79):

              250m, h100_8    0.35 + 4.20   6 %
              1b, h100_8      1.40 + 9.05  13 %
              3b, h100_8     4.20 + 16.46  26 %
              13b, h100_64   2.32 + 35.54  48 %
              34b, h100_128  3.02 + 14.13  22 %
              110b, h100_512 2.42 + 14.14  21 %
"""

import dataclasses

from kaiju_jax.data import config as data_config
from kaiju_jax.model import presets
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib

_TOKENS_A_PARAMETER = 20


@dataclasses.dataclass(frozen=True)
class _Size:
  """What a preset does not say."""

  parameters: float  # The number that its name stands for.
  length: int  # L, tokens per row.
  batch: int  # B, rows per microbatch.
  microbatches: int  # Microbatches per step.
  learning_rate: float  # Peak.


_SIZES = {
  '250m': _Size(250e6, 4096, 64, 1, 1e-3),
  '1b': _Size(1e9, 4096, 64, 2, 6e-4),
  '3b': _Size(3e9, 4096, 64, 4, 4e-4),
  '13b': _Size(13e9, 8192, 64, 4, 3e-4),
  '34b': _Size(34e9, 8192, 32, 16, 2e-4),
  '110b': _Size(110e9, 8192, 64, 8, 1e-4),
}
ARMS = tuple(_SIZES)


def get_config(arm: str = '250m') -> experiment_lib.Experiment:
  """Returns an arm's experiment.

  Args:
    arm: one of ARMS; which preset is trained.

  Raises:
    ValueError: no such arm.
  """
  experiment_lib.check_arm(arm, ARMS)
  size = _SIZES[arm]
  model = presets.preset(arm)
  model.remat = 'layer'
  model.quantization.bungee = True
  tokens = size.length * size.batch * size.microbatches
  return experiment_lib.Experiment(
    model=model,
    data=data_config.DataConfig(
      # A path that must exist: bytes would leave most of 65,536 untrained.
      tokenizer='tokenizer.json' if model.vocab_size > 256 else '',
      length=size.length,
      batch=size.batch,
      microbatches=size.microbatches,
      held_out=0.01,
      evaluated_rows=512,
    ),
    optimizer=training_config.OptimizerConfig(learning_rate=size.learning_rate),
    loop=training_config.LoopConfig(
      steps=round(_TOKENS_A_PARAMETER * size.parameters / tokens),
      evaluate_every=1000,
      checkpoint_every=1000,
    ),
  )
