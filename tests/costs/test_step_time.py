"""The time model against counts by hand."""

import dataclasses

import pytest

from kaiju_jax.costs import accelerator
from kaiju_jax.costs import links
from kaiju_jax.costs import step_time
from kaiju_jax.model import config as model_config
from kaiju_jax.sharding import config
import tpu_gpu_configs

H100 = tpu_gpu_configs.load('h100_64')


def _seconds(kind, axes, fsdp, tensor, slice_=H100):
  return links.seconds(kind, 1e9, axes, slice_, config.MeshConfig(fsdp, tensor))


@pytest.mark.parametrize(
  ('kind', 'axis', 'fsdp', 'tensor', 'expected'),
  [
    # Within a node: 7/8 of it over NVLink.
    ('all-gather', 'tensor', 8, 8, 7 / 8 / 450),
    ('all-reduce', 'tensor', 8, 8, 2 * 7 / 8 / 450),
    ('all-to-all', 'tensor', 8, 8, 7 / 8 / 450),
    # One device a node: 7/8 of it over the network.
    ('all-gather', 'fsdp', 8, 8, 7 / 8 / 50),
    ('all-to-all', 'fsdp', 8, 8, 7 / 8 / 50),
    ('reduce-scatter', 'fsdp', 8, 8, 8 * 7 / 8 / 50),
    # All eight of each node share what the network brings once, but an
    # all-to-all sends another byte to each.
    ('all-gather', 'fsdp', 64, 1, max(7 / 8 / 450, 7 / 8 / 8 / 50)),
    ('all-to-all', 'fsdp', 64, 1, 7 / 8 / 50),
    ('all-gather', 'fsdp', 1, 64, 0),
  ],
)
def test_gpus(kind, axis, fsdp, tensor, expected):
  assert _seconds(kind, (axis,), fsdp, tensor) == pytest.approx(expected)


@pytest.mark.parametrize(
  ('kind', 'axis', 'expected'),
  [
    # v5p:8x8x8, links of 100 GB/s: tensor is one ring of 8, fsdp two.
    ('all-gather', 'tensor', 7 / 8 / 200),
    ('all-gather', 'fsdp', 63 / 64 / 400),
    ('reduce-scatter', 'fsdp', 64 * 63 / 64 / 400),
    ('all-to-all', 'fsdp', 8 / 8 / 100),
    ('collective-permute', 'tensor', 1 / 100),
  ],
)
def test_a_torus(kind, axis, expected):
  slice_ = tpu_gpu_configs.load('v5p_1024')
  assert _seconds(kind, (axis,), 64, 8, slice_) == pytest.approx(expected)


@pytest.mark.parametrize(
  ('name', 'tensor', 'expected'),
  [
    # Rings, with two links to a chip.
    ('v5p_256', 1, {'tensor': (), 'fsdp': ((4, 2), (4, 2), (8, 2))}),
    ('v5p_256', 4, {'tensor': ((4, 2),), 'fsdp': ((4, 2), (8, 2))}),
    ('v5p_256', 16, {'tensor': ((4, 2), (4, 2)), 'fsdp': ((8, 2),)}),
    ('v6e_256', 16, {'tensor': ((16, 2),), 'fsdp': ((16, 2),)}),
    # A host. The others of its row are every second chip and share its ring.
    ('v6e_256', 4, {'tensor': ((2, 1), (2, 1)), 'fsdp': ((8, 1), (8, 1))}),
    ('v6e_256', 8, {'tensor': ((4, 1), (2, 1)), 'fsdp': ((4, 0.5), (8, 1))}),
    ('v6e_256', 2, {'tensor': ((2, 1),), 'fsdp': ((8, 1), (16, 2))}),
    ('v6e_256', 32, {'tensor': ((16, 2), (2, 1)), 'fsdp': ((8, 1),)}),
  ],
)
def test_axes_on_a_torus(name, tensor, expected):
  slice_ = tpu_gpu_configs.load(name)
  mesh = config.MeshConfig(slice_.devices // tensor, tensor)
  assert links.sides(slice_, mesh) == expected


def test_a_host_of_a_pod_shares_its_rings():
  """v6e:16x16 as 64 × 4."""
  slice_ = tpu_gpu_configs.load('v6e_256')
  link = slice_.chip.link_bandwidth / 1e9
  within = _seconds('all-gather', ('tensor',), 64, 4, slice_)
  assert within == pytest.approx(3 / 4 / (2 * link))
  across = _seconds('all-gather', ('fsdp',), 64, 4, slice_)
  assert across == pytest.approx(63 / 64 / (2 * link))
  exchanged = _seconds('all-to-all', ('fsdp',), 64, 4, slice_)
  assert exchanged == pytest.approx(8 / (4 * link))


def test_an_axis_that_fills_no_box_is_refused():
  slice_ = tpu_gpu_configs.load('v6e_256')
  with pytest.raises(ValueError, match=r'mesh.tensor=3 is no product'):
    links.sides(slice_, config.MeshConfig(85, 3))


def _model(**fields):
  return model_config.ModelConfig(
    vocab_size=16,
    d_model=8,
    num_heads=2,
    head_dim=4,
    d_ff=32,
    layout='L0 G1',
    window=4,
    **fields,
  )


# Two layers of q, k, v, o (64 + 32 + 32 + 64) and in, out (256 + 256).
_MATRICES = 2 * (64 + 32 + 32 + 64 + 512)
_HEAD = 8 * 16
# A window of 4 in a row of 8: 1, 2, 3, 4, 4, 4, 4, 4; the global one 1 … 8.
_SEEN = 26 / 8 + 36 / 8
_ATTENTION = 4 * 2 * 4 * _SEEN


def test_operations_without_remat():
  counted = step_time.operations(_model(), 10, 8, step_time.ARMS[0])
  assert counted['int8'] == 0
  assert counted['bf16'] == pytest.approx(
    10 * (6 * _MATRICES + 6 * _HEAD + 3.5 * _ATTENTION)
  )


def test_operations_of_int8_both_ways_with_remat():
  arm = next(x for x in step_time.ARMS if x.name == 'int8 both ways')
  counted = step_time.operations(_model(remat='layer'), 10, 8, arm)
  again = _MATRICES - 2 * 256  # The last matmul of each layer is not repeated.
  assert counted['int8'] == pytest.approx(
    10 * (2 * _MATRICES + 2 * again + 2 * _MATRICES + _ATTENTION)
  )
  assert counted['bf16'] == pytest.approx(
    10 * (2 * _MATRICES + 6 * _HEAD + 3.5 * _ATTENTION)
  )


@pytest.mark.parametrize('name', ['int8 forward', 'int8 both ways'])
def test_an_int8_head(name):
  arm = next(x for x in step_time.ARMS if x.name == name)
  model, coded = _model(), _model()
  coded.quantization.embedding = 'int8'
  floats, codes = (step_time.operations(x, 10, 8, arm) for x in (model, coded))
  int8 = 2 if name == 'int8 both ways' else 1
  assert codes['int8'] - floats['int8'] == 10 * int8 * 2 * _HEAD
  assert floats['bf16'] - codes['bf16'] == 10 * int8 * 2 * _HEAD
  assert step_time.operations(
    coded, 10, 8, step_time.ARMS[0]
  ) == step_time.operations(model, 10, 8, step_time.ARMS[0])


@pytest.mark.parametrize(
  ('remat', 'name', 'expected'),
  [
    # D is 8: 16 bytes in bf16, 12 as codes and a scale.
    ('none', 'bf16', 8 * 16),
    ('none', 'int8 forward', 2 * 12 + 6 * 16),
    ('layer', 'bf16 + Squinch', 11 * 16),
    # Codes enter twice and again when recomputed; backward there are floats.
    ('layer', 'int8 forward', 4 * 12 + 7 * 16),
    ('layer', 'int8 both ways', 4 * 12 + 7 * 16),
  ],
)
def test_bytes_of_the_sequence(remat, name, expected):
  arm = next(x for x in step_time.ARMS if x.name == name)
  assert step_time.sequence_bytes(_model(remat=remat), arm) == expected


def test_seconds_of_a_step():
  chip = accelerator.Chip(
    name='x',
    platform='cuda',
    hbm_bytes=1.0,
    matmul_bf16=1.0,
    matmul_int8=2.0,
    node_bandwidth=10.0,
    network_bandwidth=1.0,
  )
  slice_ = dataclasses.replace(H100, chip=chip, hosts=2, devices_per_host=2)
  mesh = config.MeshConfig(2, 2)
  by_name = step_time.table(_model(), slice_, mesh, rows=2, length=8)
  bf16, squinch = by_name['bf16'], by_name['bf16 + Squinch']
  weights = _MATRICES / 2
  # A gather and a reduce-scatter, each half of it over the network.
  assert bf16.fsdp == pytest.approx(weights * 2 / 2 + weights * 2 / 2)
  assert squinch.fsdp == pytest.approx(weights * 2 / 2 + weights * 0.75 / 2)
  # [1, 8, 8] in bf16, half of it over NVLink, eight times in two layers.
  assert bf16.tensor == pytest.approx(2 * 8 * (8 * 8 * 2) / 2 / 10)
  assert bf16.matmul == pytest.approx(
    step_time.operations(_model(), 2 * 8 / 4, 8, step_time.ARMS[0])['bf16']
  )
  assert bf16.apart == bf16.matmul + bf16.fsdp + bf16.tensor
  assert bf16.overlapped == max(bf16.matmul + bf16.tensor, bf16.fsdp)
  # A fifth of a byte, once per step, and nothing else to wait for.
  ternary = by_name['ternary updates + Squinch']
  assert ternary.update == pytest.approx(weights * 0.2 / 2)
  assert ternary.fsdp == pytest.approx(weights * (0.75 + 0.2) / 2)
  assert ternary.overlapped == ternary.update + max(
    ternary.matmul + ternary.tensor, ternary.fsdp - ternary.update
  )
  longer = step_time.table(_model(), slice_, mesh, 2, 8, microbatches=3)
  again = longer['ternary updates + Squinch']
  assert again.update == ternary.update
  assert again.fsdp == pytest.approx(weights * (3 * 0.75 + 0.2) / 2)
  assert by_name['int8 forward'].matmul < bf16.matmul
  # Two of the eight have 12 bytes per token, not 16.
  assert by_name['int8 forward'].tensor == pytest.approx(
    2 * 8 * (2 * 12 + 6 * 16) / 2 / 10
  )


def test_attention_multiplies_what_windows_and_sinks_show():
  model = model_config.ModelConfig(layout='L0:3+2 L1:9 L2:2 G3', max_length=7)
  keys = range(7)
  seen = sum(
    sum(q - k < window or k < sinks for k in keys[: q + 1])
    for window, sinks in ((3, 2), (9, 0), (2, 0), (7, 0))
    for q in keys
  )
  products = 2 * 2 * model.num_heads * model.head_dim
  found = step_time.attention_operations(model, 7)
  assert found == pytest.approx(products * seen / 7)


def _quantize(model, matmul, input_gradient, qk, embedding):
  quantization = model.quantization
  quantization.matmul, quantization.embedding = matmul, embedding
  quantization.input_gradient, quantization.qk = input_gradient, qk
  return model


@pytest.mark.parametrize('remat', ['none', 'layer'])
@pytest.mark.parametrize(
  ('settings', 'int8'),
  [
    (('none', 'bf16', 'none', 'none'), 0),
    # Its gradient and its table are floats where no product is of codes.
    (('none', 'int8', 'none', 'int8'), 0),
    (('int8', 'bf16', 'none', 'none'), 2 * _MATRICES),
    (('int8', 'bf16', 'int8', 'none'), 2 * _MATRICES + _ATTENTION / 2),
    (('none', 'bf16', 'int8', 'none'), _ATTENTION / 2),
    (
      ('int8', 'int8', 'int8', 'int8'),
      4 * _MATRICES + 4 * _HEAD + _ATTENTION / 2,
    ),
  ],
)
def test_a_peak_takes_each_kind_at_its_own_rate(settings, int8, remat):
  model = _quantize(_model(remat=remat), *settings)
  chip = accelerator.Chip('toy', 'cpu', 1.0, peak_bf16=1e3, peak_int8=4e3)
  found = step_time.peak(model, 8, chip)
  total = 6 * _MATRICES + 6 * _HEAD + 3.5 * _ATTENTION
  assert found.token_operations == pytest.approx(total)
  assert found.int8_share == pytest.approx(int8 / total)
  seconds = (total - int8) / 1e3 + int8 / 4e3
  assert found.token_seconds == pytest.approx(seconds)
  assert model.remat == remat


def test_a_device_has_the_figures_of_its_own_chip():
  h100 = H100.chip
  assert tpu_gpu_configs.find_chip('NVIDIA H100 80GB HBM3') is h100
  (said,) = [x for x in h100.description.splitlines() if 'description_str' in x]
  assert said.split('"')[1] in h100.kinds
  # The same name on a slower board.
  assert tpu_gpu_configs.find_chip('NVIDIA H100 PCIe') is None
  assert tpu_gpu_configs.find_chip('cpu') is None
  assert tpu_gpu_configs.find_chip('') is None
  for name in tpu_gpu_configs.names():
    chip = tpu_gpu_configs.load(name).chip
    for kind in chip.kinds:
      assert tpu_gpu_configs.find_chip(kind).name == chip.name
    assert bool(chip.kinds) == (chip.peak_bf16 > 0 < chip.peak_int8)
