"""What int8 brings a whole training step of a size's layer block.

    python -m experiments.bench_block --preset=13b [--tensor=8 --length=8192]
        [--json=PATH]

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

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import json
import os
import pathlib

from absl import app
from absl import flags
import rich.console
import rich.table

from experiments import run
from experiments import timed_step
from kaiju_jax import config as config_lib
from kaiju_jax.data import config as data_config
from kaiju_jax.model import config as model_config
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.model import presets
from kaiju_jax.quantization import config as quantization_config

_PRESET = flags.DEFINE_enum('preset', '13b', list(presets.PRESETS), 'Which.')
_TENSOR = flags.DEFINE_integer(
  'tensor', 8, 'Devices that a layer is split over.', lower_bound=1
)
_LENGTH = flags.DEFINE_integer('length', 8192, 'Of a row.', lower_bound=2)
_ROWS = flags.DEFINE_integer('rows', 1, 'Of a step.', lower_bound=1)
_REPEATS = flags.DEFINE_integer('repeats', 9, 'Rounds.', lower_bound=1)
_JSON = flags.DEFINE_string('json', None, 'Where the figures go, too.')

ARMS = {
  'bf16': quantization_config.none,
  'int8': quantization_config.QuantizationConfig,
  'int8, gradient': lambda: quantization_config.QuantizationConfig(
    input_gradient='int8'
  ),
}


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'unexpected arguments: {" ".join(argv[1:])}')
  run.quiet()
  try:
    experiments = {
      arm: _experiment(quantization()) for arm, quantization in ARMS.items()
    }
  except ValueError as error:
    raise SystemExit(f'error: {error}') from error
  import jax

  if jax.default_backend() == 'cpu':
    figures = {arm: counted(each) for arm, each in experiments.items()}
    table = _counts(figures)
  else:
    figures = seconds(experiments, _REPEATS.value)
    table = _times(figures)
  device = jax.devices()[0].device_kind
  console = rich.console.Console()
  console.print(f'{_PRESET.value} / {_TENSOR.value} on one {device}')
  console.print(table)
  if _JSON.value:
    path = pathlib.Path(_JSON.value)
    path.parent.mkdir(parents=True, exist_ok=True)
    what = {'device': device, 'jax': jax.__version__, 'arms': figures}
    path.write_text(json.dumps(what, indent=1) + os.linesep)


def part_of(preset: str, tensor: int) -> model_config.ModelConfig:
  """Returns one device's part of a preset's repeating block.

  Args:
    preset: of `presets.PRESETS`.
    tensor: devices that its layers are split over.

  Raises:
    ValueError: heads or hidden units that `tensor` does not divide.
  """
  whole = presets.preset(preset)
  for name in 'num_heads', 'd_ff':
    size = getattr(whole, name)
    if size % tensor:
      raise ValueError(f'--tensor={tensor} does not divide {name}={size}.')
  return dataclasses.replace(
    whole,
    vocab_size=256,
    num_layers=len(layers_lib.repeating_block(whole.layers())),
    num_heads=whole.num_heads // tensor,
    d_ff=whole.d_ff // tensor,
  )


def _experiment(quantization) -> config_lib.Experiment:
  model = dataclasses.replace(
    part_of(_PRESET.value, _TENSOR.value),
    max_length=_LENGTH.value,
    quantization=quantization,
  )
  experiment = config_lib.Experiment(
    model=model,
    data=data_config.DataConfig(length=_LENGTH.value, batch=_ROWS.value),
  )
  run.check(experiment)
  return experiment


def counted(experiment: config_lib.Experiment) -> dict[str, int]:
  """Returns a step's operations by the dtypes of its matmuls."""
  from kaiju_jax import aot
  from kaiju_jax.hlo import matmuls
  from kaiju_jax.sharding import mesh as mesh_lib
  from kaiju_jax.training import step as step_lib

  mesh = mesh_lib.single()
  program = aot.build(
    step_lib.make(experiment, mesh), step_lib.abstract(experiment, mesh)
  )
  return matmuls.totals(aot.matmuls(program))


def seconds(
  experiments: Mapping[str, config_lib.Experiment], repeats: int
) -> dict[str, float]:
  """Returns the median seconds of a step of each arm."""
  from kaiju_jax.kernels import timing

  return timing.medians(
    {
      arm: timed_step.runner(
        *timed_step.ours(experiment), timed_step.batch(experiment), 1
      )
      for arm, experiment in experiments.items()
    },
    repeats,
  )


def _times(medians: dict[str, float]) -> rich.table.Table:
  table = rich.table.Table(title=f'A step: medians of {_REPEATS.value} rounds')
  for header in 'arm', 'ms', 'bf16 / arm':
    table.add_column(header, justify='left' if header == 'arm' else 'right')
  for arm, each in medians.items():
    ratio = medians['bf16'] / each
    table.add_row(arm, f'{1e3 * each:,.2f}', f'{ratio:.2f}×')
  return table


def _counts(operations: dict[str, dict[str, int]]) -> rich.table.Table:
  table = rich.table.Table(
    title='Matmul operations of a step by dtype, in units of 10¹² (times on a'
    ' CPU would mean nothing)'
  )
  names = sorted({name for each in operations.values() for name in each})
  table.add_column('arm')
  for name in names:
    table.add_column(name, justify='right')
  for arm, each in operations.items():
    row = [f'{each[n] / 1e12:,.2f}' if n in each else '' for n in names]
    table.add_row(arm, *row)
  return table


if __name__ == '__main__':
  app.run(main, flags_parser=run.parse)
