"""Matrix instructions of TPU kernels that were not run."""

import functools

import pytest

from kaiju_jax.aot import tpu_kernels
from tests import compiled
from tests.aot import dots


@pytest.mark.aot
@pytest.mark.parametrize(
  ('accelerator', 'dtype', 'name'),
  [
    ('v5e_256', 'bfloat16', 'bf16'),
    ('v5p_128', 'int8', 's8'),
    ('v6e_256', 'float32', 'f32'),
  ],
)
def test_tpu_instructions_have_their_operands_type(dtype, name, accelerator):
  make = functools.partial(dots.call, 256, dtype, 256)
  counts = compiled.tpu(make, accelerator)['one_dot']
  assert list(counts) == [f'vmatmul {name}']
  assert counts[f'vmatmul {name}'] > 0


@pytest.mark.aot
def test_the_compilers_error_is_passed_on():
  make = functools.partial(dots.call, 256, 'complex64')
  with pytest.raises(RuntimeError, match='compiling for v5e_256') as refused:
    compiled.tpu(make, 'v5e_256')
  assert "KeyError: 'complex64'" in str(refused.value)


def test_another_platform_is_refused():
  make = functools.partial(dots.call, 64, 'int8')
  with pytest.raises(ValueError, match="'cpu_8' is a cpu: expected a tpu"):
    tpu_kernels.read(make, 'cpu_8')
