"""Operations and dtypes of matmuls, and int8 that did not stay int8."""

import jax
from jax import lax
import jax.numpy as jnp
import pytest

from kaiju_jax.aot import build
from kaiju_jax.aot.hlo import matmuls
from kaiju_jax.aot.hlo import text
from tests import compiled

PLACES = compiled.on('cpu_8', 'h100_8', 'v5p_128')


def _read(place, function, *shapes):
  arguments = [jax.ShapeDtypeStruct(*each) for each in shapes]
  program = build.build(jax.jit(function), compiled.placed(arguments, place))
  return build.matmuls(program)


@pytest.mark.parametrize('place', PLACES)
def test_an_int8_matmul_in_a_loop(place):
  def f(x_LD, w_NDF):
    def layer(x_LD, w_DF):
      codes_LD = jnp.round(x_LD).astype(jnp.int8)
      y_LF = jnp.einsum(
        'LD,DF->LF', codes_LD, w_DF, preferred_element_type=jnp.int32
      )
      return y_LF.astype(jnp.float32), None

    return lax.scan(layer, x_LD, w_NDF)[0]

  found = _read(place, f, ((256, 128), jnp.float32), ((6, 128, 128), jnp.int8))
  int8 = [x for x in found if x.is_int8]
  assert sum(x.total for x in int8) == 6 * 2 * 256 * 128 * 128
  assert {x.result for x in int8} == {'s32'}
  assert len(int8) == len(found)


@pytest.mark.parametrize('place', PLACES)
def test_a_batched_matmul(place):
  def f(x_BLD, w_BDF):
    return jnp.einsum('BLD,BDF->BLF', x_BLD, w_BDF)

  found = _read(
    place, f, ((4, 256, 128), jnp.float32), ((4, 128, 256), jnp.float32)
  )
  assert sum(x.total for x in found) == 2 * 4 * 256 * 128 * 256
  assert not any(x.is_int8 or x.is_widened for x in found)


@pytest.mark.parametrize('place', PLACES)
def test_codes_that_are_multiplied_as_floats_are_found(place):
  def widened(x_LD, w_DF):
    return jnp.einsum(
      'LD,DF->LF', x_LD.astype(jnp.float32), w_DF.astype(jnp.float32)
    )

  def scaled(x_LD, w_DF):
    return jnp.einsum(
      'LD,DF->LF', x_LD * jnp.float32(0.5), w_DF * jnp.float32(0.5)
    )

  codes = ((256, 128), jnp.int8), ((128, 256), jnp.int8)
  (found,) = _read(place, widened, *codes)
  # A TPU's compiler makes it s8×s8→f32 by itself.
  assert found.is_int8 if place == 'v5p_128' else found.is_widened
  assert not any(x.is_widened for x in _read(place, scaled, *codes))


_CUBLAS = """\
HloModule m

ENTRY %main (x: s8[64,32], w: s8[16,32]) -> s32[64,16] {
  %x = s8[64,32]{1,0} parameter(0)
  %w = s8[16,32]{1,0} parameter(1)
  ROOT %y = s32[64,16]{1,0} custom-call(%x, %w), custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["1"]}}}
}
"""  # noqa: E501


def test_a_call_of_cublas():
  (found,) = matmuls.read(text.parse(_CUBLAS))
  assert found.dtypes == 's8×s8→s32'
  assert found.total == 2 * 64 * 16 * 32
  assert matmuls.totals([found, found]) == {'s8×s8→s32': 2 * found.total}
