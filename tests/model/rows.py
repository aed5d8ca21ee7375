"""Small batches that the model's tests share."""

import numpy as np

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.data import packing


def packed_batch(documents, length, vocab_size, seed=0) -> packing.Batch:
  """Returns one [B, L] batch; `documents` lists each row's lengths."""
  rng = np.random.default_rng(seed)
  rows = len(documents)
  visibility = visibility_lib.concatenate(
    [visibility_lib.documents(lengths, length) for lengths in documents]
  )
  first = np.stack(
    [np.isin(np.arange(length), np.cumsum([0, *d])) for d in documents]
  )
  inside = np.arange(length)[None] < np.array([[sum(d)] for d in documents])
  predecessor = np.broadcast_to(
    np.maximum(np.arange(length) - 1, 0), (rows, length)
  )
  return packing.Batch(
    tokens_BL=rng.integers(0, vocab_size, (rows, length), dtype=np.int32),
    start_BL=visibility.start_BM,
    limit_BL=visibility.limit_BM,
    coordinate_BL=visibility.coordinate_BL,
    position_BL=visibility.position_BL,
    predecessor_BL=predecessor.astype(np.int32),
    weight_BL=(inside & ~first).astype(np.float32),
    source_BL=np.zeros((rows, length), np.int32),
  )
