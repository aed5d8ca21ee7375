"""Paged decode against a dense softmax over pages laid side by side.

The oracle gathers with numpy and attends with `jax.nn.dot_product_attention`
under the dense mask; its lse is numpy's in float64. The folder's own reference
stands beside the kernels as one more implementation.
"""

from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.paged_decode import api
from kaiju_jax.kernels.paged_decode import blocks
from kaiju_jax.kernels.visibility_attention import reference

_SCALE = 0.1
_SLOTS = 8
_K = 128

implementations = pytest.mark.parametrize('implementation', api.RUNS_ON)


class Case(NamedTuple):
  """A table and what its slots are seen by, for queries of some heads."""

  table_BN: Any
  visibility: visibility_lib.Visibility
  window: int | None
  heads: int
  pages: int


def _case(table, visibility, window=None, heads=2, pages=40):
  table_BN = np.asarray(table, np.int32)
  fields = (np.asarray(field, np.int32) for field in visibility)
  return Case(
    table_BN, visibility_lib.Visibility(*fields), window, heads, pages
  )


def _pages(rows, logical, seed=0, pages=40):
  """Distinct pages for every row, in no order."""
  random = np.random.default_rng(seed)
  return random.permutation(pages)[: rows * logical].reshape(rows, logical)


def _causal(lengths, logical):
  """One query a row, the last of its `length` tokens; the rest are empty."""
  slots = logical * _SLOTS
  token_BM = np.tile(np.arange(slots), (len(lengths), 1))
  length_B1 = np.array(lengths)[:, None]
  limit_BM = np.where(token_BM < length_B1, slots, token_BM)
  return token_BM, limit_BM, length_B1 - 1, length_B1 - 1, token_BM


def _ring(lengths, logical):
  """A ring of `logical` pages that has gone round: newer over older slots."""
  slots = logical * _SLOTS
  slot_BM = np.tile(np.arange(slots), (len(lengths), 1))
  newest_B1 = np.array(lengths)[:, None] - 1
  position_BM = newest_B1 - (newest_B1 - slot_BM) % slots
  limit_BM = np.where(position_BM >= 0, 10_000, position_BM)
  return position_BM, limit_BM, newest_B1, newest_B1, position_BM


def _scattered(rows, logical, queries, seed=1):
  """Slots filled in no order; a third of them empty or dead."""
  random = np.random.default_rng(seed)
  slots = logical * _SLOTS
  position_BM = random.permuted(np.tile(np.arange(slots), (rows, 1)), axis=1)
  dead_BM = random.random((rows, slots)) < 0.3
  limit_BM = np.where(dead_BM, position_BM, slots)
  token_BL = random.integers(0, slots, (rows, queries))
  return position_BM, limit_BM, token_BL, token_BL, position_BM


def _beams(rows, logical, width, seed=2):
  """Tree ranges of `width` live beams, at different slots in each row."""
  random = np.random.default_rng(seed)
  slots = logical * _SLOTS
  parts = []
  for _ in range(rows):
    parents = np.full(slots, -1)
    order = random.permutation(slots)[: slots - 9]
    for place in range(1, len(order)):
      # A prompt of 20, then branches off the last few tokens.
      back = 1 if place < 20 else random.integers(1, 2 * width)
      parents[order[place]] = order[place - back]
    leaves = order[-width:]
    parts.append(visibility_lib.beams(parents.tolist(), leaves.tolist()))
  return visibility_lib.concatenate(parts)


def _two_sides():
  """A page with a range on either side of the query, none around it."""
  start = np.array([[0] * 4 + [9] * 4 + [0] * 8])
  limit = np.array([[3] * 4 + [12] * 4 + [12] * 8])
  return start, limit, [[5]], [[5]], np.zeros_like(start)


_SHARED = _pages(3, 6)
_SHARED[1, :4] = _SHARED[0, :4]
_SHARED[2, [5, 0, 3]] = _SHARED[0, [0, 1, 2]]

_ABSENT = _pages(3, 6)
_ABSENT[0, 2] = -1
_ABSENT[1, :5] = [40, 41, 2**31 - 1, -(2**31), -7]
_ABSENT[2] = -1

CASES = {
  'several lengths': _case(_pages(4, 9), _causal([1, 8, 41, 72], 9)),
  'one head': _case(_pages(2, 6), _causal([48, 17], 6), heads=1),
  'ninety-six heads': _case(_pages(2, 6), _causal([48, 17], 6), heads=96),
  'window': _case(_pages(3, 9), _causal([5, 50, 72], 9), window=11),
  'window of one': _case(_pages(2, 6), _causal([41, 48], 6), window=1),
  'ring': _case(_pages(3, 5), _ring([100, 41, 7], 5), window=30),
  'shared pages': _case(_SHARED, _scattered(3, 6, 1)),
  'absent pages': _case(_ABSENT, _causal([48, 48, 48], 6)),
  'scattered slots, several queries, window': _case(
    _pages(3, 6), _scattered(3, 6, 4), window=20, heads=3
  ),
  'beams': _case(_SHARED, _beams(3, 6, 5), heads=3),
  'beams, window': _case(_SHARED, _beams(3, 6, 5), window=12, heads=3),
  'ranges on both sides': _case(_pages(1, 2), _two_sides()),
}

cases = pytest.mark.parametrize('case', CASES.values(), ids=CASES)


def _operands(case, seed=0):
  """Normal q, k, v; queries and keys large enough for a sharp softmax."""
  random = np.random.default_rng(seed)
  B, L = case.visibility.coordinate_BL.shape
  pool = case.pages, _SLOTS, _K
  shapes = (B, L, case.heads, _K), pool, pool
  return [random.normal(size=s, scale=2).astype(np.float32) for s in shapes]


def _sizes(implementation, case, keys=16, splits=1):
  """Small tiles, so that there are several."""
  rows = case.visibility.coordinate_BL.shape[1] * case.heads
  R = 16 if implementation == 'pallas_gpu' else -(-rows // 8) * 8
  return blocks.Sizes(R, keys, splits)


def _decode(case, implementation, operands, **options):
  """Under jit, its arguments traced; interpreted where it must be."""
  options = {'sizes': _sizes(implementation, case)} | options
  static = {'sizes', 'dtype'} & options.keys()
  traced = {name: x for name, x in options.items() if name not in static}

  @jax.jit
  def run(operands, table_BN, visibility, traced):
    return api.decode(
      *operands,
      table_BN,
      *visibility,
      window=case.window,
      scale=_SCALE,
      implementation=implementation,
      **{name: options[name] for name in static},
      **traced,
    )

  with dispatch.interpreted():
    return run(operands, case.table_BN, case.visibility, traced)


def _mask(case):
  """bool[B, L, M], by numpy alone."""
  dense_BLM = visibility_lib.as_dense(case.visibility, case.window)
  here_BN = (case.table_BN >= 0) & (case.table_BN < case.pages)
  return dense_BLM & np.repeat(here_BN, _SLOTS, axis=1)[:, None]


def _gather(case, pool):
  x = pool[np.clip(case.table_BN, 0, case.pages - 1)]
  return x.reshape(len(x), -1, *pool.shape[2:])


def _oracle(case, q_BLHK, k_PSK, v_PSK):
  """out by jax.nn, lse by numpy; zero where a query sees nothing."""
  dense_BLM = _mask(case)
  sees_BL = dense_BLM.any(axis=-1)
  k_BMK, v_BMK = _gather(case, k_PSK), _gather(case, v_PSK)
  out_BLHK = jax.nn.dot_product_attention(
    jnp.asarray(q_BLHK),
    k_BMK[:, :, None],
    v_BMK[:, :, None],
    mask=dense_BLM[:, None],
    scale=_SCALE,
    implementation='xla',
  )
  logits_BLHM = _SCALE * np.einsum(
    'BLHK,BMK->BLHM', np.float64(q_BLHK), np.float64(k_BMK)
  )
  logits_BLHM = np.where(dense_BLM[:, :, None], logits_BLHM, -np.inf)
  lse_BLH = np.logaddexp.reduce(logits_BLHM, axis=-1)
  return (
    np.where(sees_BL[..., None, None], out_BLHK, 0),
    np.where(sees_BL[..., None], lse_BLH, 0),
  )


def _close(actual, expected, tolerance=2e-5):
  """Absolute error against the largest value of each tensor."""
  for a, e in zip(actual, expected, strict=True):
    assert a.shape == e.shape
    error = np.abs(np.float64(a) - np.float64(e)).max()
    assert error <= tolerance * max(1, np.abs(e).max())


@implementations
@cases
def test_output_and_lse(implementation, case):
  operands = _operands(case)
  results = _decode(case, implementation, operands)
  _close(results, _oracle(case, *operands))


@cases
def test_the_definition_is_visibility_attention_over_gathered_pages(case):
  q_BLHK, k_PSK, v_PSK = _operands(case)
  here_BN = (case.table_BN >= 0) & (case.table_BN < case.pages)
  here_BM = np.repeat(here_BN, _SLOTS, axis=1)
  visibility = case.visibility._replace(
    limit_BM=np.where(
      here_BM, case.visibility.limit_BM, case.visibility.start_BM
    )
  )
  expected = reference.forward(
    q_BLHK,
    _gather(case, k_PSK),
    _gather(case, v_PSK),
    *visibility,
    window=case.window,
    scale=_SCALE,
    q_scale_BLH=None,
    k_scale=None,
    v_scale=None,
    dtype=jnp.float32,
  )
  _close(_decode(case, 'reference', (q_BLHK, k_PSK, v_PSK)), expected, 1e-6)
