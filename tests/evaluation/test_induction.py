"""The suggested circuit: what each head starts as, in every layout."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.evaluation import induction
from kaiju_jax.model import config as model_config
from kaiju_jax.model import rotary
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.tasks.needle import questions as needle

LAYOUTS = {
  'full': 'G0 G1 G2 G3',
  'shared': 'L0 L0 L2 G3',
  'local': 'L0 L1 L2 L3',
}


def config_of(layout, **changes):
  return model_config.ModelConfig(
    **{
      'd_model': 128,
      'num_heads': 4,
      'head_dim': 64,
      'd_ff': 64,
      'max_length': 64,
      'window': 16,
      'layout': LAYOUTS[layout],
      'dtype': 'float32',
      'quantization': quantization_config.none(),
    }
    | changes
  )


def plain_params(config):
  """Parameters as they are named and shaped, without a compilation."""
  shapes = transformer.parameter_shapes(config)
  rng = np.random.default_rng(0)

  def draw(path, leaf):
    if path[-1].key == 'gain_D':
      return jnp.ones(leaf.shape)
    return jnp.asarray(rng.normal(0, 128**-0.5, leaf.shape), jnp.float32)

  return jax.tree_util.tree_map_with_path(draw, shapes)


@functools.cache
def both(layout, suggest=induction.suggest, **changes):
  config = config_of(layout, **changes)
  plain = plain_params(config)
  return config, plain, suggest(plain, config, 0)


def named(params, name):
  return [
    leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    if path[-1].key == name
  ]


@pytest.mark.parametrize('suggest', [induction.suggest, induction.previous])
def test_head_0_looks_at_the_previous_token_and_others_do_not(suggest):
  config, _, params = both('full', suggest)
  tokens = np.random.default_rng(0).integers(1, 256, (1, 40))
  x = params['embedding']['embedding_DV'].T[tokens[0]]
  x = x / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True))
  turns = rotary.turns(
    np.arange(40)[None], rotary.table(64, 64, config.rope_global)
  )
  attention = params['blocks']['layer_0']['attention']
  q = np.einsum('LD,DHK->LHK', x, attention['w_q_DHK'][0])[None]
  k = np.einsum('LD,DK->LK', x, attention['w_k_DK'][0])[None, :, None]
  q_LHK = rotary.rotate(q, turns)[0]
  k_LK = rotary.rotate(k, turns)[0, :, 0]
  logits_HLM = np.einsum('LHK,MK->HLM', q_LHK, k_LK) / 8
  logits_HLM += np.where(np.tri(40), 0, -np.inf)[None]
  previous = np.argmax(logits_HLM, axis=-1)[:, 2:] == np.arange(1, 39)[None]
  assert np.mean(previous[0]) > 0.9
  assert np.mean(previous[1:]) < 0.3
  chance_L = np.exp(logits_HLM[0]) / np.exp(logits_HLM[0]).sum(-1)[:, None]
  assert np.mean(np.diagonal(chance_L, offset=-1)[2:]) > 0.5


def test_the_suggestion_alone_answers_nothing():
  # A trained arm has learnt what it scores: this is a start, not a solution.
  config, plain, params = both('full')
  drawn = needle.Pairs().questions(np.random.default_rng(0), 64, 32, 20, 8)

  def right(params):
    logits_BLV = jax.jit(transformer.Transformer(config).apply)(
      {'params': params},
      drawn.tokens_BL,
      visibility_lib.concatenate([visibility_lib.causal(32)] * 64),
    )
    values = np.asarray(needle.VALUES)
    found = values[np.argmax(logits_BLV[:, -1, values], axis=-1)]
    return np.mean(found == drawn.answers_BA[:, 0])

  assert right(plain) < 0.3
  assert right(params) < 0.3


@pytest.mark.parametrize('layout', ['shared', 'local'])
def test_every_layout_gets_the_same(layout):
  _, _, full = both('full')
  _, _, other = both(layout)
  np.testing.assert_allclose(added_mean(layout), added_mean('full'), atol=1e-6)
  for name in ('w_q_DHK', 'w_k_DK', 'w_v_DK', 'w_o_DHK'):
    (theirs, *_) = named(full, name)
    assert named(other, name)
    for ours in named(other, name):
      for weight in ours:
        np.testing.assert_array_equal(weight, theirs[0])


def test_projections_are_orthonormal_and_keys_read_what_head_0_writes():
  _, _, params = both('local')
  (v,), (k,), (o,) = (
    named(params, name) for name in ('w_v_DK', 'w_k_DK', 'w_o_DHK')
  )
  np.testing.assert_allclose(v[0].T @ v[0], np.eye(64), atol=1e-5)
  # A key reads half of what head 0 writes back as the token's content:
  # (RU)ᵀ(RU) = 1, but for the direction of the mean.
  overlap = np.asarray(2 * o[0, :, 0].T @ k[0])
  assert np.mean(np.diagonal(overlap)) == pytest.approx(1, abs=0.1)
  # The other heads write where tokens are read from, and not there.
  overlap = np.asarray(2 * o[0, :, 1].T @ k[0])
  assert abs(np.mean(np.diagonal(overlap))) < 0.1


@pytest.mark.parametrize(
  'suggest, written',
  [(induction.suggest, {'w_v_DK', 'w_o_DHK'}), (induction.previous, set())],
)
def test_all_else_is_left_alone(suggest, written):
  _, plain, params = both('shared', suggest)
  changed = {
    path[-1].key
    for (path, before), after in zip(
      jax.tree_util.tree_leaves_with_path(plain), jax.tree.leaves(params)
    )
    if np.any(before != after)
  }
  assert changed == {'embedding_DV', 'w_q_DHK', 'w_k_DK'} | written
  for before, after in zip(jax.tree.leaves(plain), jax.tree.leaves(params)):
    assert before.shape == after.shape and before.dtype == after.dtype


def test_the_half_suggestion_leaves_all_other_heads_alone():
  _, plain, params = both('shared', induction.previous)
  for before, after in zip(named(plain, 'w_q_DHK'), named(params, 'w_q_DHK')):
    np.testing.assert_array_equal(before[..., 1:, :], after[..., 1:, :])
    assert np.any(before[..., 0, :] != after[..., 0, :])


def added_mean(layout):
  _, plain, params = both(layout)
  return np.asarray(
    params['embedding']['embedding_DV'] - plain['embedding']['embedding_DV']
  )


def test_embeddings_share_a_direction_of_norm_1():
  added_DV = added_mean('full')
  np.testing.assert_allclose(
    added_DV, added_DV[:, :1] + 0 * added_DV, atol=1e-6
  )
  assert np.linalg.norm(added_DV[:, 0]) == pytest.approx(1, abs=1e-5)


def test_layers_without_rotary_get_no_previous_token_head():
  config, _, params = both('shared', rope_global=0.0)
  attention = [params['blocks'][f'layer_{i}']['attention'] for i in range(4)]
  assert np.all(attention[3]['w_q_DHK'][0, :, 0] == 0)
  assert np.any(attention[0]['w_q_DHK'][0, :, 0] != 0)
  logits_BLV = jax.jit(transformer.Transformer(config).apply)(
    {'params': params}, np.arange(32)[None], visibility_lib.causal(32)
  )
  assert np.all(np.isfinite(logits_BLV))


@pytest.mark.parametrize(
  'change, message',
  [
    ({'num_heads': 1}, r'model\.num_heads=1: .* two heads'),
    ({'num_kv_heads': 2}, r'model\.num_kv_heads=2: .* needs 1'),
    ({'head_dim': 256}, r'model\.head_dim=256: .* d_model=128'),
    ({'tied_embedding': False}, r'model\.tied_embedding=False: .* True'),
  ],
)
def test_shapes_it_does_not_fit_are_refused(change, message):
  with pytest.raises(ValueError, match=message):
    induction.suggest({}, config_of('full', **change), 0)
