"""int8 settings move a training step's matmuls to int8."""

import pytest

from kaiju_jax.aot import build
from kaiju_jax.aot.hlo import matmuls
from kaiju_jax.data import config as data_config
from kaiju_jax.model import config as model_config
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.sharding import mesh as mesh_lib
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import step as step_lib


def operations(quantization):
  """Returns the operations of a step's matmuls by their dtypes."""
  experiment = experiment_lib.Experiment(
    model=model_config.ModelConfig(
      vocab_size=32,
      d_model=32,
      num_heads=2,
      head_dim=16,
      d_ff=64,
      layout='L0',
      window=8,
      quantization=quantization,
    ),
    data=data_config.DataConfig(length=16, batch=1),
  )
  mesh = mesh_lib.single()
  program = build.build(
    step_lib.make(experiment, mesh), step_lib.abstract(experiment, mesh)
  )
  return matmuls.totals(build.matmuls(program))


@pytest.mark.slow
def test_each_setting_moves_matmuls_to_int8():
  floats, int8, gradients = map(
    operations,
    (
      quantization_config.none(),
      quantization_config.QuantizationConfig(),
      quantization_config.QuantizationConfig(input_gradient='int8'),
    ),
  )
  coded = 's8×s8→s32'
  assert coded not in floats
  # Of a weight's three equal matmuls one, then two; attention has its own.
  assert int8[coded] > 0.2 * sum(int8.values())
  assert gradients[coded] > 1.5 * int8[coded]
