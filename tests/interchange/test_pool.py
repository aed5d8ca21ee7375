"""A student by means starts as its teacher wherever it is built alike."""

import dataclasses

import jax
import numpy as np
import pytest

from kaiju_jax.interchange import plain
from kaiju_jax.interchange.surgery import check
from kaiju_jax.interchange.surgery import pool
from kaiju_jax.quantization import config as quantization_config
from tests.interchange import toys

TEACHER = toys.changed(toys.PLAIN, num_kv_heads=4, layout='G0 G1 G2 G3')
TOKENS = np.random.default_rng(3).integers(0, 260, (1, 21), dtype=np.int32)


@pytest.fixture(scope='module')
def params():
  """Norms' gains among them, which are not alike in any two layers."""
  return toys.params_of(TEACHER)


@pytest.fixture(scope='module')
def weights(params):
  return plain.weights(params, TEACHER)


def logits_of(params, config):
  return toys.logits(params, config, TOKENS)


@pytest.mark.parametrize('owners', pool.OWNERS)
def test_a_student_built_as_its_teacher_has_its_bits(params, weights, owners):
  found = pool.student(weights, TEACHER, owners)
  jax.tree.map(np.testing.assert_array_equal, found, params)
  # Windows, sinks and int8 change no weight; the block has another shape.
  student = dataclasses.replace(
    TEACHER,
    layout='L0:3+1 G1s L2+2 G3s',
    window=5,
    quantization=quantization_config.QuantizationConfig(bungee=True),
  )
  check.check(TEACHER, student)
  found = pool.student(weights, student, owners)
  again = plain.weights(
    found, dataclasses.replace(student, quantization=TEACHER.quantization)
  )
  for one in 1, 3:
    np.testing.assert_array_equal(again.layers[one].sink_logit_H, np.zeros(4))
  plainer = [one._replace(sink_logit_H=None) for one in again.layers]
  again = again._replace(layers=tuple(plainer))
  jax.tree.map(np.testing.assert_array_equal, again, weights)
  bungee = found['blocks']['layer_1']['attention']['bungee_w_k']
  np.testing.assert_array_equal(bungee, [0])


def test_means_of_equal_heads_change_no_logit(params, weights):
  """Heads that are equal in pairs; half as many are as good."""
  layers = tuple(
    layer._replace(
      **{
        name: getattr(layer, name)[:, [0, 0, 2, 2]]
        for name in ('w_k_DUK', 'w_v_DUK')
      }
    )
    for layer in weights.layers
  )
  paired = weights._replace(layers=layers)
  want = logits_of(plain.params(paired, TEACHER), TEACHER)
  two = dataclasses.replace(TEACHER, num_kv_heads=2)
  np.testing.assert_allclose(
    logits_of(pool.student(paired, two), two),
    want,
    atol=2e-6 * np.abs(want).max(),
  )
  # One head is the mean of two that differ.
  one = dataclasses.replace(TEACHER, num_kv_heads=1)
  other = logits_of(pool.student(paired, one), one)
  assert np.abs(other - want).max() > 1e-2 * np.abs(want).max()


def test_heads_and_layers_become_their_means_by_hand(weights):
  student = dataclasses.replace(TEACHER, num_kv_heads=2, layout='G0 G0 G2 G0')
  found = pool.student(weights, student)
  w_DUK = found['blocks']['layer_0']['attention']['w_k_DUK'][0]
  # What the projection makes of x/rms: gain · W, over layers 0, 1 and 3.
  made = [
    layer.attention_gain_D[:, None, None] * layer.w_k_DUK
    for layer in weights.layers
  ]
  mean = (made[0] + made[1] + made[3]) / 3
  np.testing.assert_allclose(
    weights.layers[0].attention_gain_D[:, None] * w_DUK[:, 1],
    (mean[:, 2] + mean[:, 3]) / 2,
    rtol=1e-5,
    atol=1e-6,
  )
  own = pool.student(weights, student, 'own')
  np.testing.assert_allclose(
    own['blocks']['layer_0']['attention']['w_k_DUK'][0],
    weights.layers[0].w_k_DUK.reshape(48, 2, 2, 8).mean(2),
    rtol=1e-6,
  )
  assert 'w_k_DUK' not in found['blocks']['layer_3']['attention']


def test_a_gain_of_zero_divides_nothing():
  w_DUK = np.ones((2, 1, 1), np.float32)
  found = pool.mean_of_layers(
    [w_DUK, 3 * w_DUK],
    [np.float32([0, 2]), np.float32([1, 1])],
    np.float32([0, 2]),
  )
  assert found.ravel().tolist() == [2, (1 + 1.5) / 2]


@pytest.mark.parametrize(
  'teacher, student, message',
  [
    ({}, {'num_kv_heads': 3}, 'must divide model.num_heads=4'),
    ({'num_kv_heads': 2}, {'num_kv_heads': 4}, 'must divide the 2 heads of'),
    ({'layout': 'G0 G0 G2 G3'}, {}, 'all must make their own keys and values'),
    ({}, {'layout': 'G0 G1'}, r'has 2 layers \(G0 G1\): must have 4'),
    ({}, {'d_model': 64}, "d_model=64: must be 48, the teacher's"),
    ({}, {'vocab_size': 300}, 'vocab_size=300: must be 260'),
    ({}, {'tied_embedding': False}, 'tied_embedding=False: must be True'),
    # What would change more than keys and values.
    ({'qk_norm': 'all'}, {'num_kv_heads': 2}, 'num_kv_heads must be 4 and no'),
    ({'feedforward': 'geglu'}, {'feedforward': 'relu2'}, "must be 'geglu'"),
    # Its local layers turn by another base than its global ones.
    (
      {'layout': 'L0 L1 L2 G3', 'rope_local': 30.0},
      {'layout': 'L0 L1 L2 L3'},
      'layer 3: G in the teacher, L in the student, whose rotary angles differ',
    ),
    (
      {'layout': 'G0 N1 G2 G3'},
      {'layout': 'G0 G1 G2 G3'},
      'layer 1: N in the teacher, G in the student',
    ),
    (
      {'layout': 'G0s G1 G2 G3'},
      {'layout': 'G0 G1s G2 G3'},
      'layer 0: sink_logit in the teacher, none in the student',
    ),
  ],
)
def test_a_student_of_another_kind_is_refused(teacher, student, message):
  teacher = dataclasses.replace(TEACHER, **teacher)
  with pytest.raises(ValueError, match=message):
    check.check(teacher, dataclasses.replace(teacher, **student))


def test_another_word_for_owners_is_refused(weights):
  with pytest.raises(ValueError, match="owners='first': must be one of mean"):
    pool.student(weights, TEACHER, 'first')
