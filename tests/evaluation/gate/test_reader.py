"""What a gate reads on a mesh is what it reads on one device."""

import functools

import jax
import numpy as np
import pytest

from kaiju_jax.evaluation.gate import reader
from kaiju_jax.quantization import config as quantization_config
from tests.decoding import mesh_lives
from tests.decoding import toys

FLOAT = quantization_config.none()
CHANNEL = toys.int8(kv_scale='channel', embedding='int8')
# A length that no mesh divides.
LENGTH = 29


def read(config, tensor: int, mode: str):
  """Returns logits of two texts, and what is stored of them by layer."""
  decoder = mesh_lives.decoder(config, tensor, mode)
  tokens_BL = toys.tokens(config, 2)[:, :LENGTH]
  run = decoder.jit(functools.partial(reader.run, decoder))
  hidden_BLD, stored = run(decoder.params, tokens_BL)
  for x in jax.tree.leaves((hidden_BLD, stored)):
    for shard in x.addressable_shards:
      np.testing.assert_array_equal(shard.data, x)
  return decoder.logits(hidden_BLD), stored


def slow(*values):
  return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
  ('tensor', 'mode', 'quantization', 'changes'),
  [
    (2, 'reference', toys.int8(), {'layout': 'G0'}),
    (8, 'fast', FLOAT, {'layout': 'L0+2 G1s', 'num_kv_heads': 2}),
    slow(2, 'fast', toys.int8(matmul_implementation='xla'), {}),
    slow(8, 'reference', toys.int8(), {'dtype': 'bfloat16'}),
    slow(4, 'reference', CHANNEL, {}),
    slow(2, 'reference', toys.int8(), {'num_kv_heads': 4}),
    slow(4, 'fast', FLOAT, {'norms': 'both', 'qkv_bias': True}),
    slow(4, 'fast', FLOAT, {'num_kv_heads': 4, 'feedforward': 'swiglu'}),
  ],
)
def test_a_mesh_reads_what_one_device_reads(
  tensor, mode, quantization, changes
):
  config = mesh_lives.config(quantization, **changes)
  got, one = (read(config, n, mode) for n in (tensor, 1))
  if mode == 'reference':
    jax.tree.map(np.testing.assert_array_equal, got, one)
    return
  # Sums of floats have another order on a mesh: it may be as far from those in
  # one order as one device is.
  got, one, want = (
    (jax.nn.log_softmax(x), kept)
    for x, kept in (got, one, read(config, 1, 'reference'))
  )
  for x, y, exact in zip(*map(jax.tree.leaves, (got, one, want))):
    np.testing.assert_allclose(x, y, rtol=0, atol=1e-4)
    assert measure_error(x, exact) <= 1.25 * measure_error(y, exact)


def measure_error(x: jax.Array, exact: jax.Array) -> float:
  """Returns the root of the mean squared difference."""
  return np.sqrt(np.mean(np.square(np.float64(x) - exact)))
