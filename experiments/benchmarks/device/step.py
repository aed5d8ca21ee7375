"""How fast is a training step of 250m in int8 against bf16, in how much memory?

Each case is one arm at one number of rows, in a process of its own. MFU counts
the operations of the model, without those that recomputing repeats, over the
bf16 rate that this device's ceiling has.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any

import jax

from kaiju_jax.costs import step_time
from kaiju_jax.kernels import timing
from kaiju_jax.model import config as model_config
from kaiju_jax.sharding import config as sharding_config
from kaiju_jax.sharding import mesh as mesh_lib
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import step as step_lib

from ...configs import sizes
from ...configs import tiny
from .. import layer_block
from .. import timed_step
from . import setting as setting_lib

_ROWS = 8, 32


def _experiment(arm: str, rows: int, dry: bool) -> experiment_lib.Experiment:
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
  else:
    experiment = sizes.get_config('250m')
  experiment.data.batch = rows
  experiment.data.microbatches = 1
  experiment.model.quantization = layer_block.ARMS[arm]()
  return experiment


def cases(
  setting: setting_lib.Setting,
) -> dict[str, tuple[float, tuple[str, int]]]:
  """Returns the arms at each number of rows; bf16 and int8 first."""
  rows = (1,) if setting.dry else _ROWS
  arms = ['int8'] if setting.dry else list(layer_block.ARMS)
  return {
    f'{arm}, {count} rows': (45, (arm, count)) for count in rows for arm in arms
  }


def measure(
  setting: setting_lib.Setting, case: tuple[str, int]
) -> dict[str, Any]:
  """Returns a step's seconds, tokens, operations and bytes of memory."""
  arm, rows = case
  experiment = _experiment(arm, rows, setting.dry)
  batch = timed_step.batch(experiment)
  step, state = timed_step.ours(experiment)
  compiled = step.lower(state, batch).compile()
  planned = compiled.memory_analysis()
  run = timed_step.runner(compiled, state, batch, 1)
  times = timing.spreads({'step': run}, setting.repeats)['step']
  statistics = jax.devices()[0].memory_stats() or {}
  return {
    'arm': arm,
    'tokens': rows * experiment.data.length,
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


def programs(
  setting: setting_lib.Setting, device: Any
) -> dict[str, Callable[[], tuple[Any, Any]]]:
  """Returns the step of each arm, at the fewest rows."""

  def program(arm, rows):
    experiment = _experiment(arm, rows, setting.dry)
    mesh = mesh_lib.make(sharding_config.MeshConfig(), [device])
    return (
      step_lib.make(experiment, mesh),
      step_lib.abstract(experiment, mesh),
    )

  found = {}
  for name, (_, (arm, rows)) in cases(setting).items():
    if setting.dry or rows == min(_ROWS):
      found[name] = functools.partial(program, arm, rows)
  return found
