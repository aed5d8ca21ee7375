"""Gradients reduced once per microbatch or once per step: bytes and memory.

The two weights of a feed-forward, over four microbatches. Once per step sends a
quarter of the bytes, both ways, and holds all full weights and gradients at the
same time.
"""

import functools
import math

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
import pytest

from kaiju_jax.aot import build
from kaiju_jax.quantization import qat
from kaiju_jax.sharding import config as sharding_config
from kaiju_jax.sharding import mesh as mesh_lib
from kaiju_jax.wire import fsdp
from tests import compiled

# This explains a choice: gradients cross once per microbatch. No code reads it.
pytestmark = pytest.mark.slow

A, B, N, D, F = 4, 4, 8, 256, 512
WIDTH = 8
IN = fsdp.Wire('DF', 'D', 'bfloat16', int8=True)
OUT = fsdp.Wire('DF', 'F', 'bfloat16', int8=True)


def gathered(shards):
  w_in_DF, w_out_DF = shards
  return fsdp.gather(w_in_DF, IN), fsdp.gather(w_out_DF, OUT)


def layer(x_BD, weights):
  w_in_DF, w_out_DF = weights
  hidden_BF = jax.nn.relu(qat.einsum('BD,DF->BF', x_BD, w_in_DF))
  return x_BD + qat.einsum('BF,DF->BD', hidden_BF, w_out_DF)


def loss(weights_N, x_BD, of_layer):
  """Returns a loss of N layers, whose weights are `of_layer(weights_N[n])`."""

  @jax.checkpoint
  def run(x_BD, weights):
    return layer(x_BD, of_layer(weights)), None

  x_BD, _ = lax.scan(run, x_BD, weights_N)
  return jnp.mean(jnp.square(x_BD.astype(jnp.float32)))


def once_a_microbatch(shards_N, x_ABD):
  def add(sums_N, x_BD):
    gradient_N = jax.grad(loss)(shards_N, x_BD, gathered)
    return jax.tree.map(jnp.add, sums_N, gradient_N), None

  return lax.scan(add, jax.tree.map(jnp.zeros_like, shards_N), x_ABD)[0]


def once_a_step(shards_N, x_ABD):
  def whole_loss(shards_N):
    weights_N = lax.map(gathered, shards_N)
    return lax.scan(
      lambda total, x_BD: (total + loss(weights_N, x_BD, tuple), None),
      0.0,
      x_ABD,
    )[0]

  return jax.grad(whole_loss)(shards_N)


@functools.cache
def bytes_of(way, place):
  devices = compiled.devices(place)
  mesh = mesh_lib.make(sharding_config.MeshConfig(WIDTH, 1), devices)

  def abstract(shape, dtype, *axes):
    spec = NamedSharding(mesh, PartitionSpec(*axes))
    return jax.ShapeDtypeStruct(shape, dtype, sharding=spec)

  weight = abstract((N, D, F), jnp.float32, None, 'fsdp')
  x_ABD = abstract((A, WIDTH * B, D), jnp.bfloat16, None, 'fsdp')
  shards = PartitionSpec(None, 'fsdp')
  step = jax.shard_map(
    way,
    mesh=mesh,
    in_specs=(shards, shards),
    out_specs=shards,
    check_vma=False,
  )
  program = build.build(jax.jit(step), ((weight, weight), x_ABD))
  sent = {}
  for each in build.collectives(program, mesh):
    if each.dtype in ('u8', 's8'):
      sent[each.dtype] = sent.get(each.dtype, 0) + each.total
  return sent, program.memory.temporary


@pytest.mark.parametrize('place', compiled.on('cpu_8', 'h100_8'))
def test_bytes_and_memory(place):
  weights = 2 * N * D * F
  crossing = weights * (WIDTH - 1) / WIDTH
  sent, often = bytes_of(once_a_microbatch, place)
  # Codes cross forward, and again where remat recomputes.
  assert sent == {'s8': 2 * A * crossing, 'u8': A * 0.75 * crossing}
  sent, rarely = bytes_of(once_a_step, place)
  assert sent == {'s8': crossing, 'u8': 0.75 * crossing}
  # For every weight one more code and one more bfloat16 gradient.
  assert rarely - often > 3 * weights * (N - 1) / N


def test_sums_are_the_same():
  mesh = mesh_lib.make(sharding_config.MeshConfig(1, 1), jax.devices()[:1])
  keys = jax.random.split(jax.random.key(0), 3)
  w_in_NDF = jax.random.normal(keys[0], (N, D, F)) / math.sqrt(D)
  w_out_NDF = jax.random.normal(keys[1], (N, D, F)) / math.sqrt(F)
  x_ABD = jax.random.normal(keys[2], (A, B, D), jnp.bfloat16)
  gradients = []
  for way in once_a_microbatch, once_a_step:
    step = jax.shard_map(
      way,
      mesh=mesh,
      in_specs=PartitionSpec(),
      out_specs=PartitionSpec(),
      check_vma=False,
    )
    gradients.append(jax.jit(step)((w_in_NDF, w_out_NDF), x_ABD))
  for often, rarely in zip(*gradients):
    error = jnp.linalg.norm(often - rarely) / jnp.linalg.norm(often)
    assert error < 0.01
