"""Every kernel computes its definition on the accelerator at hand.

    JAX_PLATFORMS=cuda,cpu python -m pytest -m device tests/device

`make gpu` runs these tests first, each so that a crash costs it alone, and
keeps what they measured. `tests/kernels` interprets the same cases on a CPU.
"""

import pytest

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import timing
from tests.device import checks
from tests.device import numerics

pytestmark = pytest.mark.device


def pytest_generate_tests(metafunc):
  if 'case' in metafunc.fixturenames:
    found = numerics.cases(dispatch.platform(), dispatch.interpreting())
    metafunc.parametrize('case', found.values(), ids=list(found))


def test_a_kernel_computes_its_definition(case, record_property):
  if dispatch.platform() == 'cpu':
    pytest.skip('needs an accelerator')
  with timing.trial(f'{case.kernel}, {case.check.implementation}'):
    found = checks.measure(case.check)
  record_property('record', {'kernel': case.kernel, **found})
  assert found['holds'], found['variants']
