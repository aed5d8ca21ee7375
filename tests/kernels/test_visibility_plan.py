"""The plan misses no pair of tiles that must meet, and seldom names another."""

import functools

import jax
import numpy as np
import pytest

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.kernels.visibility_attention import blocks
from kaiju_jax.kernels.visibility_attention import operands
from kaiju_jax.kernels.visibility_attention import plan


def conversation(
  length: int, seed: int, back: float, anywhere: bool, longest: int = 300
) -> visibility_lib.Visibility:
  """A chat whose turns are often taken back.

  Args:
    length: tokens.
    seed: of the turns.
    back: the chance that a turn continues an earlier one than the last.
    anywhere: whether it may continue any earlier turn of its path. Otherwise it
      is one near the last, as where an answer is asked for again.
    longest: tokens of a turn.
  """
  random = np.random.default_rng(seed)
  parents, ends = [], [-1]
  while len(parents) < length:
    if len(ends) > 2 and random.random() < back:
      kept = len(ends) - random.geometric(0.5)
      if anywhere:
        kept = random.integers(len(ends))
      del ends[max(kept, 2) :]
    turn = min(random.integers(1, longest), length - len(parents))
    parents += [ends[-1], *range(len(parents), len(parents) + turn - 1)]
    ends.append(len(parents) - 1)
  return visibility_lib.tree(parents)


def _packed(length, seed, longest):
  random = np.random.default_rng(seed)
  lengths = []
  while sum(lengths) < length - longest // 2:
    lengths.append(min(random.integers(1, longest), length - sum(lengths)))
  return visibility_lib.documents(lengths, length)


def _slots(queries, slots, seed):
  """Queries in any order over a shuffled cache with dead and empty slots."""
  random = np.random.default_rng(seed)
  position_M = random.permutation(slots)
  coordinate_L = random.integers(0, slots, queries)
  limit_M = np.maximum(position_M, random.integers(0, slots + 1, slots))
  fields = position_M, limit_M, coordinate_L, coordinate_L, position_M
  return visibility_lib.Visibility(*(np.int32(x)[None] for x in fields))


def _beams(slots, seed):
  """Live leaves of a random tree, in no order, over slots in no order."""
  random = np.random.default_rng(seed)
  slot_M = random.permutation(slots)
  parents = np.full(slots, -1)
  parents[slot_M[1:]] = slot_M[[random.integers(n) for n in range(1, slots)]]
  return visibility_lib.beams(parents.tolist(), slot_M[::3].tolist())


ROWS = {
  'causal': visibility_lib.causal(203),
  'packed': _packed(203, 0, 60),
  'two rows': visibility_lib.concatenate(
    [_packed(203, 1, 90), visibility_lib.documents([], 203)]
  ),
  'spans': visibility_lib.bidirectional(203, [(3, 90), (100, 101)]),
  'branches': conversation(203, 0, 0.5, anywhere=True),
  'bush': conversation(203, 1, 0.6, anywhere=True, longest=5),
  'shuffled slots': _slots(37, 203, 0),
  'few slots': _slots(203, 37, 1),
  'beams': _beams(203, 0),
  'one of each': visibility_lib.causal(1),
}

# Rows of one shape are judged together, which compiles the plan once.
TOGETHER = {
  'many': visibility_lib.concatenate(
    [
      row
      for row in ROWS.values()
      if row.start_BM.shape[1] == 203 and row.coordinate_BL.shape[1] == 203
    ]
  ),
  **{
    name: row
    for name, row in ROWS.items()
    if {x.shape[1] for x in row} != {203}
  },
}
every_row = pytest.mark.parametrize('row', TOGETHER.values(), ids=TOGETHER)


def _rows_in_blocks():
  """Each row in blocks of some rows, heads and window; not all are quick."""
  found = []
  for name, row in TOGETHER.items():
    for rows, heads, window in (
      *((8, 1, window) for window in (None, 1, 17, 500)),
      (24, 5, 17),
      *((32, 96, window) for window in (None, 17)),
    ):
      is_quick = name == 'many' or (heads, window) in ((1, None), (5, 17))
      found.append(
        pytest.param(
          *(row, rows, heads, window),
          id=f'{rows}-{heads}-{window}-{name}',
          marks=[pytest.mark.slow] * (not is_quick),
        )
      )
  return found


# Jitted, as eager operations would be compiled one by one.
_quick_jit = functools.partial(
  jax.jit,
  static_argnums=(1, 2, 3, 4),
  compiler_options={'xla_backend_optimization_level': 0},
)
_sees, _full = _quick_jit(plan.sees), _quick_jit(plan.full)


def _needed(row, window, rows, heads, keys):
  """bool[B, X, Y] from the dense mask, each token standing in `heads` rows."""
  dense_BLM = np.asarray(visibility_lib.as_dense(row, window))
  dense_BRM = np.repeat(dense_BLM, heads, axis=1)
  _, R, M = dense_BRM.shape
  spare = (0, 0), (0, -R % rows), (0, -M % keys)
  cut = np.pad(dense_BRM, spare)
  return cut.reshape(len(cut), -1, rows, -(-M // keys), keys).any(axis=(2, 4))


@pytest.mark.parametrize(('row', 'rows', 'heads', 'window'), _rows_in_blocks())
def test_no_pair_that_must_meet_is_missed(row, rows, heads, window):
  needed_BXY = _needed(row, window, rows, heads, 16)
  arguments = row, window, rows, heads, 16
  np.testing.assert_array_equal(plan.compute_dense(*arguments), needed_BXY)
  sees_BXY = np.asarray(_sees(*arguments))
  assert sees_BXY.shape == needed_BXY.shape
  assert not (needed_BXY & ~sees_BXY).any()


def test_blocks_are_full_where_every_query_sees_every_key():
  row = visibility_lib.documents([64, 40], 112)
  full_BXY = np.asarray(plan.full(row, 40, 16, 1, 16))
  assert [''.join('.x'[int(n)] for n in line) for line in full_BXY[0]] == [
    '.......',
    'x......',
    '.x.....',
    '..x....',
    '.......',
    '....x..',
    '.......',  # Ends in padding, which sees nothing.
  ]


@every_row
@pytest.mark.parametrize(
  ('rows', 'heads', 'window'), [(8, 1, None), (8, 1, 17), (24, 5, 17)]
)
def test_what_is_full_is_seen_by_all(row, window, rows, heads):
  full_BXY = np.asarray(_full(row, window, rows, heads, 4))
  dense_BLM = np.asarray(visibility_lib.as_dense(row, window))
  dense_BRM = np.repeat(dense_BLM, heads, axis=1)
  for b, x, y in np.argwhere(full_BXY):
    tile = dense_BRM[b, rows * x : rows * (x + 1), 4 * y : 4 * (y + 1)]
    assert tile.shape[1] == 4 and tile.all()


def test_full_blocks_stand_first():
  sees_BXY = np.array([[[True, False, True, True, True]]])
  full_BXY = np.array([[[False, True, True, False, True]]])
  full, count, numbers = plan.full_first(sees_BXY, full_BXY)
  assert full.tolist() == [[2]] and count.tolist() == [[4]]
  assert numbers[0, 0, :4].tolist() == [2, 4, 0, 3]
  assert 0 <= numbers[0, 0, 4] < 5


def test_lists_are_ascending_and_repeat_their_last():
  sees_BXY = np.array(
    [[list('x.x.'), list('....')], [list('.xxx'), list('x...')]]
  )
  sees_BXY = sees_BXY == 'x'
  of_queries, of_keys = plan.plan_queries(sees_BXY), plan.plan_keys(sees_BXY)
  np.testing.assert_array_equal(of_queries.count_BX, [[2, 0], [3, 1]])
  np.testing.assert_array_equal(
    of_queries.list_BXY,
    [[[0, 2, 2, 2], [0, 0, 0, 0]], [[1, 2, 3, 3], [0, 0, 0, 0]]],
  )
  np.testing.assert_array_equal(of_keys.count_BX, [[1, 0, 1, 0], [1, 1, 1, 1]])
  np.testing.assert_array_equal(
    of_keys.list_BXY,
    [[[0, 0]] * 4, [[1, 1], [0, 0], [0, 0], [0, 0]]],
  )
  assert of_queries.list_BXY.dtype == of_keys.count_BX.dtype == np.int32


def _exempt(row, sinks):
  return operands.Ranges(*row).exempt(sinks)


@every_row
def test_a_window_reaches_the_sinks_and_no_other_key(row):
  for window, sinks in (1, 1), (17, 4), (4, 17):
    np.testing.assert_array_equal(
      operands.visible(_exempt(row, sinks), window),
      visibility_lib.as_dense(row, window, sinks),
    )


# A row of some length, and the window that goes with it.
LONG = {
  'causal, window': (visibility_lib.causal, 1024),
  'packed': (lambda length: _packed(length, 0, 6000), None),
  'packed, window': (lambda length: _packed(length, 1, 6000), 1024),
  'chat, window': (
    lambda length: conversation(length, 0, 0.5, anywhere=False),
    1024,
  ),
  'branches, window': (
    lambda length: conversation(length, 0, 0.3, anywhere=True),
    1024,
  ),
  'packed, window, sinks': (
    lambda length: _exempt(_packed(length, 1, 6000), 4),
    1024,
  ),
  'branches, window, sinks': (
    lambda length: _exempt(conversation(length, 0, 0.3, anywhere=True), 4),
    1024,
  ),
}
long = pytest.mark.parametrize(('row', 'window'), LONG.values(), ids=LONG)


def _visited_in_vain(row, window, heads) -> float:
  """Tiles that are visited and need not be, of those that need to be."""
  tiles = blocks.plan_tiles(128, heads)
  executed, needed = plan.counts(row, window, 128, heads, 64, tiles)
  assert needed <= executed
  return executed / needed - 1


@long
def test_few_tiles_are_visited_in_vain(row, window):
  assert _visited_in_vain(row(8192), window, 12) <= 0.01


@pytest.mark.slow
@long
@pytest.mark.parametrize('heads', [1, 12, 96])
def test_few_tiles_are_visited_in_vain_at_32k(row, window, heads):
  assert _visited_in_vain(row(32768), window, heads) <= 0.01


@pytest.mark.parametrize('heads', [1, 12, 96])
def test_a_plan_at_32k_is_small(heads):
  length = 32768
  row = [jax.ShapeDtypeStruct((1, length), np.int32)] * 5
  rows = 128 * blocks.plan_tiles(128, heads)
  sees_BXY = jax.eval_shape(
    lambda *row: plan.sees(row, 1024, rows, heads, 64), *row
  )
  assert 4 * sees_BXY.size <= 8 * 2**20
