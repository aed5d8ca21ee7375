"""What a layer block's bench compares."""

import dataclasses

import pytest

from kaiju_jax.data import config as data_config
from kaiju_jax.experiments.benchmarks.parts import layer_block
from kaiju_jax.model import config as model_config
from kaiju_jax.model import presets
from kaiju_jax.training import experiment as experiment_lib


def test_a_part_is_one_devices():
  part = layer_block.part_of('13b', 8)
  assert part.num_layers == 14
  assert (part.d_model, part.num_heads, part.d_ff) == (5120, 5, 3072)
  assert part.layers()[:7] == presets.preset('13b').layers()[:7]


def test_what_does_not_divide_is_refused():
  with pytest.raises(ValueError, match='--tensor=3 does not divide num_heads='):
    layer_block.part_of('13b', 3)


def _arms():
  model = model_config.ModelConfig(
    vocab_size=32,
    d_model=32,
    num_heads=2,
    head_dim=16,
    d_ff=64,
    layout='L0',
    window=8,
  )
  return {
    arm: experiment_lib.Experiment(
      model=dataclasses.replace(model, quantization=quantization()),
      data=data_config.DataConfig(length=16, batch=1),
    )
    for arm, quantization in layer_block.ARMS.items()
  }


@pytest.mark.slow
def test_arms_move_matmuls_to_int8():
  int8, total = {}, {}
  for arm, experiment in _arms().items():
    operations = layer_block.count_operations(experiment)
    int8[arm] = operations.get('s8×s8→s32', 0)
    total[arm] = sum(operations.values())
  assert int8['bf16'] == 0
  # Of a weight's three equal matmuls one, then two; attention has its own.
  assert int8['int8'] > 0.2 * total['int8']
  assert int8['int8, gradient'] > 1.5 * int8['int8']


@pytest.mark.slow
def test_arms_are_timed():
  arms = _arms()
  del arms['int8']
  assert set(layer_block.seconds(arms, 1)) == set(arms)
