"""Bytes on the wire against what each collective must send by arithmetic."""

import functools

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import pytest

from kaiju_jax.aot import build
from kaiju_jax.aot.hlo import collectives
from kaiju_jax.aot.hlo import text
from kaiju_jax.sharding import config
from kaiju_jax.sharding import mesh as mesh_lib
from tests import compiled

FSDP, TENSOR = 2, 4
MESH = {'fsdp': FSDP, 'tensor': TENSOR}
BOTH = ('fsdp', 'tensor')
ROWS, COLUMNS = 64, 128
SLICES = compiled.on('cpu_8', 'h100_8', 'v5p_128')


@functools.cache
def _mesh(place):
  """Returns a mesh of two by four devices of a slice."""
  devices = compiled.devices(place)[:8]
  return mesh_lib.make(config.MeshConfig(FSDP, TENSOR), devices)


def _read(function, place, dtype):
  """Returns the collectives of `function` on a local block [ROWS, COLUMNS]."""
  mesh = _mesh(place)
  both = P(BOTH, None)
  mapped = jax.shard_map(
    function, mesh=mesh, in_specs=both, out_specs=both, check_vma=False
  )
  x = jax.ShapeDtypeStruct(
    (ROWS * FSDP * TENSOR, COLUMNS),
    dtype,
    sharding=jax.sharding.NamedSharding(mesh, both),
  )
  return build.collectives(build.build(jax.jit(mapped), (x,)), mesh)


def _gather(x, axis):
  return lax.all_gather(x, axis, axis=0, tiled=True)


def _exchange(x, axis):
  return lax.all_to_all(x, axis, 0, 0, tiled=True)


def _scatter(x, axis):
  return lax.psum_scatter(x, axis, scatter_dimension=0, tiled=True)


def _ring(x, axis):
  width = FSDP if axis == 'fsdp' else TENSOR
  return lax.ppermute(x, axis, [(i, (i + 1) % width) for i in range(width)])


_BLOCK = ROWS * COLUMNS


@pytest.mark.parametrize('place', SLICES)
@pytest.mark.parametrize(
  ('kind', 'function', 'dtype', 'axis', 'result', 'sent'),
  [
    # In units of the operand on one device.
    ('all-gather', _gather, 's8', 'fsdp', 2, 1),
    ('all-gather', _gather, 's8', 'tensor', 4, 3),
    ('all-gather', _gather, 'f32', BOTH, 8, 7),
    ('all-to-all', _exchange, 'u8', 'fsdp', 1, 1 / 2),
    ('all-to-all', _exchange, 'u8', 'tensor', 1, 3 / 4),
    ('reduce-scatter', _scatter, 'f32', 'fsdp', 1 / 2, 1 / 2),
    ('reduce-scatter', _scatter, 'f32', 'tensor', 1 / 4, 3 / 4),
    ('all-reduce', lax.psum, 'f32', 'tensor', 1, 2 * 3 / 4),
    ('all-reduce', lax.pmax, 'f32', 'fsdp', 1, 2 * 1 / 2),
    ('collective-permute', _ring, 'u8', 'tensor', 1, 1),
  ],
)
def test_one_collective(place, kind, function, dtype, axis, result, sent):
  names = {'s8': jnp.int8, 'u8': jnp.uint8, 'f32': jnp.float32}

  def f(x):
    # The barriers keep the compiler from moving work across the wire.
    x = lax.optimization_barrier(x)
    return lax.optimization_barrier(function(x, axis))

  (found,) = _read(f, place, names[dtype])
  axes = axis if isinstance(axis, tuple) else (axis,)
  group = functools.reduce(lambda n, a: n * MESH[a], axes, 1)
  operand = _BLOCK * jnp.dtype(names[dtype]).itemsize
  assert (found.kind, found.dtype) == (kind, dtype)
  assert (found.axes, found.group, found.times) == (axes, group, 1)
  assert found.result_bytes == operand * result
  assert found.wire_bytes == operand * sent
  assert found.op_name


@pytest.mark.parametrize('place', SLICES)
def test_loops_multiply(place):
  def f(x):
    def outer(x, _):
      def inner(x, _):
        return _ring(jnp.sin(x), 'tensor'), None

      x, _ = lax.scan(inner, x, length=3)
      return x + lax.psum(jnp.cos(x), 'fsdp'), None

    return lax.scan(outer, x, length=5)[0] * lax.pmax(jnp.max(x), BOTH)

  found = {x.kind: x for x in _read(f, place, jnp.float32) if x.size > 1}
  assert found['collective-permute'].times == 15
  assert found['all-reduce'].times == 5
  assert found['collective-permute'].total == 15 * 4 * _BLOCK
  (scalar,) = (x for x in _read(f, place, jnp.float32) if x.size == 1)
  assert (scalar.axes, scalar.times) == (BOTH, 1)


@pytest.mark.parametrize('place', SLICES)
def test_a_planted_f32_gather_shows(place):
  """A gather of the weight in s8 is allowed; one in f32 beside it is found."""

  def gathered(x, is_planted):
    codes = jnp.round(x).astype(jnp.int8)
    whole = lax.optimization_barrier(_gather(codes, 'fsdp'))
    total = jnp.sum(whole.astype(jnp.float32), axis=0, keepdims=True)
    if is_planted:
      total += jnp.sum(jnp.sin(_gather(x, 'fsdp')), axis=0, keepdims=True)
    return jnp.broadcast_to(total, (ROWS, COLUMNS))

  def wide(is_planted):
    found = _read(lambda x: gathered(x, is_planted), place, jnp.float32)
    return [x for x in found if 'fsdp' in x.axes and x.dtype in ('f32', 'bf16')]

  assert not wide(False)
  (found,) = wide(True)
  assert (found.kind, found.size) == ('all-gather', FSDP * _BLOCK)


def test_totals_are_sorted_sums():
  def of(kind, dtype, times, sent):
    return collectives.Collective(
      kind, dtype, (8,), ('fsdp',), 2, times, 8, sent, True, ''
    )

  assert collectives.totals(
    [
      of('all-gather', 's8', 3, 10.0),
      of('all-to-all', 'u8', 1, 50.0),
      of('all-gather', 's8', 2, 20.0),
    ]
  ) == {
    ('all-gather', 's8', ('fsdp',)): (5, 70.0),
    ('all-to-all', 'u8', ('fsdp',)): (1, 50.0),
  }


_STARTS = """\
HloModule m

%all-reduce-scatter.1 (p: bf16[8,4]) -> bf16[2,4] {
  %p = bf16[8,4]{1,0} parameter(0)
  %zero = s32[] constant(0)
  %whole = bf16[8,4]{1,0} all-reduce(%p), channel_id=3, replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
  ROOT %mine = bf16[2,4]{1,0} dynamic-slice(%whole, %zero, %zero), dynamic_slice_sizes={2,4}
}

ENTRY %main (a: s8[2,4], b: f32[3], c: bf16[8,4]) -> s8[4,4] {
  %a = s8[2,4]{1,0} parameter(0)
  %b = f32[3]{0} parameter(1)
  %c = bf16[8,4]{1,0} parameter(2)
  %gather = ((s8[2,4]{1,0}, f32[3]{0}), (s8[4,4]{1,0}, f32[6]{0})) all-gather-start(%a, %b), channel_id=1, replica_groups=[4,2]<=[2,4]T(1,0), dimensions={0}
  %gathered = (s8[4,4]{1,0}, f32[6]{0}) all-gather-done(%gather)
  %sum = (f32[3]{0}, bf16[8,4]{1,0}) all-reduce-start(%b, %c), channel_id=2, replica_groups={}, to_apply=%add
  %alone = f32[3]{0} all-reduce(%b), replica_groups={{0},{1},{2},{3},{4},{5},{6},{7}}, to_apply=%add
  %scattered = bf16[2,4]{1,0} fusion(%c), kind=kCustom, calls=%all-reduce-scatter.1
  ROOT %out = s8[4,4]{1,0} get-tuple-element(%gathered), index=0
}
"""  # noqa: E501


def test_several_arrays_and_a_tpus_fused_reduce_scatter():
  found = collectives.read(text.parse(_STARTS), MESH)
  assert [(x.kind, x.dtype, x.shape, x.group, x.wire_bytes) for x in found] == [
    ('all-gather', 's8', (4, 4), 2, 8.0),
    ('all-gather', 'f32', (6,), 2, 12.0),
    ('all-reduce', 'f32', (3,), 8, 21.0),
    ('all-reduce', 'bf16', (8, 4), 8, 112.0),
    ('reduce-scatter', 'bf16', (2, 4), 4, 48.0),
  ]
  # Several arrays are one launch.
  assert collectives.launches(text.parse(_STARTS), MESH) == {
    'all-gather': 1,
    'all-reduce': 1,
    'reduce-scatter': 1,
  }


_SOME = """\
HloModule m

ENTRY %main (a: u8[8,4]) -> u8[8,4] {
  %a = u8[8,4]{1,0} parameter(0)
  ROOT %out = u8[8,4]{1,0} collective-permute(%a), channel_id=1, source_target_pairs={{0,1},{1,0},{2,2},{3,3}}
}
"""  # noqa: E501


def test_a_permutation_costs_what_the_devices_that_send_send():
  """Two of eight send; two keep their own; the mean device sends a quarter."""
  (found,) = collectives.read(text.parse(_SOME), MESH)
  assert (found.kind, found.group) == ('collective-permute', 2)
  assert found.axes == ('tensor (2 of 4)',)
  assert found.wire_bytes == 32 * 2 / 8
