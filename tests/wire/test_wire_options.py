"""What the config says of a weight's wire is what the wire does."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.model import config as model_config
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.quantization import int8
from kaiju_jax.wire import codec
from kaiju_jax.wire import fsdp
from kaiju_jax.wire import squinch
from tests import meshes
from tests.model import rows

P = jax.sharding.PartitionSpec
WIDTH, D, F = 4, 64, 16


@pytest.fixture(scope='module')
def gradients_WDF():
  """What each worker would send: four octaves of either sign."""
  keys = jax.random.split(jax.random.key(0))
  size = jnp.exp2(4 * jax.random.uniform(keys[0], (WIDTH, D, F)))
  return size * jnp.sign(jax.random.normal(keys[1], (WIDTH, D, F)))


def on_workers(functions, gradients_WDF):
  """Returns the owners' shards of each function of a worker's gradient."""
  spread = jax.shard_map(
    lambda g_WDF: jax.tree.map(lambda function: function(g_WDF[0]), functions),
    mesh=meshes.mesh_of(WIDTH),
    in_specs=P('fsdp'),
    out_specs=P('fsdp'),
    check_vma=False,
  )
  return jax.device_get(jax.jit(spread)(gradients_WDF))


def gathered(wire, g_DF):
  """The gradient of what a gathered weight is multiplied by."""
  w_DF = jnp.zeros((D // WIDTH, F))
  return jax.grad(lambda w: jnp.sum(fsdp.gather(w, wire).carrier * g_DF))(w_DF)


def followed(wire, g_DF):
  """The same of a weight that every device holds."""
  replica = int8.Quantized(jnp.zeros((D, F), jnp.int8), jnp.ones((1, F)))
  w_DF = jnp.zeros((D // WIDTH, F))
  return jax.grad(
    lambda w: jnp.sum(fsdp.follow(replica, w, wire).carrier * g_DF)
  )(w_DF)


def named(gradients, header):
  return codec.choose(
    quantization_config.QuantizationConfig(
      wire_gradients=gradients, wire_header=header
    )
  )


ELEMENTS = {
  'squinch': 'zero',
  'squinch_floor': 'floor',
  'squinch_fitted': 'fitted',
}
CODECS = list(itertools.product(ELEMENTS, ('ln6', 'quarter')))


@pytest.fixture(scope='module')
def reduced(gradients_WDF):
  """By codec, what the collective itself makes of the gradients."""
  functions = {
    (gradients, header): functools.partial(
      squinch.reduce_scatter,
      axis='fsdp',
      elements=ELEMENTS[gradients],
      header=header,
    )
    for gradients, header in CODECS
  }
  return on_workers(functions, gradients_WDF)


@pytest.mark.parametrize('way', [gathered, followed])
def test_gradients_cross_in_the_codec_that_is_named(
  way, gradients_WDF, reduced
):
  functions = {
    (gradients, header): functools.partial(
      way,
      fsdp.Wire('DF', 'D', 'float32', True, 'int8', named(gradients, header)),
    )
    for gradients, header in CODECS
  }
  got = on_workers(functions, gradients_WDF)
  for mine, other in itertools.product(CODECS, CODECS):
    is_same = np.array_equal(got[mine], reduced[other])
    assert is_same == (mine == other), (mine, other)


@pytest.mark.parametrize('weights', ['int8', 'ternary'])
def test_every_weight_has_the_config_s_wire(weights, monkeypatch):
  seen = []
  gather = fsdp.gather

  def recording(w, wire):
    seen.append(wire)
    return gather(w, wire)

  monkeypatch.setattr(fsdp, 'gather', recording)
  quantization = quantization_config.QuantizationConfig(
    wire_weights=weights,
    wire_gradients='squinch_floor',
    wire_header='quarter',
  )
  model = transformer.Transformer(
    model_config.ModelConfig(
      d_model=16,
      layout='L0',
      num_heads=2,
      head_dim=8,
      d_ff=32,
      quantization=quantization,
    )
  )
  batch = rows.packed_batch([[8]], 8, 16)
  jax.eval_shape(
    model.init, jax.random.key(0), batch.tokens_BL, batch.visibility()
  )
  assert {wire.letters for wire in seen} == {'DHK', 'DK', 'DF', 'DV'}
  for wire in seen:
    assert wire.weights == weights
    assert wire.gradients == codec.Codec('squinch', 'floor', 'quarter')


def test_a_header_of_no_codec_is_refused():
  quantization = quantization_config.QuantizationConfig(wire_header='ln2')
  config = model_config.ModelConfig(quantization=quantization)
  with pytest.raises(
    ValueError, match=r"wire_header='ln2': .*'ln6', 'quarter'"
  ):
    model_config.check(config)
