"""The presets' attention shapes, and rows of documents to fill them.

The three large presets split their heads over eight devices, and a shape has
one device's share; a smaller preset has all of its heads. A row is one document
(`causal`), several documents one after the other (`packed`), or a chat whose
turns sometimes continue an earlier turn, so that it is a tree (`chat`). Lengths
are random with fixed seeds. Everything is numpy.
"""

from typing import NamedTuple

import numpy as np

from kaiju_jax.kernels.visibility_attention import operands


class Shape(NamedTuple):
  """Self-attention over whole rows."""

  length: int  # Tokens of a row.
  heads: int  # Query heads.
  head_dim: int = 128  # K.
  window: int | None = None  # None for all.
  rows: str = 'causal'  # 'causal', 'packed' or 'chat'.
  # Whether q, k and v are int8 codes with a scale per token; otherwise they are
  # bfloat16.
  coded: bool = False
  batch: int = 1  # Rows.
  sinks: int = 0  # Positions that a query sees beside its window.


SHAPES = {
  '13b, all': Shape(32_768, 5),
  '13b, window': Shape(32_768, 5, window=1024),
  '34b, all': Shape(32_768, 7),
  '34b, window': Shape(32_768, 7, window=1024),
  '110b, all': Shape(32_768, 12),
  '110b, all, int8': Shape(32_768, 12, coded=True),
  '110b, window': Shape(32_768, 12, window=1024),
  '110b, window, int8': Shape(32_768, 12, window=1024, coded=True),
  '110b, window, packed': Shape(32_768, 12, window=1024, rows='packed'),
  '110b, window, chat': Shape(32_768, 12, window=1024, rows='chat'),
  '110b, window, sinks': Shape(32_768, 12, window=1024, sinks=4),
  '1b, window': Shape(16_384, 16, window=1024),
  '250m, window': Shape(8192, 8, window=512, batch=2),
  '15m, all': Shape(2048, 6, 64, batch=8),
}


def ranges(shape: Shape) -> operands.Ranges:
  """Returns the ranges of a shape's rows, with its sinks in every window."""
  L = shape.length
  token_L = np.arange(L)
  limit_L, position_L = {
    'causal': lambda: (np.full(L, L), token_L),
    'packed': lambda: _pack(L),
    'chat': lambda: _chat(L),
  }[shape.rows]()
  fields = token_L, limit_L, token_L, position_L, position_L
  made = operands.Ranges(
    *(np.broadcast_to(x.astype(np.int32), (shape.batch, L)) for x in fields)
  )
  return operands.Ranges(*map(np.asarray, made.exempt(shape.sinks)))


def pairs(shape: Shape) -> int:
  """Returns the number of pairs (query, key) where the query sees the key."""
  row, count = ranges(shape._replace(batch=1)), 0
  for block in np.array_split(np.arange(shape.length), -(-shape.length // 256)):
    some = row._replace(
      coordinate_BL=row.coordinate_BL[:, block],
      position_BL=row.position_BL[:, block],
    )
    count += int(operands.visible(some, shape.window).sum())
  return shape.batch * count


def _pack(length: int):
  """Returns (limit, position) of documents of up to a fifth of the row."""
  random = np.random.default_rng(0)
  limit_L, position_L = np.zeros(length, int), np.zeros(length, int)
  start = 0
  while start < length:
    end = min(length, start + int(random.integers(1, max(2, length // 5))))
    limit_L[start:end] = end
    position_L[start:end] = np.arange(end - start)
    start = end
  return limit_L, position_L


def _chat(length: int):
  """Returns (limit, position) of a tree in preorder, turns ≤ 300 tokens."""
  random = np.random.default_rng(0)
  limit_L, position_L = np.full(length, length), np.zeros(length, int)
  path = []  # (first token, one past the last) of each turn from the root.
  start = depth = 0
  while start < length:
    if len(path) > 2 and random.random() < 0.3:
      kept = int(random.integers(2, len(path) + 1))
      for first, after in path[kept:]:
        limit_L[first:after] = start
      depth = position_L[path[kept - 1][1] - 1] + 1
      del path[kept:]
    end = min(length, start + int(random.integers(1, 300)))
    position_L[start:end] = depth + np.arange(end - start)
    depth += end - start
    path.append((start, end))
    start = end
  return limit_L, position_L
