"""Parameters by formula beside the real model's, and KV caches by hand."""

import collections
import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest

from kaiju_jax import visibility
from kaiju_jax.costs import footprint
from kaiju_jax.model import config as model_config
from kaiju_jax.model import presets
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config

KAIJU = ('13b', '34b', '110b')


def real_counts(config: model_config.ModelConfig) -> dict[str, int]:
  """Returns the numbers under each parameter name of the real model."""
  shapes = jax.eval_shape(
    transformer.Transformer(config).init,
    jax.random.key(0),
    jnp.zeros((1, 8), jnp.int32),
    visibility.causal(8),
  )['params']
  counts = collections.Counter()
  for path, leaf in jax.tree_util.tree_leaves_with_path(shapes):
    counts[path[-1].key] += math.prod(leaf.shape)
  return dict(counts)


def counts_by_formula(config: model_config.ModelConfig) -> dict[str, int]:
  return {p.name: p.size for p in footprint.parameters(config)}


@pytest.mark.parametrize('name', ['1m', '110b'])
def test_parameters_are_those_of_the_model(name):
  config = presets.preset(name)
  assert counts_by_formula(config) == real_counts(config)


@pytest.mark.parametrize(
  'changes',
  [
    dict(tied_embedding=False, layout='L0+4s G1s L0+4s L3 G1s'),
    dict(
      feedforward='swiglu',
      norms='both',
      qk_norm='head',
      qkv_bias=True,
      quantization=quantization_config.QuantizationConfig(clamp_hidden='none'),
    ),
    dict(qk_norm='all', num_kv_heads=2, qkv_bias=True),
    dict(norms='after', quantization=quantization_config.none()),
    dict(layout='', period=0, num_layers=2),
    dict(
      quantization=quantization_config.QuantizationConfig(
        bungee=True, kv_scale='channel'
      )
    ),
    dict(
      quantization=quantization_config.QuantizationConfig(
        kv='none', qk='none', kv_scale='channel'
      )
    ),
  ],
  ids=lambda changes: next(iter(changes)),
)
def test_parameters_follow_the_config(changes):
  few_layers = model_config.ModelConfig(layout='L0 L0 G2')
  config = dataclasses.replace(few_layers, **changes)
  assert counts_by_formula(config) == real_counts(config)


def test_parameters_by_hand():
  config = model_config.ModelConfig(
    vocab_size=10,
    d_model=8,
    num_heads=2,
    head_dim=4,
    d_ff=16,
    layout='L0 L0 G2',
    tied_embedding=False,
  )
  assert counts_by_formula(config) == {
    'embedding_DV': 80,
    'gain_D': 8 * 7,
    'w_q_DHK': 64 * 3,
    'w_k_DK': 32 * 2,
    'w_v_DK': 32 * 2,
    'w_o_DHK': 64 * 3,
    'w_in_DF': 128 * 3,
    'w_out_DF': 128 * 3,
    'head_DV': 80,
  }


@pytest.mark.parametrize('name', KAIJU)
def test_kv_cache_against_gqa_8_of_the_same_depth(name):
  for length, ratio in ((8192, 140), (32_768, 190)):
    own, _, gqa, _ = footprint.kv_caches(presets.preset(name), length)
    assert (own.name, gqa.name) == ('this model', 'GQA-8 bf16')
    assert gqa.bytes >= ratio * own.bytes


def test_published_caches_by_hand():
  """Bytes per token and layer, by the published shapes; K and V in bf16."""
  k, windowed = 8192, 52 * 1024
  assert {c.name: c.bytes for c in footprint.published_caches(k)} == {
    'Gemma 3 27B': 2 * 16 * 128 * 2 * (10 * k + windowed),
    'DeepSeek V3': (512 + 64) * 2 * 61 * k,
    'gpt-oss 120B': 2 * 8 * 64 * 2 * (18 * k + 18 * 128),
  }


def test_kv_caches_by_hand():
  # Of 7 layers, two local owners keep 4 tokens and a global one 10; a token is
  # 2·(6 + 4) bytes. The others keep 10 tokens in each of 7 layers, and a head's
  # token is 2·6·2 bytes.
  config = model_config.ModelConfig(
    num_layers=7, window=4, num_heads=16, head_dim=6
  )
  assert [(c.name, c.bytes) for c in footprint.kv_caches(config, 10)] == [
    ('this model', 20 * (4 + 4 + 10)),
    ('MHA bf16', 7 * 10 * 24 * 16),
    ('GQA-8 bf16', 7 * 10 * 24 * 8),
    ('MQA bf16', 7 * 10 * 24),
  ]
  assert footprint.kv_caches(config, 10)[0].per_token == 36
  several = dataclasses.replace(config, num_kv_heads=4)
  assert footprint.kv_caches(several, 10)[0].bytes == 4 * 20 * 18
  config.quantization.kv_scale = 'channel'
  assert footprint.kv_caches(config, 10)[0].bytes == 12 * 18
  config.quantization = quantization_config.none()
  assert footprint.kv_caches(config, 10)[0].bytes == 24 * 18
  config.dtype = 'float32'
  assert footprint.kv_caches(config, 10)[0].bytes == 48 * 18
  config.num_heads = 4
  names = [c.name for c in footprint.kv_caches(config, 10)]
  assert names == ['this model', 'MHA bf16', 'GQA-4 bf16', 'MQA bf16']
