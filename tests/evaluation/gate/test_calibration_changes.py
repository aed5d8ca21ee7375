"""How two models' calibrations are compared."""

import copy
import dataclasses
import math

import jax
import numpy as np
import pytest

from kaiju_jax.evaluation.gate import calibration_changes
from kaiju_jax.model import deployed
from kaiju_jax.quantization import int8
from tests.evaluation.gate import small_models

CONFIG = dataclasses.replace(
  small_models.config(kv='int8', kv_scale='channel'), layout='L0 G1 L2 G3'
)


@pytest.fixture(scope='module')
def params():
  """Four layers of the toy's two, in two repeats, with codes and limits."""
  drawn = small_models.params('channel')
  stack = jax.tree.map(lambda x: np.concatenate([x, 2 * x]), drawn['blocks'])
  quantization = dataclasses.replace(
    CONFIG.quantization, matmul='int8', clamp_hidden='weight_rms'
  )
  config = dataclasses.replace(CONFIG, quantization=quantization)
  return deployed.quantize({**drawn, 'blocks': stack}, config)


def change(params, layer, name, function):
  """Returns parameters in which one limit or scale is another."""
  changed = copy.copy(jax.tree.map(np.array, params))
  group, name = name.split('.')
  found = changed['blocks'][layer][group]
  x = found[name]
  if isinstance(x, int8.Quantized):
    found[name] = x._replace(scales=function(np.array(x.scales)))
  else:
    found[name] = function(np.array(x))
  return changed


def moved(before, after):
  found = calibration_changes.compare(
    *map(calibration_changes.read, (before, after))
  )
  return {(x.layer, x.name): x for x in found if x.is_beyond}


def test_a_calibration_is_scales_and_limits_of_each_layer(params):
  found = calibration_changes.read(params)
  assert {layer for layer, _ in found} == {0, 1, 2, 3}
  names = {name for layer, name in found if layer == 3}
  assert names == {
    *(f'attention.{x}_limit_K' for x in 'kv'),
    *(f'attention.w_{x}' for x in ('k_DK', 'v_DK', 'q_DHK', 'o_DHK')),
    *('feedforward.hidden_limit', 'feedforward.w_in_DF'),
    'feedforward.w_out_DF',
  }
  assert found[1, 'attention.k_limit_K'].shape == (16,)
  assert found[1, 'attention.w_q_DHK'].shape == (32,)
  # Layers 2 and 3 are the second repeat, whose weights are twice as large.
  first, second = (found[x, 'attention.w_v_DK'] for x in (1, 3))
  np.testing.assert_allclose(second, 2 * first, rtol=1e-6)
  assert calibration_changes.read(small_models.params()) == {}


def test_equal_models_have_moved_nothing(params):
  found = calibration_changes.compare(*[calibration_changes.read(params)] * 2)
  assert all((x.median, x.largest) == (1, 1) for x in found)
  assert moved(params, params) == {}


def double_one(x):
  x[1, ..., 3] *= 2.5
  return x


def test_what_moved_is_named_by_layer(params):
  wider = change(params, 'layer_1', 'attention.k_limit_K', double_one)
  found = moved(params, wider)
  assert list(found) == [(3, 'attention.k_limit_K')]
  one = found[3, 'attention.k_limit_K']
  assert one.median == 1 and one.largest == pytest.approx(2.5)
  # Narrower is as far as wider.
  assert moved(wider, params) == found
  all_of_it = change(
    params, 'layer_0', 'feedforward.w_in_DF', lambda x: 1.3 * x
  )
  found = moved(params, all_of_it)
  assert set(found) == {(n, 'feedforward.w_in_DF') for n in (0, 2)}
  little = change(params, 'layer_0', 'feedforward.w_in_DF', lambda x: 1.2 * x)
  assert moved(params, little) == {}


def test_outlier_channels_are_counted(params):
  def spread(x):
    x[0, ..., 0] = 19 * np.median(x[0])
    return x

  def more(x):
    x[0, ..., 0] = 21 * np.median(x[0])
    return x

  name = 'attention.v_limit_K'
  before = change(params, 'layer_0', name, spread)
  after = change(params, 'layer_0', name, more)
  [one] = moved(before, after).values()
  assert (one.layer, one.before, one.after) == (0, 0, 1)
  assert one.largest < calibration_changes.CHANNEL
  assert moved(after, before) == {}


def test_what_one_model_lacks_is_named_and_other_shapes_are_refused(params):
  fewer = copy.copy(params)
  layer = dict(params['blocks']['layer_1'])
  layer['attention'] = {
    k: v for k, v in layer['attention'].items() if k != 'k_limit_K'
  }
  fewer = {**params, 'blocks': {**params['blocks'], 'layer_1': layer}}
  found = moved(params, fewer)
  assert set(found) == {(n, 'attention.k_limit_K') for n in (1, 3)}
  assert all(x.median == math.inf for x in found.values())
  other = change(
    params, 'layer_1', 'attention.k_limit_K', lambda x: x[..., :-1]
  )
  with pytest.raises(ValueError, match=r'layer 1, .*: 16 and'):
    moved(params, other)
