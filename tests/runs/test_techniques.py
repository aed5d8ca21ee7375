"""The loss of each of a student's techniques is that of the whole model."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from kaiju_jax import visibility
from kaiju_jax.interchange import plain
from kaiju_jax.interchange.surgery import pool
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.runs import techniques
from tests.interchange import toys

# Both kinds of layers turn alike, as a student's do (`uptrain.student_of`).
TEACHER = toys.changed(
  toys.PLAIN, num_kv_heads=2, layout='G0 G1 G2', rope_local=50, rope_global=50
)
FLOATS = quantization_config.none()
TOKENS = np.random.default_rng(3).integers(0, 260, 140, np.int32)
ALONE = techniques.Technique('', TEACHER.layers(), 2, FLOATS)
INT8 = quantization_config.QuantizationConfig(
  clamp_hidden='none', clamp_input='none'
)


def student(layout='G0 G1 G2', heads=2, quantization=FLOATS):
  return dataclasses.replace(
    TEACHER, layout=layout, num_kv_heads=heads, quantization=quantization
  )


def loss_of(weights, config):
  """Returns the loss of two rows of 64 tokens, by whole passes."""
  rows_BL = TOKENS[:128].reshape(2, 64)
  params = pool.student(weights, config)
  seen = visibility.concatenate([visibility.causal(64)] * 2)
  model = transformer.Transformer(config)
  logits_BLV = jax.jit(lambda p: model.apply({'params': p}, rows_BL, seen))(
    params
  )
  lost_BLV = -jax.nn.log_softmax(logits_BLV[:, :-1])
  return float(
    np.take_along_axis(lost_BLV, rows_BL[:, 1:, None], axis=-1).mean()
  )


def test_losses_are_those_of_whole_models_cheapest_first():
  weights = plain.weights(toys.params_of(TEACHER), TEACHER)
  wanted = student('L0:3+2 L0:3+2 G2', 1, INT8)
  make = functools.partial(pool.pool_layers, weights)
  said = techniques.measure(weights, TEACHER, wanted, make, TOKENS, (4, 64))
  base = loss_of(weights, TEACHER)
  assert said[0].startswith('  loss of 126 tokens')
  assert said[0].endswith(f'{base:.4f}')
  found = [words(line) for line in said[1:]]
  clamps = 'clamp_input', 'clamp_hidden'
  clamped = dataclasses.replace(FLOATS, **dict.fromkeys(clamps, 'input_std'))
  want = {
    'int8': student(quantization=INT8),
    '(left off) clamps at 8 and 24 times the rms': student(
      quantization=clamped
    ),
    'windows': student('L0:3 L1:3 G2'),
    'windows with sinks': student('L0:3+2 L1:3+2 G2'),
    '2 heads of keys and values as 1': student(heads=1),
    'layer 1 reads layer 0': student('G0 G0 G2'),
    'together, the student': wanted,
  }
  assert {name for name, _ in found} == set(want)
  for name, rise in found:
    assert rise == pytest.approx(loss_of(weights, want[name]) - base, abs=2e-4)
  assert found[-1][0] == 'together, the student'
  assert [rise for _, rise in found[:-1]] == sorted(x for _, x in found[:-1])
  assert dict(found)['windows'] != dict(found)['windows with sinks']


def test_a_student_without_techniques_shows_clamps_alone():
  (one,) = techniques.list_techniques(ALONE, student())
  assert one.name.startswith('(left off)')
  assert one.quantization.clamp_hidden == 'input_std'
  given = dataclasses.replace(FLOATS, clamp_input='input_std', clamp_input_k=3)
  (one,) = techniques.list_techniques(ALONE, student(quantization=given))
  assert one.name == 'clamps at 3 and 24 times the rms'
  assert one.quantization == given


def test_layers_that_share_across_kinds_are_measured_as_the_students():
  of = (
    layers_lib.Layer(5, 0),
    layers_lib.Layer(None, 1),
    *TEACHER.layers()[2:],
  )
  teacher = ALONE._replace(layers=of)
  found = techniques.list_techniques(teacher, student('G0 G0 G2'))
  layers = {one.name: layers_lib.draw(one.layers) for one in found}
  assert layers['layer 1 reads layer 0'] == 'G0 G0 G2'
  assert layers['windows'] == 'G0 G1 G2'


def words(line):
  loss, _, name = line.strip().partition('  ')
  return name, float(loss)
