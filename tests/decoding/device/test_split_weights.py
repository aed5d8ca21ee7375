"""Weights of several devices: each device gets its part, and no more."""

import jax
import numpy as np
import pytest

from kaiju_jax.decoding.device import packed
from kaiju_jax.decoding.device import reference
from kaiju_jax.decoding.device import weights
from kaiju_jax.model import deployed
from kaiju_jax.quantization import int8
from kaiju_jax.sharding import config as sharding_config
from kaiju_jax.sharding import mesh as mesh_lib
from kaiju_jax.sharding import rules
from tests import meshes
from tests.decoding import toys

DEVICES = 8
# What its devices hold of a dimension of each letter; others are whole.
SPLIT = 'FHV'


def config(kv_heads=1, int8=(), **changes):
  quantization = toys.int8(**{'embedding': 'int8', 'bungee': True} | dict(int8))
  return toys.config(
    layout='L0 L0',
    vocab_size=64,
    num_heads=24,
    num_kv_heads=kv_heads,
    d_ff=40,
    quantization=quantization,
    **changes,
  )


GATED = {
  'int8': {'clamp_hidden': 'none'},
  'feedforward': 'swiglu',
  'tied_embedding': False,
}
FLOATS = {'matmul': 'none', 'embedding': 'none'}


def split(params):
  """Returns parameters on a mesh of eight."""
  mesh = mesh_lib.make(sharding_config.MeshConfig(tensor=DEVICES))
  return jax.device_put(params, rules.shardings(params, mesh, rules.IN_USE))


def part(path, x) -> int:
  """Returns the bytes of one device's part of a whole array."""
  letters = rules.name_of(path).rpartition('_')[2]
  is_split = any(
    letter in SPLIT and size > 1 for letter, size in zip(letters, x.shape)
  )
  return x.nbytes // DEVICES if is_split else x.nbytes


@pytest.mark.parametrize(
  'arm',
  [
    config(),
    config(3, {'matmul': 'weights'}),
    config(8, **GATED),
    config(3, qkv_bias=True, tied_embedding=False),
    config(8, FLOATS, dtype='bfloat16'),
  ],
  ids=['one', 'weights', 'gated', 'biases', 'floats'],
)
def test_parts_put_together_are_the_weights_of_one_device(arm):
  masters = toys.drawn(arm)
  wanted = packed.unpack(weights.make_ready(arm, jax.jit, 'fast')(masters))
  is_coded = arm.quantization.matmul != 'none'
  given = deployed.quantize(masters, arm) if is_coded else masters
  given = jax.tree.map(np.asarray, given)
  ready = weights.make_ready(arm, jax.jit, 'fast', DEVICES)
  # Balanced keys are made by the host's CPU, here the first device. Nothing
  # else goes to a device before it is split.
  guard, devices = 'disallow', jax.devices()
  if arm.qkv_bias:
    guard, devices = 'allow', devices[1:]
  before = meshes.held(devices)
  with jax.transfer_guard_host_to_device(guard):
    made = ready(given)
  assert all(isinstance(x, np.ndarray) for x in jax.tree.leaves(made))
  # A cache of functions may let an earlier test's arrays go.
  between = meshes.held(devices)
  assert all(now <= before[at] for at, now in between.items())
  parts = split(made)
  leaves = jax.tree_util.tree_leaves_with_path(made)
  share = sum(part(path, x) for path, x in leaves)
  assert {now - between[at] for at, now in meshes.held(devices).items()} == {
    share
  }
  assert share < sum(x.nbytes for _, x in leaves) / 3

  def compare(path, x, want):
    if getattr(path[-1], 'name', '') == 'columns':
      x = np.asarray(x)
      assert x.shape == (*want.shape[:-1], DEVICES)
      x = x.sum(axis=-1, keepdims=True, dtype=np.int32)
    assert x.dtype == want.dtype
    np.testing.assert_array_equal(x, want)

  jax.tree_util.tree_map_with_path(compare, parts, wanted)
  # Masters become codes in the host's memory, to the same bits.
  jax.tree.map(np.testing.assert_array_equal, ready(masters), made)


def test_a_device_has_the_sums_of_its_own_columns():
  arm = config()
  masters = toys.drawn(arm)
  made = weights.make_ready(arm, jax.jit, 'fast', DEVICES)(masters)
  w = split(made)['blocks']['layer_1']['feedforward']['w_out_DF']
  assert isinstance(w, int8.Quantized)
  for codes, columns, scales in zip(
    *(x.addressable_shards for x in (w.codes, w.columns, w.scales))
  ):
    sums = np.asarray(codes.data).astype(np.int32).sum(axis=1, keepdims=True)
    assert codes.data.shape == (32, 5) and scales.data.shape == (32, 1)
    np.testing.assert_array_equal(columns.data, sums)
  # Two devices are several.
  made = weights.make_ready(arm, jax.jit, 'fast', 2)(masters)
  assert all(isinstance(x, np.ndarray) for x in jax.tree.leaves(made))


def test_the_reference_mode_prepares_weights_in_order():
  arm = config()
  masters = toys.drawn(arm)
  wanted, made = (
    weights.make_ready(arm, reference.jit, 'reference', devices)(masters)
    for devices in (1, DEVICES)
  )
  name = 'layer_0'
  limits = [x['blocks'][name]['feedforward'] for x in (wanted, made)]
  assert limits[0]['hidden_limit'] == limits[1]['hidden_limit']
  np.testing.assert_array_equal(*(x['w_out_DF'].codes for x in limits))


def test_a_process_without_the_cpu_is_told_what_to_set(monkeypatch):
  def refuse(backend):
    raise RuntimeError(backend)

  monkeypatch.setattr(jax, 'local_devices', refuse)
  with pytest.raises(ValueError, match='JAX_PLATFORMS'):
    weights.on_host()
