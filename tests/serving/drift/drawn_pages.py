"""Pages of drift, drawn."""

import numpy as np

from kaiju_jax.serving.drift import histograms
from kaiju_jax.serving.drift import monitor as monitor_lib

LIMITS = np.ones((1, 2, 3), np.float32)
SIZE, PAGES = 8, monitor_lib.PAGES


def pages(seed, count=PAGES, character=b'home', foreign=0):
  """Returns pages of small codes; `foreign` of them of large ones."""
  rng = np.random.default_rng(seed)
  found = []
  for number in range(count):
    is_other = number < foreign
    codes = rng.integers(0, 100, (1, 2, SIZE, 3))
    tokens = rng.integers(0, 500, SIZE)
    if is_other:
      codes, tokens = 127 - codes // 10, tokens + 9_000
    found.append(
      histograms.Sample(
        b'foreign' if is_other else character,
        tokens.astype(np.int32),
        codes.astype(np.uint8),
      )
    )
  return found
