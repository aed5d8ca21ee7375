"""Paged decode over every kind of table; tests share the cases.

Rows of several lengths, shared and absent pages, rings, beams, windows, slots
in no order, and slots that no query sees and that hold NaN.
"""

from collections.abc import Iterator
import functools
from typing import Any
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.kernels.paged_decode import api
from kaiju_jax.kernels.paged_decode import blocks
from tests.device import checks

SCALE = 0.1
ROWS, LOGICAL, SLOTS, POOL = 3, 8, 8, 40
LENGTH = LOGICAL * SLOTS
K = 128
KINDS = {'float32': 1e-4, 'bfloat16': 0.03, 'int8': 0.03}


class Case(NamedTuple):
  """A table and what its slots are seen by, for queries of some heads."""

  table_BN: Any
  visibility: visibility_lib.Visibility
  window: int | None = None
  heads: int = 2
  sinks: int = 0


def case(table_BN, visibility, window=None, heads=2, sinks=0) -> Case:
  """Returns a case of arrays or nested lists."""
  fields = (np.array(field, np.int32) for field in visibility)
  table_BN = np.array(table_BN, np.int32)
  visibility = visibility_lib.Visibility(*fields)
  return Case(table_BN, visibility, window, heads, sinks)


def pages(seed: int = 0, logical: int = LOGICAL) -> np.ndarray:
  """Returns distinct pages for every row, in no order."""
  random = np.random.default_rng(seed)
  places = random.permutation(POOL)[: ROWS * logical]
  return places.reshape(ROWS, logical)


def causal(lengths: list[int]) -> tuple:
  """Returns one query a row, the last of its tokens; the rest are empty."""
  token_BM = np.tile(np.arange(LENGTH), (ROWS, 1))
  length_B1 = np.array(lengths)[:, None]
  limit_BM = np.where(token_BM < length_B1, LENGTH, token_BM)
  return token_BM, limit_BM, length_B1 - 1, length_B1 - 1, token_BM


def _ring(lengths):
  """Returns rings that have gone round: newest tokens over the oldest."""
  slot_BM = np.tile(np.arange(LENGTH), (ROWS, 1))
  newest_B1 = np.array(lengths)[:, None] - 1
  position_BM = newest_B1 - (newest_B1 - slot_BM) % LENGTH
  limit_BM = np.where(position_BM >= 0, 10_000, position_BM)
  return position_BM, limit_BM, newest_B1, newest_B1, position_BM


def _scattered(queries, seed=1):
  """Returns slots filled in no order; a third of them empty or dead."""
  random = np.random.default_rng(seed)
  slots = np.tile(np.arange(LENGTH), (ROWS, 1))
  position_BM = random.permuted(slots, axis=1)
  dead_BM = random.random(slots.shape) < 0.3
  limit_BM = np.where(dead_BM, position_BM, LENGTH)
  token_BL = random.integers(0, LENGTH, (ROWS, queries))
  return position_BM, limit_BM, token_BL, token_BL, position_BM


def _beams(width, seed=2):
  """Returns tree ranges of live beams, at different slots in each row."""
  random = np.random.default_rng(seed)
  parts = []
  for _ in range(ROWS):
    parents = np.full(LENGTH, -1)
    order = random.permutation(LENGTH)[:-9]
    for place in range(1, len(order)):
      # A prompt of 20, then branches off the last few tokens.
      back = 1 if place < 20 else random.integers(1, 2 * width)
      parents[order[place]] = order[place - back]
    leaves = order[-width:]
    parts.append(visibility_lib.beams(parents.tolist(), leaves.tolist()))
  return visibility_lib.concatenate(parts)


def _either_side():
  """Returns pages whose ranges lie on both sides of the query."""
  start_BM = np.tile([0] * 4 + [9] * 4, (ROWS, LOGICAL))
  limit_BM = np.tile([3] * 4 + [12] * 4, (ROWS, LOGICAL))
  # And one around it.
  start_BM[:, 16:24], limit_BM[:, 16:24] = 2, 7
  query_B1 = np.full((ROWS, 1), 5)
  return start_BM, limit_BM, query_B1, query_B1, np.zeros_like(start_BM)


_SHARED = pages()
_SHARED[1, :4] = _SHARED[0, :4]
_SHARED[2, [5, 0, 3]] = _SHARED[0, [0, 1, 2]]

ABSENT = pages()
ABSENT[0, 2] = -1
ABSENT[1] = -1
ABSENT[2, :5] = [POOL, POOL + 1, 2**31 - 1, -(2**31), -7]

CASES = {
  'several lengths': case(pages(), causal([1, 8, 57])),
  'shared pages': case(_SHARED, _scattered(1)),
  'absent pages': case(ABSENT, causal([48, 64, 48])),
  'ranges on either side': case(pages(), _either_side()),
  'window, one head': case(pages(), causal([5, 30, 64]), 12, heads=1),
  'ring, one head': case(pages(), _ring([100, 65, 7]), 12, heads=1),
  'window of one, ninety-six heads': case(
    pages(), causal([1, 41, 64]), 1, heads=96
  ),
  'beams': case(_SHARED, _beams(5), heads=3),
  'several queries, window': case(_SHARED, _scattered(5), 12, heads=3),
  'beams, window': case(_SHARED, _beams(5), 12, heads=3),
  # Some of a page, all of one, and more than some rows have tokens.
  'window, sinks, one head': case(
    pages(), causal([5, 30, 64]), 12, heads=1, sinks=5
  ),
  'beams, window, sinks': case(_SHARED, _beams(5), 12, heads=3, sinks=8),
  'window, many sinks, one head': case(
    ABSENT, causal([48, 7, 64]), 2, heads=1, sinks=43
  ),
}
# Pages of 32 slots, which is a tile of codes.
CODED = CASES['beams, window']._replace(
  table_BN=np.array([[7, 30], [7, 2], [39, 7]], np.int32)
)


def operands(case: Case, seed: int = 0) -> list[np.ndarray]:
  """Returns normal q, k, v; large enough for a sharp softmax."""
  random = np.random.default_rng(seed)
  B, L = case.visibility.coordinate_BL.shape
  slots = case.visibility.start_BM.shape[1] // case.table_BN.shape[1]
  pool = POOL, slots, K
  shapes = (B, L, case.heads, K), pool, pool
  return [random.normal(size=s, scale=2).astype(np.float32) for s in shapes]


def draw_codes(case: Case, q_codes: bool, per: str, seed: int = 3):
  """Returns codes for a case's operands; see `checks.draw_codes`."""
  return checks.draw_codes(operands(case), q_codes, per, seed)


def present(case: Case) -> np.ndarray:
  """Returns bool[B, M]: whether a slot's page is in the pool."""
  present_BN = (case.table_BN >= 0) & (case.table_BN < POOL)
  slots = case.visibility.start_BM.shape[1] // case.table_BN.shape[1]
  return np.repeat(present_BN, slots, axis=1)


def mask(case: Case) -> np.ndarray:
  """Returns bool[B, L, M], what each query sees, by numpy alone."""
  dense_BLM = visibility_lib.as_dense(case.visibility, case.window, case.sinks)
  return dense_BLM & present(case)[:, None]


def find_seen(case: Case) -> np.ndarray:
  """Returns bool[P, S]: whether any query sees a slot of the pool."""
  slots = case.visibility.start_BM.shape[1] // case.table_BN.shape[1]
  seen_PS = np.zeros((POOL, slots), bool)
  for row, places in enumerate(case.table_BN):
    seen_NS = mask(case)[row].any(axis=0).reshape(len(places), -1)
    here = (places >= 0) & (places < POOL)
    for page, seen_S in zip(places[here], seen_NS[here]):
      seen_PS[page] |= seen_S
  return seen_PS


def _call(window, sinks, dtype, sizes, implementation):
  def run(arrays, table_BN, visibility, scales):
    return api.decode(
      *arrays,
      table_BN,
      *visibility,
      window=window,
      sinks=sinks,
      scale=SCALE,
      sizes=sizes if implementation != 'reference' else None,
      dtype=dtype,
      implementation=implementation,
      **scales,
    )

  return run


def _variants(cases, kind):
  """Returns the arguments of each case, and with NaN where nobody looks."""
  found = {}
  for name, one in cases.items():
    if kind == 'int8':
      arrays, scales, _ = draw_codes(one, True, 'token')
    else:
      arrays, scales = operands(one), {}
      arrays = [x.astype(jnp.dtype(kind)) for x in arrays]
    found[name] = [*arrays], one.table_BN, one.visibility, scales
    for level in checks.LEVELS:
      far, far_scales = checks.at_level(operands(one), level, SCALE), {}
      if kind == 'int8':
        far, far_scales, _ = checks.encode(far)
      else:
        far = [x.astype(jnp.dtype(kind)) for x in far]
      at_level = f'{name}: logits near {level:g}'.strip(': ')
      found[at_level] = [*far], one.table_BN, one.visibility, far_scales
    seen_PS = find_seen(one)
    q, *pools = arrays
    if kind == 'int8':
      scales = scales | {
        each: np.where(seen_PS, scales[each], np.float32(np.nan))
        for each in ('k_scale', 'v_scale')
      }
    else:
      hole = np.array(np.nan, pools[0].dtype)
      pools = [np.where(seen_PS[..., None], x, hole) for x in pools]
    name = f'{name}: NaN where nobody looks'.strip(': ')
    found[name] = [q, *pools], one.table_BN, one.visibility, scales
  return found


def make(platform: str, dry: bool) -> Iterator[tuple[str, checks.Check]]:
  """Yields the checks by name, those most worth knowing first.

  Args:
    platform: whose implementations are checked.
    dry: whether each implementation has only its first check of each kind.
  """
  names = checks.list_kernels(api.RUNS_ON, platform)
  names.sort(key=lambda name: name == 'xla')
  # One compiled function for all cases that differ in arrays alone.
  groups: dict[Any, dict[str, Case]] = {}
  for name, one in CASES.items():
    key = one.window, one.sinks, one.heads, one.visibility.coordinate_BL.shape
    groups.setdefault(key, {})[name] = one
  for (kind, tolerance), implementation in (
    (pair, name) for pair in KINDS.items() for name in names
  ):
    # On a TPU a tile of codes has 32 rows.
    of_kind = [{'': CODED}] if kind == 'int8' else list(groups.values())
    for number, cases in enumerate(of_kind[: 1 if dry else None]):
      sizes = None
      if number % 2 == 0 and implementation != 'xla':
        rows = 32 if platform == 'tpu' else 16
        sizes = blocks.Sizes(rows, 32 if kind == 'int8' else 16, 2)
      dtype = jnp.float32 if kind == 'float32' else jnp.bfloat16
      label = ', '.join(cases) or 'beams, window'
      yield (
        f'paged decode, {implementation}, {kind}: {label}',
        checks.Check(
          6,
          implementation,
          functools.partial(_call, *cases_window(cases), dtype, sizes),
          functools.partial(_variants, cases, kind),
          tolerance,
        ),
      )


def cases_window(cases: dict[str, Case]) -> tuple[int | None, int]:
  """Returns the window and the sinks that all of these cases have."""
  (seen,) = {(one.window, one.sinks) for one in cases.values()}
  return seen
