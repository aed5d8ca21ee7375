"""One block's product of two matrices, as a Pallas kernel."""

import jax
from jax.experimental import pallas as pl

_SUM = {'bfloat16': 'float32', 'float32': 'float32', 'int8': 'int32'}


def _dot(a_LK, b_KV, out_LV):
  out_LV[...] = jax.lax.dot_general(
    a_LK[...],
    b_KV[...],
    (((1,), (0,)), ((), ())),
    preferred_element_type=out_LV.dtype,
  )


def call(size, dtype, contracted=64, **options):
  """Returns one block's dot as a Pallas kernel, and its operands."""
  run = pl.pallas_call(
    _dot,
    out_shape=jax.ShapeDtypeStruct((size, size), _SUM[dtype]),
    name='one_dot',
    **options,
  )
  return jax.jit(lambda a_LK, b_KV: run(a_LK, b_KV)), (
    jax.ShapeDtypeStruct((size, contracted), dtype),
    jax.ShapeDtypeStruct((contracted, size), dtype),
  )
