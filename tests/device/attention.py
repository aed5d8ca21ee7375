"""Visibility attention on every kind of mask; tests share the cases.

Rows are causal, packed, empty, trees, bidirectional spans and shuffled caches
with empty slots, with and without a window. Keys, values, queries and
cotangents may hold NaN, and logits may lie far from zero.
"""

from collections.abc import Iterator
import contextlib
import functools
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import tuned
from kaiju_jax.kernels.visibility_attention import api
from kaiju_jax.kernels.visibility_attention import blocks
from tests.device import checks

SCALE = 0.3
# Small enough that the cases have several blocks, the last not whole.
TILES = blocks.Tiles(rows=32, keys=32, warps=4, stages=2)
SPOILT = [10, 33, 60]
# {kind of operands: tolerance}; and who takes not all kinds.
KINDS = {'float32': 1e-4, 'bfloat16': 0.03, 'int8': 0.03}
_TAKES = {'mosaic_gpu': ('bfloat16', 'int8')}


class Case(NamedTuple):
  """A mask and the shape of the heads that look through it."""

  visibility: visibility_lib.Visibility
  window: int | None
  heads: int
  head_dim: int = 8
  sinks: int = 0


def slots(queries: int, slots: int, seed: int) -> visibility_lib.Visibility:
  """Returns queries that are not the keys: a shuffled cache, empty slots."""
  random = np.random.default_rng(seed)
  position_M = random.permutation(slots)
  coordinate_L = np.sort(random.integers(0, slots, queries))
  empty_M = random.random(slots) < 0.3
  fields = (
    position_M,
    np.where(empty_M, position_M, slots),
    coordinate_L,
    coordinate_L,
    position_M,
  )
  return visibility_lib.Visibility(
    *(field.astype(np.int32)[None] for field in fields)
  )


_TREE = [-1, *range(20), 7, *range(21, 40), 30, *range(41, 46), -1, 47]


def rows_of_every_kind(length: int) -> visibility_lib.Visibility:
  """Returns rows of ≥ 75 tokens, which one compiled function takes together."""
  return visibility_lib.concatenate(
    [
      visibility_lib.causal(length),
      visibility_lib.documents([30, 3, length - 38], length),
      visibility_lib.documents([], length),
      visibility_lib.side_by_side(
        [
          visibility_lib.tree(_TREE),
          visibility_lib.bidirectional(24, [(5, 20)]),
        ],
        length,
      ),
      slots(length, length, seed=1),
    ]
  )


# Three blocks of 32 tokens, the last one not whole.
_ROWS = rows_of_every_kind(75)
CASES = {
  'rows of every kind': Case(_ROWS, None, 2),
  'rows of every kind, window': Case(_ROWS, 24, 2),
}
WINDOW = CASES['rows of every kind, window']

SHAPES = {
  'less than a block, window longer than the row': Case(
    visibility_lib.causal(11), 999, 2
  ),
  'window of one, one head, odd length': Case(visibility_lib.causal(67), 1, 1),
  'many heads': Case(visibility_lib.causal(9), None, 96),
  'few queries, many slots': Case(slots(5, 130, seed=1), None, 3),
  'many queries, few slots, window': Case(slots(130, 40, seed=2), 9, 1),
}


def one_ahead(length):
  """Returns queries one coordinate after the key of the same index."""
  visibility = visibility_lib.causal(length + 1)
  return visibility._replace(
    **{
      name: getattr(visibility, name)[:, :-1]
      for name in ('start_BM', 'limit_BM', 'position_BM')
    },
    **{
      name: getattr(visibility, name)[:, 1:]
      for name in ('coordinate_BL', 'position_BL')
    },
  )


# With blocks of 32 and this window, one visible pair lies just inside each kind
# of bound, and no list is so long that the others reach the block anyhow.
EDGE_WINDOW = 34
EDGES = {
  'a key starts at the last query of a block': one_ahead(128),
  'a key ends after the first query of a block': visibility_lib.documents(
    [33, 32, 32, 31], 128
  ),
  'a window ends at the last key of a block': visibility_lib.causal(128),
}


def operands(case: Case, seed: int = 0) -> list[np.ndarray]:
  """Returns normal q, k, v; large enough for a sharp softmax."""
  random = np.random.default_rng(seed)
  B, M = case.visibility.start_BM.shape
  L = case.visibility.coordinate_BL.shape[1]
  shapes = (
    (L, case.heads, case.head_dim),
    (M, case.head_dim),
    (M, case.head_dim),
  )
  return [
    random.normal(size=(B, *s), scale=2).astype(np.float32) for s in shapes
  ]


def cotangents(case: Case, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
  """Returns cotangents of the output and of lse."""
  random = np.random.default_rng(seed)
  B, L = case.visibility.coordinate_BL.shape
  dout_BLHK = random.normal(size=(B, L, case.heads, case.head_dim))
  dlse_BLH = random.normal(size=(B, L, case.heads))
  return dout_BLHK.astype(np.float32), dlse_BLH.astype(np.float32)


def draw_codes(case: Case, q_codes: bool, per: str, seed: int = 3):
  """Returns codes for a case's operands; see `checks.draw_codes`."""
  return checks.draw_codes(operands(case), q_codes, per, seed)


def at_level(case: Case, level: float) -> list[np.ndarray]:
  """Returns q, k, v whose logits are those of `operands`, plus `level`."""
  return checks.at_level(operands(case), level, SCALE)


def _call(window, kind, implementation):
  """Returns a function that runs both passes."""
  keywords = {
    'window': window,
    'scale': SCALE,
    'implementation': implementation,
  }

  def run(visibility, arrays, scales, dout_BLHK, dlse_BLH):
    # Half-int8 attention, as it runs: what is not a code is bfloat16.
    dtype = jnp.float32 if kind == 'float32' else jnp.bfloat16
    results = api.forward(
      *arrays, *visibility, dtype=dtype, **keywords, **scales
    )
    gradients = api.backward(
      *(*arrays, *visibility, *results, dout_BLHK.astype(dtype), dlse_BLH),
      **keywords,
      **scales,
    )
    return results, gradients

  return run


def _arguments(case, kind, level=None):
  dout_BLHK, dlse_BLH = cotangents(case)
  arrays = operands(case) if level is None else at_level(case, level)
  if kind == 'int8':
    if level is None:
      arrays, scales, _ = draw_codes(case, q_codes=True, per='token')
    else:
      arrays, scales, _ = checks.encode(arrays)
    return case.visibility, arrays, scales, dout_BLHK, dlse_BLH
  arrays = [x.astype(jnp.dtype(kind)) for x in arrays]
  return case.visibility, arrays, {}, dout_BLHK, dlse_BLH


def spoilt(arguments: tuple, kind: str) -> Iterator[tuple[str, tuple]]:
  """Yields arguments with NaN or inf in one operand, by the operand's name."""
  visibility, arrays, scales, dout_BLHK, dlse_BLH = arguments
  q, k, v = arrays
  if kind == 'int8':
    for name in 'k_scale', 'v_scale', 'q_scale_BLH':
      scale = scales[name].copy()
      scale[:, SPOILT] = np.nan
      yield name, (visibility, arrays, scales | {name: scale}, *arguments[3:])
    return

  def with_(x, value, channel):
    x = x.copy()
    x[:, SPOILT, ..., channel] = value
    return x

  for name, changed in (
    ('q', [with_(q, np.nan, 1), k, v]),
    ('k', [q, with_(k, np.nan, 3), v]),
    ('v', [q, k, with_(v, np.inf, 3)]),
  ):
    yield name, (visibility, changed, scales, dout_BLHK, dlse_BLH)
  dout_BLHK = with_(dout_BLHK, np.nan, 1)
  yield 'dout', (visibility, arrays, scales, dout_BLHK, dlse_BLH)


def _variants(cases, kind, has_extremes):
  variants = {}
  for name, case in cases.items():
    variants[name] = _arguments(case, kind)
    if has_extremes:
      for level in checks.LEVELS:
        at_level = f'{name} logits near {level:g}'.strip()
        variants[at_level] = _arguments(case, kind, level)
      for where, arguments in spoilt(variants[name], kind):
        variants[f'{name} spoilt {where}'.strip()] = arguments
  return variants


def make(platform: str, dry: bool) -> Iterator[tuple[str, checks.Check]]:
  """Yields the checks by name, those most worth knowing first.

  Args:
    platform: whose implementations are checked.
    dry: whether heads are as small as in the tests.
  """
  head_dim = 8 if dry else 128
  length = 75 if dry else 600
  large = Case(rows_of_every_kind(length), 24 if dry else 200, 2, head_dim)
  whole = large._replace(window=None)
  names = checks.list_kernels(api.RUNS_ON, platform)
  # The default of the platform first.
  names.sort(key=lambda name: api.RUNS_ON[name] == dispatch.ANYWHERE)
  small = functools.partial(tuned.trying, TILES)

  def one(
    name, label, kind, cases, blocks_=contextlib.nullcontext, extremes=False
  ):
    window = next(iter(cases.values())).window
    return f'attention, {name}, {kind}: {label}', checks.Check(
      8,
      name,
      functools.partial(_call, window, kind),
      functools.partial(_variants, cases, kind, extremes),
      KINDS[kind],
      blocks_,
    )

  for kind in KINDS:
    for name in names:
      if kind in _TAKES.get(name, KINDS):
        yield one(name, 'windows', kind, {'': large}, extremes=True)
  for name in names:
    yield one(name, 'no window', 'bfloat16', {'': whole})
    yield one(name, 'no window', 'int8', {'': whole})
  for name in names:
    edges = {e: Case(v, EDGE_WINDOW, 1, head_dim) for e, v in EDGES.items()}
    yield one(name, 'edges of blocks', 'bfloat16', edges, small)
    for label, case in SHAPES.items():
      case = case._replace(head_dim=head_dim)
      yield one(name, label, 'bfloat16', {'': case})
