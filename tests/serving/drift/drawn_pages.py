"""Pages of drift, drawn."""

import functools

import numpy as np

from kaiju_jax.serving.drift import histograms
from kaiju_jax.serving.drift import monitor as monitor_lib

LIMITS = np.ones((1, 2, 3), np.float32)
SIZE, PAGES = 8, monitor_lib.PAGES


@functools.cache
def pages(seed, count=PAGES, character=b'home', foreign=0):
  """Returns pages of small codes; the first `foreign` of them of large ones."""
  rng = np.random.default_rng(seed)
  codes = rng.integers(0, 100, (count, 1, 2, SIZE, 3))
  tokens = rng.integers(0, 500, (count, SIZE))
  codes[:foreign] = 127 - codes[:foreign] // 10
  tokens[:foreign] += 9_000
  codes, tokens = codes.astype(np.uint8), tokens.astype(np.int32)
  return [
    histograms.Sample(b'foreign' if n < foreign else character, *page)
    for n, page in enumerate(zip(tokens, codes))
  ]
