"""A step of adapters takes a third of the memory of a step of all weights.

At the shape of a model of 0.6 billion parameters, compiled for a CPU: nothing
is allocated.
"""

import dataclasses

import pytest

from kaiju_jax.data import config as data_config
from kaiju_jax.experiments.benchmarks.parts import open_shapes
from kaiju_jax.interchange.families import registry
from kaiju_jax.objectives import config as objective_config
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.sharding import mesh as mesh_lib
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import step as step_lib


def step_bytes(lora):
  """Returns bytes of a step's arguments, new results and temporaries."""
  fields = open_shapes.SHAPES['qwen3-0.6b'] | {
    'hidden_act': 'silu',
    'tie_word_embeddings': True,
  }
  experiment = experiment_lib.Experiment(
    model=dataclasses.replace(
      registry.read(fields).config,
      quantization=quantization_config.for_serving(),
      dtype='bfloat16',
      remat='layer',
      max_length=1024,
    ),
    data=data_config.DataConfig(length=1024, batch=1),
    objective=objective_config.ObjectiveConfig(chunk=256),
    lora=lora,
  )
  mesh = mesh_lib.single()
  made = step_lib.make(experiment, mesh)
  compiled = made.lower(*step_lib.abstract(experiment, mesh)).compile()
  memory = compiled.memory_analysis()
  return (
    memory.argument_size_in_bytes
    + memory.output_size_in_bytes
    - memory.alias_size_in_bytes
    + memory.temp_size_in_bytes
  )


@pytest.mark.slow
def test_adapters_take_a_third_of_the_memory():
  whole = step_bytes(training_config.LoraConfig())
  adapters = step_bytes(training_config.LoraConfig(16, 16.0, '*'))
  assert adapters <= 0.35 * whole
