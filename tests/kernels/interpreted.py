"""Which cases of an interpreted kernel are quick tests.

An interpreted kernel is compiled for seconds, so that the quick tests see each
function of a Pallas implementation through one small case: several blocks, the
last one in part. All its other cases are slow tests; what is not interpreted is
a quick test with every case.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

import pytest


def is_interpreted(implementation: str) -> bool:
  return implementation.startswith('pallas')


def parameters(
  implementations: Iterable[str],
  cases: Mapping[str, Any] | None = None,
  quick: Iterable[str] = (),
) -> list[Any]:
  """Returns parameters for `parametrize`: implementations times cases.

  Args:
    implementations: names of modules.
    cases: a test's other values by their names, a tuple where there are several
      per test; None where there are none.
    quick: names of the cases with which interpreted kernels are quick tests.

  Raises:
    ValueError: a name in `quick` that is no case.
  """
  cases = {'': ()} if cases is None else cases
  unknown = set(quick) - set(cases)
  if unknown:
    raise ValueError(f'quick={sorted(unknown)}: expected names of cases.')
  return [
    pytest.param(
      implementation,
      *(values if type(values) is tuple else (values,)),
      id='-'.join(filter(None, (implementation, name))),
      marks=[pytest.mark.slow]
      * (is_interpreted(implementation) and name not in quick),
    )
    for implementation in implementations
    for name, values in cases.items()
  ]
