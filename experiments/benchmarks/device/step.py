"""How fast is a training step of 250m in int8 against bf16, in how much memory?

Each case is one arm of one model at one number of rows, in a process of its
own. Beside 250m there is an eighth of 13b's repeating block, what one device of
eight computes. MFU counts the operations of the model, without those that
recomputing repeats, over the bf16 rate that this device's ceiling has.
"""

import dataclasses
from typing import Any
from typing import NamedTuple

import jax

from kaiju_jax.costs import step_time
from kaiju_jax.data import config as data_config
from kaiju_jax.experiments.benchmarks.parts import timed_step
from kaiju_jax.kernels import timing
from kaiju_jax.model import config as model_config
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.model import presets
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.training import experiment as experiment_lib

from ...configs import sizes
from ...configs import tiny
from . import setting as setting_lib

ARMS = {
  'bf16': quantization_config.none,
  'int8': quantization_config.QuantizationConfig,
  'int8, gradient': lambda: quantization_config.QuantizationConfig(
    input_gradient='int8'
  ),
}
# (model, rows), the first compiled ahead of a device too.
_BLOCK = '13b block / 8'
_SIZES = ('250m', 8), (_BLOCK, 1), ('250m', 32)


class Case(NamedTuple):
  """One arm of one model."""

  arm: str
  model: str
  rows: int


def part_of(preset: str, tensor: int) -> model_config.ModelConfig:
  """Returns one device's part of a preset's repeating block.

  Args:
    preset: one of `presets.PRESETS`.
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


def experiment_of(case: Case, dry: bool) -> experiment_lib.Experiment:
  if dry:
    experiment = tiny.get_config('f32')
    experiment.model = model_config.ModelConfig(
      vocab_size=256,
      d_model=32,
      num_heads=2,
      head_dim=16,
      d_ff=64,
      layout='G0',
      max_length=64,
    )
    experiment.data.length = 64
  elif case.model == _BLOCK:
    part = part_of('13b', 8)
    experiment = experiment_lib.Experiment(
      model=dataclasses.replace(part, max_length=8192),
      data=data_config.DataConfig(length=8192),
    )
  else:
    experiment = sizes.get_config('250m')
  experiment.data.batch = case.rows
  experiment.data.microbatches = 1
  experiment.model.quantization = ARMS[case.arm]()
  return experiment


def cases(setting: setting_lib.Setting) -> dict[str, tuple[float, Case]]:
  """Returns the arms of each model; bf16 and int8 first."""
  tried = [('250m', 1)] if setting.dry else _SIZES
  arms = ['int8'] if setting.dry else list(ARMS)
  return {
    f'{model}, {arm}, {rows} rows': (45, Case(arm, model, rows))
    for model, rows in tried
    for arm in arms
  }


def measure(setting: setting_lib.Setting, case: Case) -> dict[str, Any]:
  """Returns a step's seconds, tokens, operations and bytes of memory."""
  experiment = experiment_of(case, setting.dry)
  batch = timed_step.batch(experiment)
  step, state = timed_step.ours(experiment)
  compiled = step.lower(state, batch).compile()
  planned = compiled.memory_analysis()
  run = timed_step.runner(compiled, state, batch, 1)
  times = timing.spreads({'step': run}, setting.repeats)['step']
  statistics = jax.devices()[0].memory_stats() or {}
  return {
    'arm': case.arm,
    'model': case.model,
    'tokens': case.rows * experiment.data.length,
    'seconds': times,
    'operations': useful_operations(experiment),
    'planned_bytes': planned.argument_size_in_bytes
    + planned.temp_size_in_bytes
    + planned.output_size_in_bytes
    - planned.alias_size_in_bytes,
    'peak_bytes': statistics.get('peak_bytes_in_use'),
  }


def useful_operations(experiment: experiment_lib.Experiment) -> float:
  """Returns a step's operations, without those of recomputing."""
  data = experiment.data
  plain = dataclasses.replace(experiment.model, remat='none')
  sums = step_time.operations(
    plain,
    data.batch * data.microbatches * data.length,
    data.length,
    step_time.ARMS[0],
  )
  return sum(sums.values())
