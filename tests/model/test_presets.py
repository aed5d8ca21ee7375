"""Named shapes are the size they say, and fit the meshes they are meant for."""

import itertools

import pytest

from kaiju_jax.costs import footprint
from kaiju_jax.model import config as config_lib
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.model import presets

KAIJU = ('13b', '34b', '110b')
LADDER = ('1m', '4m', '15m', '60m', '250m', '1b', '3b')


def size_of(name: str) -> float:
  return float(name[:-1]) * {'m': 1e6, 'b': 1e9}[name[-1]]


def test_the_names():
  assert tuple(presets.PRESETS) == LADDER + KAIJU


@pytest.mark.parametrize('name', LADDER + KAIJU)
def test_the_name_is_the_size(name):
  config = presets.preset(name)
  config_lib.check(config)
  count = footprint.count(footprint.parameters(config))
  tolerance = 0.02 if name in KAIJU else 0.05
  assert count == pytest.approx(size_of(name), rel=tolerance)


def test_arms_are_what_crosses_the_wire():
  wires = {arm: presets.preset('13b', arm).quantization for arm in presets.ARMS}
  assert {
    arm: (x.matmul, x.wire_weights, x.wire_gradients)
    for arm, x in wires.items()
  } == {
    'int8': ('int8', 'int8', 'squinch'),
    'bf16': ('none', 'float', 'float'),
    'ternary': ('int8', 'ternary', 'squinch'),
  }
  with pytest.raises(
    ValueError, match="arm='fp8': must be one of int8, bf16, ter"
  ):
    presets.preset('13b', 'fp8')


@pytest.mark.parametrize('name', KAIJU)
def test_kaiju_sizes_are_as_the_sources_say_and_divide_by_their_meshes(name):
  config = presets.preset(name)
  assert config.num_layers % 14 == 0
  assert len(layers_lib.repeating_block(config.layers())) == 14
  assert (config.window, config.head_dim) == (1024, 128)
  assert (config.vocab_size, config.dtype) == (65_536, 'bfloat16')
  assert config.remat == 'layer'
  assert config.d_ff % (8 * 128) == 0
  assert config.num_heads % 8 == 0
  assert config.num_heads * config.head_dim == config.d_model
  for fsdp in {presets.MESHES[name][0], 64, 128}:
    assert config.d_model % (8 * fsdp) == 0


@pytest.mark.parametrize('name', LADDER)
def test_the_ladder_reads_bytes_and_repeats_whole_periods(name):
  config = presets.preset(name)
  assert config.vocab_size == 256
  assert config.num_layers in (7, 14, 28)
  assert config.d_model == config.num_heads * config.head_dim
  assert config.window <= config.max_length // 8


def test_rungs_are_about_four_times_apart():
  counts = [
    footprint.count(footprint.parameters(presets.preset(name)))
    for name in LADDER
  ]
  steps = [b / a for a, b in itertools.pairwise(counts)]
  assert all(2.9 < step < 4.2 for step in steps)


def test_each_call_gives_a_config_of_its_own():
  changed = presets.preset('1m')
  changed.window = 3
  changed.quantization.kv = 'none'
  fresh = presets.preset('1m')
  assert (fresh.window, fresh.quantization.kv) == (64, 'int8')


def test_an_unknown_preset_is_answered_with_the_names():
  with pytest.raises(ValueError, match=r"'7b': must be one of 1m, 4m.*110b\."):
    presets.preset('7b')
