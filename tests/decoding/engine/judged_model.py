"""A small model with a token-level head."""

import numpy as np

from kaiju_jax.model import token_head
from tests.decoding import toys

CONFIG = toys.config(
  vocab_size=256,
  layout='L0 G1',
  d_model=16,
  num_heads=2,
  head_dim=8,
  d_ff=24,
  tied_embedding=False,
)
HEAD = token_head.TokenHeadConfig(('kind', 'loud', 'long'))


def head_of(seed=0, **changes):
  rng = np.random.default_rng(seed)
  params = {
    'w_DC': rng.normal(0, 0.5, (16, 3)).astype(np.float32),
    'bias_C': rng.normal(0, 0.5, 3).astype(np.float32),
  }
  return params | changes, HEAD
