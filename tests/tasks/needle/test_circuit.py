"""The readings of a circuit, on models whose heads were made by hand."""

import functools

import jax
import numpy as np
import pytest

from kaiju_jax.data import packing
from kaiju_jax.evaluation import induction
from kaiju_jax.model import config as model_config
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.tasks.needle import circuit
from kaiju_jax.tasks.needle import questions as needle

K1, K2 = needle.KEYS[:2]
V1, V2 = needle.VALUES[:2]
_LETTERS = {'_': needle.BOS, 'a': K1, 'b': K2, 'A': V1, 'B': V2}
# Where a token's content, and what a head copies of the token before, lie.
_HERE, _BEFORE, _MEAN = slice(0, 8), slice(8, 16), 16


def rows_of(*documents):
  """One row of documents, whose tokens are letters."""
  pieces = [
    packing.Piece(np.array([_LETTERS[letter] for letter in text]), source=n)
    for n, text in enumerate(documents)
  ]
  length = sum(map(len, documents))
  return packing.stack([packing.row(pieces, length + 1)])


def config_of(layout, kv='none'):
  quantization = quantization_config.none()
  quantization.kv = kv
  return model_config.ModelConfig(
    d_model=32,
    num_heads=2,
    head_dim=16,
    d_ff=8,
    max_length=32,
    window=4,
    layout=layout,
    rope_global=0.0,
    dtype='float32',
    attention='reference',
    quantization=quantization,
  )


def by_hand(config, gain=60.0):
  """Head 0 of layer 0 copies the token before, head 0 of the last matches."""
  shapes = transformer.parameter_shapes(config)
  params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes)
  embedding_DV = params['embedding']['embedding_DV']
  embedding_DV[_MEAN] = 1
  for place, token in enumerate(_LETTERS.values()):
    embedding_DV[place, token] = 1
  blocks = params['blocks']
  last = f'layer_{len(blocks) - 1}'
  for name in 'layer_0', last:
    blocks[name]['attention_norm']['gain_D'][:] = 1
  eye = np.eye(8)
  first = blocks['layer_0']['attention']
  query_K, key_K = induction._previous_token(config, config.rope_local)
  first['w_q_DHK'][0, _MEAN, 0] = gain * query_K
  first['w_k_DK'][0, _MEAN] = key_K
  first['w_v_DK'][0, _HERE, :8] = eye
  first['w_o_DHK'][0, _BEFORE, 0, :8] = 4 * eye
  match = blocks[last]['attention']
  match['w_q_DHK'][0, _HERE, 0, :8] = gain * eye
  match['w_k_DK'][0, _BEFORE, :8] = eye
  return params


@functools.cache
def reader(*settings):
  config = config_of(*settings)
  return config, circuit.reader(transformer.Transformer(config))


def read(params_of, *settings):
  config, reading = reader(*settings)
  return reading(params_of(config), rows_of('_aAbBaAbB'))


def test_heads_made_by_hand_read_one_and_heads_of_zeros_read_uniform():
  heads = read(by_hand, 'L0 G1')
  assert heads.previous.shape == heads.match.shape == (2, 2)
  assert heads.previous[0, 0] > 0.95 and heads.match[1, 0] > 0.95
  # Values stand at 2, 4, 6, 8; a window shows them at most 4 tokens.
  uniform = np.mean([1 / 3, 1 / 4, 1 / 4, 1 / 4])
  assert heads.previous[0, 1] == pytest.approx(uniform, abs=1e-5)
  # The second a stands at 5 and asks for 2, the second b at 7 for 4.
  assert heads.match[1, 1] == pytest.approx((1 / 6 + 1 / 8) / 2, abs=1e-5)
  # At 4 and 3 tokens' distance: one of the two is within the window of 4.
  assert heads.match[0, 1] == pytest.approx((1 / 4 + 1 / 4) / 2, abs=1e-5)
  # From position 4 on the sink is one token more; its logit is another.
  sunk = read(by_hand, 'L0+1s G1').previous[0, 1]
  assert sunk == pytest.approx(np.mean([1 / 4, 1 / 6, 1 / 6, 1 / 6]), abs=1e-5)
  best = heads.best()
  assert best['previous_0'] == pytest.approx(heads.previous[0, 0])
  assert set(best) == {'previous_0', 'previous_1', 'match_0', 'match_1'}


def test_matching_needs_what_the_first_head_copies():
  def broken(config):
    params = by_hand(config)
    params['blocks']['layer_0']['attention']['w_v_DK'][:] = 0
    return params

  whole = read(by_hand, 'L0 G1')
  cut = read(broken, 'L0 G1')
  assert cut.previous[0, 0] == pytest.approx(whole.previous[0, 0])
  assert cut.match[1, 0] == pytest.approx(whole.match[1, 1], abs=1e-5)


@pytest.mark.slow
def test_sharing_layers_are_read_with_their_own_queries_and_codes():
  heads = read(by_hand, 'L0 L0 G2', 'int8')
  assert heads.previous[0, 0] > 0.95 and heads.match[2, 0] > 0.95
  assert heads.previous[1, 0] == pytest.approx(heads.previous[0, 1], abs=1e-5)


def test_targets_stay_within_a_document():
  asked_BLM, before_BLM = circuit.targets(rows_of('_aAaA', '_bBaA'))

  def places(wanted_BLM):
    return [tuple(place) for place in np.argwhere(wanted_BLM[0]).tolist()]

  assert places(asked_BLM) == [(3, 2)]
  assert places(before_BLM) == [(2, 1), (4, 3), (7, 6), (9, 8)]


def test_a_key_asks_for_all_values_behind_its_copies():
  asked_BLM, _ = circuit.targets(rows_of('_aAaBaA'))
  assert np.argwhere(asked_BLM[0]).tolist() == [[3, 2], [5, 2], [5, 4]]
