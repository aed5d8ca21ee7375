"""The kernel in Triton itself, by Triton's interpreter.

Whether a process interprets Triton kernels is settled when they are imported,
so the first test here runs the others in a process of its own, on the cases
and by the oracle of `test_visibility_attention`.
"""

import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import tuned
from kaiju_jax.kernels.visibility_attention import api
from kaiju_jax.kernels.visibility_attention import blocks
from tests.device import attention as cases
from tests.device import checks
from tests.kernels import dense

_HERE = 'TRITON_INTERPRET' in os.environ
_TILES = blocks.Tiles(rows=32, keys=32, warps=4, stages=2)

interpreted = pytest.mark.skipif(
  not _HERE, reason='run by test_in_a_process_of_its_own'
)
# It needs the packages of `make aot`, and compiles nothing.
pytestmark = pytest.mark.aot
compiled = pytest.mark.skipif(_HERE, reason='this process interprets')


@pytest.fixture(autouse=True)
def _installed():
  pytest.importorskip('triton')
  # Without JAX's GPU plug-in it is no missing module.
  pytest.importorskip('jax_triton', exc_type=ImportError)


@compiled
@pytest.mark.timeout(600)
def test_in_a_process_of_its_own():
  done = subprocess.run(
    [
      *(sys.executable, '-m', 'pytest', '-p', 'no:xdist', '-p'),
      *('no:cacheprovider', '-q', '-rs', __file__),
    ],
    cwd=pathlib.Path(__file__).parents[2],
    env=os.environ | {'TRITON_INTERPRET': '1'},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  assert 'test_in_a_process_of_its_own' not in done.stdout, done.stdout


def _forward(case, operands, implementation='triton_kernel', **keywords):
  with dispatch.interpret(), tuned.trying(_TILES):
    return api.forward(
      *operands,
      *case.visibility,
      window=case.window,
      implementation=implementation,
      **{'scale': cases.SCALE} | keywords,
    )


_CASES = (
  cases.CASES
  | cases.SHAPES
  | {
    name: cases.Case(visibility, cases.EDGE_WINDOW, 1)
    for name, visibility in cases.EDGES.items()
  }
)


@interpreted
@pytest.mark.parametrize('case', _CASES.values(), ids=_CASES)
def test_output_and_lse(case):
  operands = cases.operands(case)
  dense.close(_forward(case, operands), dense.oracle(case, *operands))


@interpreted
@pytest.mark.parametrize('q_codes', [True, False], ids=['int8 q', 'float q'])
@pytest.mark.parametrize('per', ['token', 'channel'])
@pytest.mark.parametrize(
  'name', ['rows of every kind, window', 'few queries, many slots']
)
def test_codes_mean_what_they_stand_for(q_codes, per, name):
  case = _CASES[name]
  codes, scales, values = cases.draw_codes(case, q_codes, per)
  results = _forward(case, codes, dtype=jnp.float32, **scales)
  dense.close(results, dense.oracle(case, *values), 1e-4)


@interpreted
@pytest.mark.parametrize('level', checks.LEVELS)
def test_logits_far_from_zero(level):
  case = cases.WINDOW
  floats = cases.at_level(case, level)
  dense.close(_forward(case, floats), dense.oracle(case, *floats), 1e-4)
  codes, scales, values = checks.encode(floats)
  results = _forward(case, codes, dtype=jnp.float32, **scales)
  dense.close(results, dense.oracle(case, *values), 1e-4)


@interpreted
@pytest.mark.parametrize('scale', [-0.3, 0.0])
def test_a_scale_may_turn_the_logits(scale):
  case = cases.WINDOW
  operands = cases.operands(case)
  expected = _forward(case, operands, 'reference', scale=scale)
  dense.close(_forward(case, operands, scale=scale), expected)


@interpreted
def test_half_precision_and_an_odd_head_size():
  case = cases.WINDOW._replace(head_dim=40)
  operands = [x.astype(np.float16) for x in cases.operands(case)]
  out_BLHK, lse_BLH = _forward(case, operands)
  assert out_BLHK.dtype == jnp.float16 and lse_BLH.dtype == jnp.float32
  wide = [x.astype(np.float32) for x in operands]
  dense.close((out_BLHK, lse_BLH), dense.oracle(case, *wide), 3e-3)


@interpreted
def test_within_jit_and_with_gradients():
  case = cases.WINDOW
  operands = cases.operands(case)

  def loss(operands, implementation):
    results = api.attention(
      *operands,
      *case.visibility,
      window=case.window,
      scale=cases.SCALE,
      implementation=implementation,
    )
    return sum(jnp.sin(x).sum() for x in results)

  with dispatch.interpret(), tuned.trying(_TILES):
    ours, reference = (
      jax.jit(jax.grad(loss), static_argnums=1)(operands, name)
      for name in ('triton_kernel', 'reference')
    )
  dense.close(ours, reference)


@interpreted
@pytest.mark.parametrize('where', ['k', 'v'])
def test_what_is_not_finite_reaches_the_queries_that_see_it(where):
  case = cases.WINDOW
  arrays = dict(zip('qkv', cases.operands(case)))
  arrays['k'][:, 10] = arrays['v'][:, 10] = 0
  clean = _forward(case, arrays.values())
  arrays[where] = arrays[where].copy()
  arrays[where][:, 10, 3] = np.nan
  dense_BLM, _ = dense.masks(case)
  found = _forward(case, arrays.values())
  dense.assert_nan_where(found, clean, dense_BLM[:, :, 10])


@interpreted
def test_bfloat16_is_refused():
  case = cases.WINDOW
  operands = [x.astype(jnp.bfloat16) for x in cases.operands(case)]
  with pytest.raises(ValueError, match='wrongly in bfloat16'):
    _forward(case, operands)


@compiled
def test_a_process_that_compiles_does_not_interpret():
  case = cases.WINDOW
  with pytest.raises(ValueError, match='only where TRITON_INTERPRET=1 was set'):
    _forward(case, cases.operands(case))
