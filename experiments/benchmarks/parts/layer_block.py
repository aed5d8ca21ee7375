"""One device's part of a size's layer block, and a whole step of it."""

from collections.abc import Mapping
import dataclasses

from kaiju_jax.experiments.benchmarks.parts import timed_step
from kaiju_jax.model import config as model_config
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.model import presets
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.training import experiment as experiment_lib

ARMS = {
  'bf16': quantization_config.none,
  'int8': quantization_config.QuantizationConfig,
  'int8, gradient': lambda: quantization_config.QuantizationConfig(
    input_gradient='int8'
  ),
}


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


def count_operations(experiment: experiment_lib.Experiment) -> dict[str, int]:
  """Returns a step's operations by the dtypes of its matmuls."""
  from kaiju_jax.aot import build
  from kaiju_jax.aot.hlo import matmuls
  from kaiju_jax.sharding import mesh as mesh_lib
  from kaiju_jax.training import step as step_lib

  mesh = mesh_lib.single()
  program = build.build(
    step_lib.make(experiment, mesh), step_lib.abstract(experiment, mesh)
  )
  return matmuls.totals(build.matmuls(program))


def seconds(
  experiments: Mapping[str, experiment_lib.Experiment], repeats: int
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
