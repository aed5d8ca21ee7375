"""A wrong kernel does not hold its definition; checks reach every kernel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.benchmarks.device import proposal
from kaiju_jax.kernels.int8_matmul import api as matmul_api
from kaiju_jax.kernels.paged_decode import api as decode_api
from kaiju_jax.kernels.squinch import api as squinch_api
from kaiju_jax.kernels.visibility_attention import api as attention_api
from tests.device import checks
from tests.device import numerics

_APIS = {
  'visibility_attention': attention_api,
  'int8_matmul': matmul_api,
  'paged_decode': decode_api,
  'squinch': squinch_api,
}
_X = np.array([1.0, -40.0, 3.0], np.float32)


@pytest.mark.parametrize(
  ('got', 'error', 'misplaced', 'different'),
  [
    ([1.0, np.nan, 3.0], 0, 0, 0),
    ([1.0, np.nan, 3.5], 0.1, 0, 1 / 3),
    ([np.nan, np.nan, 3.0], 0, 1, 1 / 3),
    ([1.0, -40.0, 3.0], 0, 1, 1 / 3),
    ([1.0, np.inf, 3.0], 0, 1, 1 / 3),
  ],
)
def test_errors_and_what_is_not_finite(got, error, misplaced, different):
  want = np.array([1.0, np.nan, 3.0]), np.array([5.0])
  found = checks.compare((np.array(got), np.array([5.0])), want)
  assert found['misplaced'] == misplaced
  assert found['error'] == pytest.approx(error * 5 / 3 if error else 0)
  assert found['different'] == pytest.approx(different * 3 / 4)


def _check(wrong, tolerance=0.01):
  def call(name):
    return lambda x: jnp.sin(x) if name == 'reference' else wrong(x)

  variants = {'plain': (_X,), 'again': (2 * _X,)}
  return checks.Check(1, 'mine', call, lambda: variants, tolerance)


@pytest.mark.parametrize(
  ('wrong', 'holds'),
  [
    (jnp.sin, True),
    (lambda x: jnp.sin(x) + 0.005, True),
    (lambda x: jnp.sin(x) + 0.02, False),
    (lambda x: jnp.where(x == 6, jnp.nan, jnp.sin(x)), False),
  ],
)
def test_a_check_holds_for_the_definition_alone(wrong, holds):
  found = checks.measure(_check(wrong))
  assert found['holds'] == holds
  assert set(found['variants']) == {'plain', 'again'}
  jitted, shapes = checks.program(_check(wrong))
  assert [x.shape for x in shapes] == [(3,)]
  assert jitted.lower(*shapes).out_info.shape == (3,)


@pytest.mark.parametrize('platform', ['gpu', 'tpu'])
def test_every_implementation_of_the_platform_is_checked(platform):
  found = numerics.cases(platform)
  checked = {
    (case.kernel, case.check.implementation) for case in found.values()
  }
  assert checked == {
    (kernel, name)
    for kernel, api in _APIS.items()
    for name, places in api.RUNS_ON.items()
    if platform in places and name != 'reference'
  }
  for name, case in found.items():
    about = case.kernel, case.check.implementation
    assert proposal.parse_check(name) == about, name
  # Whatever the time allows, each kernel was looked at.
  first = [case.kernel for case in found.values()][: len(_APIS)]
  assert set(first) == set(_APIS)


def test_variants_hold_nan_and_queries_that_see_nothing():
  found = numerics.cases('gpu')
  for name in (
    'attention, pallas_gpu, bfloat16: windows',
    'attention, pallas_gpu, int8: windows',
    'paged decode, pallas_gpu, int8: beams, window',
    'int8 product, xla, bfloat16, exact parts: by the last',
    'squinch encode, pallas_gpu, zero, ln6: float32',
  ):
    variants = found[name].check.variants()
    holds_nan = [
      any(
        np.isnan(np.asarray(x, np.float32)).any()
        for x in jax.tree.leaves(arguments)
        if jnp.issubdtype(x.dtype, jnp.floating)
      )
      for arguments in variants.values()
    ]
    assert any(holds_nan), name
    # All variants of a check have the same shapes: it compiles once.
    shapes = {
      str(jax.tree.map(lambda x: (np.shape(x), x.dtype), arguments))
      for arguments in variants.values()
    }
    assert len(shapes) == 1, name
