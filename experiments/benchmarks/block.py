"""What int8 brings a whole training step of a size's layer block.

    python -m experiments.benchmarks.block --preset=13b [--tensor=8]
        [--length=8192 --json=PATH]

One device's part of the preset's repeating block (14 layers; heads and hidden
units over --tensor), as a model of its own with a vocabulary of 256: forward,
backward with remat, AdamW. Three arms, each a step of the same tokens,

    bf16              nothing quantized
    int8              int8 forward, int8 keys and values, half-int8 attention
    int8, gradient    the input-gradient matmuls in int8, too

side by side in one process, as seconds and as a ratio to bf16. The sources say
20–30 % faster; what the arithmetic allows is `aot_report`'s matter. Collectives
are not in it. On a CPU, where int8 brings no speed, it compiles the arms and
counts their matmuls by dtype instead.
"""

from collections.abc import Sequence
import dataclasses
import pathlib

from absl import flags

from kaiju_jax.data import config as data_config
from kaiju_jax.experiments.benchmarks.parts import layer_block
from kaiju_jax.model import presets
from kaiju_jax.runs import command
from kaiju_jax.runs import report
from kaiju_jax.runs import train
from kaiju_jax.storage import files
from kaiju_jax.training import experiment as experiment_lib

_PRESET = flags.DEFINE_enum('preset', '13b', list(presets.PRESETS), 'Preset.')
_TENSOR = flags.DEFINE_integer(
  'tensor', 8, 'Devices that a layer is split over.', lower_bound=1
)
_LENGTH = flags.DEFINE_integer('length', 8192, 'Tokens per row.', lower_bound=2)
_ROWS = flags.DEFINE_integer('rows', 1, 'Rows per step.', lower_bound=1)
_REPEATS = flags.DEFINE_integer('repeats', 9, 'Rounds.', lower_bound=1)
_JSON = flags.DEFINE_string('json', None, 'File that gets the figures as JSON.')


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  experiments = {
    arm: _experiment(quantization())
    for arm, quantization in layer_block.ARMS.items()
  }
  import jax

  if jax.default_backend() == 'cpu':
    figures = {
      arm: layer_block.count_operations(each)
      for arm, each in experiments.items()
    }
    table = _counts(figures)
  else:
    figures = layer_block.seconds(experiments, _REPEATS.value)
    table = _times(figures)
  device = jax.devices()[0].device_kind
  report.show([f'{_PRESET.value} / {_TENSOR.value} on one {device}', table])
  if _JSON.value:
    path = pathlib.Path(_JSON.value)
    path.parent.mkdir(parents=True, exist_ok=True)
    what = {'device': device, 'jax': jax.__version__, 'arms': figures}
    files.write_json(path, what)


def _experiment(quantization) -> experiment_lib.Experiment:
  model = dataclasses.replace(
    layer_block.part_of(_PRESET.value, _TENSOR.value),
    max_length=_LENGTH.value,
    quantization=quantization,
  )
  experiment = experiment_lib.Experiment(
    model=model,
    data=data_config.DataConfig(length=_LENGTH.value, batch=_ROWS.value),
  )
  train.check(experiment)
  return experiment


def _times(medians: dict[str, float]):
  return report.table(
    ('arm', 'ms', 'bf16 / arm'),
    [
      (arm, f'{1e3 * each:,.2f}', f'{medians["bf16"] / each:.2f}×')
      for arm, each in medians.items()
    ],
    f'A step: medians of {_REPEATS.value} rounds',
  )


def _counts(operations: dict[str, dict[str, int]]):
  names = sorted({name for each in operations.values() for name in each})
  return report.table(
    ('arm', *names),
    [
      (arm, *(f'{each[n] / 1e12:,.2f}' if n in each else '' for n in names))
      for arm, each in operations.items()
    ],
    'Matmul operations of a step by dtype, in units of 10¹² (times on a CPU'
    ' would mean nothing)',
  )


if __name__ == '__main__':
  command.run(main)
