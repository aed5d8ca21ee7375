"""Decoding on a mesh by arithmetic, beside figures that were found by hand."""

import dataclasses

import jax
import pytest

from kaiju_jax import tpu_gpu_configs
from kaiju_jax.aot import tables
from kaiju_jax.costs import footprint
from kaiju_jax.costs import mesh_decoding
from kaiju_jax.decoding.device import extend
from kaiju_jax.decoding.device import weights
from kaiju_jax.model import config as model_config
from kaiju_jax.model import paging
from kaiju_jax.model import presets
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config

S, R, A, AR, REPLICATED, GQA = mesh_decoding.ARMS
N_OF = {'h100_4': 4, 'h100_8': 8, 'v5e_8': 8, 'v5p_8': 4}


def plan(preset='110b', name='h100_8', arm=S):
  return mesh_decoding.MeshPlan(
    presets.preset(preset), tpu_gpu_configs.load(name), arm
  )


@pytest.mark.parametrize(
  'changes',
  [
    {},
    {'num_kv_heads': 2, 'tied_embedding': False, 'dtype': 'bfloat16'},
    {'quantization': quantization_config.none()},
    {
      'feedforward': 'swiglu',
      'qkv_bias': True,
      'quantization': quantization_config.for_serving('weights'),
    },
  ],
)
@pytest.mark.parametrize('tensor', [1, 4])
def test_weights_are_those_that_decoding_reads(changes, tensor):
  fields = {
    'vocab_size': 64,
    'd_model': 24,
    'layout': 'L0 L0 G2',
    'num_heads': 8,
    'head_dim': 8,
    'd_ff': 48,
    'quantization': quantization_config.QuantizationConfig(
      embedding='int8', bungee=True
    ),
  }
  config = model_config.ModelConfig(**fields | changes)
  made = jax.eval_shape(
    lambda x: weights.ready(x, config, devices=tensor),
    transformer.parameter_shapes(config),
  )
  total = 0
  for path, x in jax.tree_util.tree_leaves_with_path(made):
    names = [key.key for key in path if hasattr(key, 'key')]
    letters = names[-1].rpartition('_')[2]
    is_split = any(
      letter in 'FHV' and size > 1 for letter, size in zip(letters, x.shape)
    )
    total += x.size * x.dtype.itemsize // (tensor if is_split else 1)
  assert footprint.weight_bytes(config, tensor) == total


@pytest.mark.parametrize('name', sorted(presets.PRESETS))
def test_striped_pages_are_a_share_of_those_of_one_device(name):
  config = presets.preset(name)
  h100 = tpu_gpu_configs.load('h100_8')
  for length in 1, 1000, 8192:
    alone = dataclasses.replace(h100, devices_per_host=1)
    whole = mesh_decoding.MeshPlan(config, alone)
    for devices in 2, 4, 8:
      there = dataclasses.replace(h100, devices_per_host=devices)
      found = mesh_decoding.MeshPlan(config, there).text_bytes(length)
      wanted = whole.text_bytes(length)
      assert sum(found.values()) == sum(wanted.values()) / devices


def test_bytes_of_a_text_by_hand():
  # Keys and values of 110b: 128 codes and a scale each, in pages of 64.
  slot = 2 * (128 + 4)
  globals_, rings = 5 * 8192 * slot, 20 * 17 * 64 * slot
  for name, count in N_OF.items():
    if name.startswith('v'):
      continue
    sizes = {
      arm: tuple(plan(name=name, arm=arm).text_bytes(8192).values())
      for arm in mesh_decoding.ARMS
    }
    assert sizes[S] == sizes[A] == (rings / count, globals_ / count)
    assert sizes[R] == sizes[AR] == (rings, globals_ / count)
    assert sizes[REPLICATED] == (rings, globals_)
    assert sizes[GQA] == (rings * 8 / count, globals_ * 8 / count)


def test_a_tpu_has_pages_of_whole_tiles():
  assert plan(name='v5e_8').page == 256
  assert plan(name='v5p_8').page == 128
  assert plan(name='v5e_8', arm=REPLICATED).page == 64
  assert plan(name='h100_8').page == 64
  # A ring of five pages of 256 instead of 17 of 64.
  slots = plan(name='v5e_8').text_bytes(8192)['local'] * 8 / 20 / 264
  assert slots == 1280


def test_what_fits_beside_replicated_keys():
  texts = {
    arm: [plan(name='h100_4', arm=arm).texts(n) for n in mesh_decoding.LENGTHS]
    for arm in mesh_decoding.ARMS
  }
  assert texts[S][0] >= 8000 and texts[S][1] >= 3000
  assert texts[S] == texts[A] and texts[R] == texts[AR]
  for own, replicated in zip(texts[S], texts[REPLICATED]):
    assert 3.9 < own / replicated < 4.1
  assert texts[GQA][0] < texts[REPLICATED][0] < texts[R][0] < texts[S][0]
  # 64 rings leave five owners of 264 bytes, an eighth of each here.
  here = plan()
  room = here.free - 64 * 20 * 17 * 64 * 264 / 8
  assert here.tokens() == pytest.approx(room / (5 * 264 / 8))
  full = dataclasses.replace(
    here.accelerator,
    chip=dataclasses.replace(here.accelerator.chip, hbm_bytes=16e9),
  )
  nothing = mesh_decoding.MeshPlan(here.config, full)
  assert nothing.free < 0
  assert nothing.texts(8192) == nothing.tokens() == 0


@pytest.mark.parametrize('name', N_OF)
@pytest.mark.parametrize('preset', ['34b', '110b'])
def test_bytes_on_the_wire_by_hand(preset, name):
  config, count = presets.preset(preset), N_OF[name]
  D, H = config.d_model, config.num_heads
  statistics, attention = 8 * count, 3 * D + 8 * H
  wanted = {
    S: 6 * D + 8 + attention,
    R: 6 * D + 8 + attention / 7,
    A: 8 * D + attention,
    AR: 8 * D + attention / 7,
    REPLICATED: 8 * D,
    GQA: 8 * D,
  }
  launches = {S: 7, R: 5 + 2 / 7, A: 5, AR: 3 + 2 / 7, REPLICATED: 3, GQA: 3}
  share = (count - 1) / count
  for arm, sent in wanted.items():
    found = plan(preset, name, arm)
    assert found.wire() == pytest.approx((sent + statistics) * share)
    assert found.launches() == pytest.approx(launches[arm])
  assert plan(preset, name, S).wire() <= 1.2 * 8 * D * share


def test_groups_exchange_less():
  config = dataclasses.replace(presets.preset('110b'), num_kv_heads=4)
  found = mesh_decoding.MeshPlan(config, tpu_gpu_configs.load('h100_8'))
  D, H = config.d_model, config.num_heads
  # Two devices share a head: each sends its own heads' queries to one other.
  wanted = (6 * D + 8 + 64) * 7 / 8 + (3 * D + 8 * H) / 8
  assert found.wire() == pytest.approx(wanted)
  whole = dataclasses.replace(config, num_kv_heads=8)
  by_heads = dataclasses.replace(found, config=whole)
  assert by_heads.wire() == pytest.approx((6 * D + 8 + 64) * 7 / 8)
  assert by_heads.launches() == 5


def test_floats_cross_whole():
  config = presets.preset('110b', 'bf16')
  found = mesh_decoding.MeshPlan(config, tpu_gpu_configs.load('h100_8'))
  D, H = config.d_model, config.num_heads
  wanted = 2 * (2 * D + 2 * D) + 2 * D + 2 * D + 4 * H + 64
  assert found.wire() == pytest.approx(wanted * 7 / 8)


def test_seconds_of_a_step_by_hand():
  # The weights' 13.9 GB at 3.35 TB/s are 4.1 ms; keys and values of 60 × 1,088
  # and 10 × 8,192 slots in 64 texts .09; the wire .97 at 450 GB/s; 490 starts.
  found = plan().seconds(64)
  wanted = 4.13e-3, 0.093e-3, 0.97e-3, 4.9e-3
  for part, want in zip(found, wanted):
    assert part == pytest.approx(want, rel=0.01)
  # With 256 the products take longer than reading the weights.
  assert plan().seconds(256).weights == pytest.approx(5.0e-3, rel=0.02)
  with pytest.raises(ValueError, match='cpu_8'):
    plan(name='cpu_8').seconds(1)


@pytest.mark.parametrize('name', N_OF)
@pytest.mark.parametrize('preset', ['34b', '110b'])
def test_few_tokens_are_not_split(preset, name):
  config, there = presets.preset(preset), tpu_gpu_configs.load(name)
  tokens = mesh_decoding.break_even(config, there)
  for count, wins in (int(tokens), A), (int(tokens) + 1, S):
    times = {arm: sum(plan(preset, name, arm).seconds(count)) for arm in (S, A)}
    assert min(times, key=times.get) == wins
  if name.startswith('h100'):
    assert extend.SPLIT_FROM['gpu'] < tokens


def test_a_model_that_the_mesh_cannot_split_is_refused():
  config = dataclasses.replace(presets.preset('110b'), num_heads=100)
  there = tpu_gpu_configs.load('h100_8')
  with pytest.raises(ValueError, match=r'num_heads=100: .*mesh.tensor=8'):
    _ = mesh_decoding.MeshPlan(config, there).free


def test_one_device_is_no_mesh():
  there = tpu_gpu_configs.load('h100_4')
  one = dataclasses.replace(there, name='h100_1', devices_per_host=1)
  with pytest.raises(ValueError, match=r"='h100_1': must .* two devices"):
    tables.plan_decoding(presets.preset('34b'), one)


def test_an_arm_that_the_slice_cannot_split_is_left_out():
  # Eight heads go neither to 12 devices nor 12 to eight.
  there = tpu_gpu_configs.load('h100_4')
  many = dataclasses.replace(there, devices_per_host=12)
  config = dataclasses.replace(
    presets.preset('34b'), num_heads=96, d_ff=9216, vocab_size=12_288
  )
  arms = tables.plan_decoding(config, many)
  assert {arm.name for arm in mesh_decoding.ARMS if not arm.kv_heads} == {*arms}


def test_nine_heads_over_three_go_to_three_devices():
  config = model_config.ModelConfig(
    num_heads=9, num_kv_heads=3, d_ff=1536, vocab_size=49_152
  )
  assert paging.count_stripes(config.num_kv_heads, 3) == 1
  assert footprint.weight_bytes(config, 3) < footprint.weight_bytes(config) / 2
  for tensor in 2, 4:
    with pytest.raises(ValueError, match=f'num_heads=9: .*={tensor}'):
      footprint.weight_bytes(config, tensor)
