"""The TPU kernels' own properties: blocks of 128 lanes, chains, copies.

In test_visibility_attention.py, which all implementations share, few rows fill
more than one of their blocks.
"""

import functools

from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import tuned
from kaiju_jax.kernels.visibility_attention import api
from kaiju_jax.kernels.visibility_attention import blocks
from kaiju_jax.kernels.visibility_attention import operands
from kaiju_jax.kernels.visibility_attention import pallas_tpu
from kaiju_jax.kernels.visibility_attention import plan
from kaiju_jax.kernels.visibility_attention import tpu_march
from tests.device import attention as shared
from tests.kernels import dense

Case = shared.Case


@pytest.fixture
def small_blocks():
  """Interpreted, in blocks of 256 rows and 128 keys."""
  with dispatch.interpret(), tuned.trying(blocks.TpuTiles(256, 128), 'tpu'):
    yield


in_small_blocks = pytest.mark.usefixtures('small_blocks')


def _tree(length, seed):
  """A tree of branches that begin anywhere on the path before them."""
  random = np.random.default_rng(seed)
  path, parents = [], []
  for node in range(length):
    if path and random.random() < 0.05:
      del path[random.integers(0, len(path)) + 1 :]
    parents.append(path[-1] if path else -1)
    path.append(node)
  return visibility_lib.tree(parents)


_LENGTH = 270
_EVERY_KIND = visibility_lib.concatenate(
  [
    visibility_lib.causal(_LENGTH),
    visibility_lib.documents([50, 3, 130, 60], _LENGTH),
    visibility_lib.documents([], _LENGTH),
    _tree(_LENGTH, seed=1),
    visibility_lib.side_by_side(
      [
        visibility_lib.bidirectional(150, [(10, 140)]),
        _tree(99, seed=2),
      ],
      _LENGTH,
    ),
    shared.slots(_LENGTH, _LENGTH, seed=3),
  ]
)
CASES = {
  'every kind, window': Case(_EVERY_KIND, 40, 2),
  'every kind': Case(_EVERY_KIND, None, 2),
}


# One visible pair lies just inside each kind of bound of 256 rows by 128 keys.
EDGES = {
  'a key starts at the last query of a block': Case(
    shared.one_ahead(512), 257, 1
  ),
  'a key ends after the first query of a block': Case(
    visibility_lib.documents([257, 255], 512), None, 1
  ),
  'a window ends at the last key of a block': Case(
    visibility_lib.causal(512), 130, 1
  ),
}


def _check(case):
  """Holds both passes to the oracles."""
  arrays, cotangents = shared.operands(case), shared.cotangents(case)
  # Traced anew, in the blocks and with the interpreter of the moment.
  dense.runner.cache_clear()
  results, gradients = dense.attend_and_pull(
    case, 'pallas_tpu', arrays, cotangents
  )
  dense.close(results, dense.oracle(case, *arrays))
  dense.close(gradients, dense.gradients(case, arrays, *cotangents))


@in_small_blocks
@pytest.mark.parametrize(
  'case',
  [
    # With a window in the quick tests; the rest differs in the plan alone,
    # which has quick tests of its own.
    CASES['every kind, window'],
    *(
      pytest.param(case, marks=pytest.mark.slow)
      for case in (CASES['every kind'], *EDGES.values())
    ),
  ],
  ids=[*CASES, *EDGES],
)
def test_output_lse_and_gradients(case):
  _check(case)


@in_small_blocks
def test_blocks_that_no_query_sees_are_not_visited():
  case = Case(visibility_lib.causal(640), 64, 1)
  of_module = operands.Ranges(*case.visibility), operands.Scales()
  q_BLHK, k_BMK, v_BMK = shared.operands(case)
  # Zero weight times NaN is NaN, as the module is not guarded against it: what
  # is finite never met these values.
  v_BMK[:, 128:256] = np.nan
  out_BLHK, _ = dense.quick_jit(
    functools.partial(
      pallas_tpu.forward, window=64, scale=dense.SCALE, dtype=jnp.float32
    )
  )(q_BLHK, k_BMK, v_BMK, *of_module)
  finite_X = [np.isfinite(x).all() for x in np.split(out_BLHK[0], [256, 512])]
  # Rows 256 to 319 look back at the block: their whole tile visits it.
  assert finite_X == [False, False, True]


@pytest.mark.parametrize(
  ('shape', 'expected'),
  [
    ({'heads': 1}, (1024, 512)),
    ({'heads': 5}, (640, 512)),
    ({'heads': 7}, (896, 512)),
    ({'heads': 12}, (768, 512)),
    ({'heads': 96, 'window': 1024}, (768, 256)),
    ({'heads': 96, 'window': 4096}, (768, 512)),
    # No whole tokens in so few rows; two tiles that do not divide evenly.
    ({'heads': 97}, (1024, 512)),
    ({'heads': 8, 'length': 150, 'memory': 150}, (640, 256)),
    # One token over a long memory; a short one.
    ({'heads': 12, 'length': 1}, (128, 512)),
    ({'heads': 1, 'length': 70, 'memory': 300}, (128, 256)),
    # Wider numbers, fewer rows.
    ({'heads': 5, 'itemsize': 4}, (512, 512)),
    ({'heads': 4, 'itemsize': 4, 'head_dim': 256}, (256, 512)),
  ],
)
def test_tiles(shape, expected):
  common = {
    'length': 32768,
    'memory': 32768,
    'head_dim': 128,
    'itemsize': 2,
    'window': None,
  }
  tiles = blocks.tpu(**common | shape)
  assert tiles == expected
  assert tiles.rows % 128 == tiles.keys % 128 == 0


def test_orders():
  # Four blocks, so two chains: 0 → 2 and 1 → 3.
  sees_BXY = np.array(
    [[[1, 0, 0], [0, 0, 0], [0, 1, 1], [0, 0, 1]]], dtype=bool
  )
  full_BXY = np.array(
    [[[1, 1, 1], [0, 0, 0], [0, 0, 1], [0, 0, 0]]], dtype=bool
  )
  orders = tpu_march.orders(plan.plan_queries(sees_BXY), full_BXY)
  count_X = [1, 0, 2, 1]
  words = [[1, 2], [4], [2, 5, -1], [4, -1]]
  assert orders.shape == (1, 4, 1, 5)
  for row_N, count, expected in zip(orders[0, :, 0], count_X, words):
    assert row_N[0] == count
    assert list(row_N[1 : 2 + count]) == expected


@pytest.mark.slow
@in_small_blocks
def test_masked_and_full_blocks_agree(monkeypatch):
  case = Case(visibility_lib.documents([50, 550], 600), 420, 1)
  arrays = *shared.operands(case), *case.visibility

  def forward():
    # Jitted anew, and so traced with the plan of the moment.
    run = functools.partial(
      api.forward,
      window=case.window,
      scale=dense.SCALE,
      implementation='pallas_tpu',
    )
    return dense.quick_jit(lambda *arrays: run(*arrays))(*arrays)

  found = []
  real = plan.full

  def kept(*arguments):
    found.append(arguments[1:])
    return real(*arguments)

  def none(*arguments):
    return jnp.zeros_like(real(*arguments))

  monkeypatch.setattr(plan, 'full', kept)
  results = forward()
  # 256 rows by 128 keys; rows 512 to 599 look back to key 180.
  full_BXY = real(operands.Ranges(*case.visibility), *found[0])
  assert full_BXY[0].astype(int).tolist() == [
    [0, 0, 0, 0, 0],
    [0, 1, 0, 0, 0],
    [0, 0, 1, 1, 0],
  ]
  monkeypatch.setattr(plan, 'full', none)
  dense.close(forward(), results, 1e-6)


@pytest.mark.slow
@in_small_blocks
def test_copies_race_with_nothing(monkeypatch, capfd):
  """Simulated memory that starts as NaN, and copies that wait to the last."""
  case = Case(visibility_lib.documents([200, 120], 320), 150, 2)
  parameters = pltpu.InterpretParams(
    detect_races=True, dma_execution_mode='on_wait', uninitialized_memory='nan'
  )
  monkeypatch.setattr(dispatch, 'interpreting', lambda: parameters)
  _check(case)
  output = capfd.readouterr()
  assert 'RACE' not in output.out + output.err
