"""A small stack with all that a cache must get right, for these tests."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.decoding.device import reference
from kaiju_jax.model import config as model_config
from kaiju_jax.model import token_head
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config

LENGTH = 64


def config(**changes) -> model_config.ModelConfig:
  """Two owners of a local kind, one of them shared, around a global layer."""
  defaults = model_config.ModelConfig(
    vocab_size=61,
    d_model=32,
    layout='L0 L0 G2 L3',
    window=11,
    num_heads=3,
    head_dim=16,
    d_ff=48,
    max_length=LENGTH,
    dtype='float32',
    quantization=quantization_config.none(),
  )
  return dataclasses.replace(defaults, **changes)


def small(**changes) -> model_config.ModelConfig:
  """A local and a global layer over bytes, for engines."""
  fields = {
    'vocab_size': 256,
    'layout': 'L0 G1',
    'd_model': 16,
    'num_heads': 2,
    'head_dim': 8,
    'd_ff': 24,
    'tied_embedding': False,
  }
  return config(**fields | changes)


HEAD = token_head.TokenHeadConfig(('kind', 'loud', 'long'))


def head_of(seed=0, **changes):
  """Returns a token-level head of a small model."""
  rng = np.random.default_rng(seed)
  params = {
    'w_DC': rng.normal(0, 0.5, (16, 3)).astype(np.float32),
    'bias_C': rng.normal(0, 0.5, 3).astype(np.float32),
  }
  return params | changes, HEAD


def run(engine, *sequences) -> int:
  """Runs rounds until these have ended; returns how many."""
  rounds = 0
  while any(one.reason is None for one in sequences):
    engine.advance()
    rounds += 1
    assert rounds < 5000
  return rounds


def is_same(found, wanted) -> bool:
  """Holds a result to another one, to the bit."""
  assert found.reason == wanted.reason
  assert found.tokens.tolist() == wanted.tokens.tolist()
  np.testing.assert_array_equal(
    found.log_probabilities, wanted.log_probabilities
  )
  if wanted.prompt_log_probabilities is not None:
    np.testing.assert_array_equal(
      found.prompt_log_probabilities, wanted.prompt_log_probabilities
    )
  return True


def text(length: int, seed: int) -> list[int]:
  return np.random.default_rng(seed).integers(1, 256, length).tolist()


def int8(**changes) -> quantization_config.QuantizationConfig:
  return quantization_config.QuantizationConfig(**changes)


def params(config: model_config.ModelConfig, seed: int = 0):
  model = transformer.Transformer(config)
  tokens_BL = jnp.zeros((1, 4), jnp.int32)
  init = jax.jit(model.init)
  return init(jax.random.key(seed), tokens_BL, visibility_lib.causal(4))[
    'params'
  ]


def drawn(config: model_config.ModelConfig, scale: float = 0.3):
  """Returns parameters whose tokens differ, without compiling anything."""
  rng = np.random.default_rng(12)

  def leaf(path, x):
    if path[-1].key == 'gain_D':
      return np.ones(x.shape, np.float32)
    return rng.normal(0, scale, x.shape).astype(np.float32)

  return jax.tree_util.tree_map_with_path(
    leaf, transformer.parameter_shapes(config)
  )


def tokens(config: model_config.ModelConfig, rows: int, length: int = LENGTH):
  rng = np.random.default_rng(1)
  return rng.integers(0, config.vocab_size, (rows, length), dtype=np.int32)


def forward(params, config, tokens_BL, mode='fast', method=None) -> np.ndarray:
  """Returns what the whole rows' forward pass gives, compiled as `mode` is."""
  jit = reference.jit if mode == 'reference' else jax.jit
  rows, length = tokens_BL.shape
  row = visibility_lib.causal(length)
  apply = functools.partial(
    transformer.Transformer(config).apply, method=method
  )
  # As arguments: of constants XLA computes what it can itself, by other sums.
  return np.asarray(
    jit(apply)(
      {'params': params}, tokens_BL, visibility_lib.concatenate([row] * rows)
    )
  )


def most_slots(length, width, depth, candidates, resting=0, window=None) -> int:
  """Returns the slots of one layer kind that a search of beams takes at most.

  Beams that share no token and rest, of `depth` tokens, behind a prompt of
  `length`; with whole pages of S, `window` is the layers' and S − 1.
  """
  before = depth - 1
  if window is not None:
    before = min(before, window - 1)
    length = min(length, window - 1 - before)
  return length + (width + resting) * before + candidates
