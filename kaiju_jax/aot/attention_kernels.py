"""Makes one layer's attention kernels for a TPU, ready to be compiled."""

import contextlib

import jax
import jax.numpy as jnp

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import tuned
from kaiju_jax.kernels.visibility_attention import api
from kaiju_jax.kernels.visibility_attention import blocks
from kaiju_jax.kernels.visibility_attention import tpu_march


def layer(
  heads: int,
  window: int | None,
  kind: str,
  head_dim: int = 128,
  length: int = 32_768,
):
  """Returns a function that runs both passes, and its arguments' shapes.

  Args:
    heads: query heads on one device.
    window: tokens that a query sees, or None for all.
    kind: 'int8' for half-int8 attention, or a float's dtype.
    head_dim: K.
    length: number of queries, and of keys.
  """
  B, L, H, K = 1, length, heads, head_dim
  out = 'bfloat16' if kind == 'int8' else kind

  def array(dtype, *shape):
    return jax.ShapeDtypeStruct(shape, dtype)

  def scale(*shape):
    return array('float32', *shape) if kind == 'int8' else None

  def run(arrays, visibility, results, cotangents, scales):
    keywords = {
      'window': window,
      'scale': K**-0.5,
      'implementation': 'pallas_tpu',
      **scales,
    }
    return (
      api.forward(*arrays, *visibility, **keywords),
      api.backward(*arrays, *visibility, *results, *cotangents, **keywords),
    )

  vectors = array(out, B, L, H, K), array('float32', B, L, H)
  return run, (
    [array(kind, B, L, H, K), array(kind, B, L, K), array(kind, B, L, K)],
    [array('int32', B, L)] * 5,
    vectors,
    vectors,
    {
      'q_scale_BLH': scale(B, L, H),
      'k_scale': scale(B, L),
      'v_scale': scale(B, L),
    },
  )


def alone(*arguments, tiles: tuple[int, int] | None = None):
  """Returns a jit of a layer's kernels alone, and its arguments' shapes.

  It leaves out XLA's operations around the kernels, because the compiler would
  need most of its time to dump those.

  Args:
    *arguments: see `layer`.
    tiles: rows and keys per block; with None `blocks.tpu` chooses.
  """
  run, structs = layer(*arguments)
  calls = []

  def note(body, *arrays, outputs, **keywords):
    arrays = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arrays
    )
    calls.append((body, arrays, outputs, keywords))
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), outputs)

  trying = contextlib.nullcontext()
  if tiles is not None:
    trying = tuned.trying(blocks.TpuTiles(*tiles), 'tpu')
  march = tpu_march.march
  tpu_march.march = note
  try:
    with dispatch.compiling_for('tpu'), trying:
      jax.eval_shape(run, *structs)
  finally:
    tpu_march.march = march

  def kernels(*operands):
    return [
      march(body, *arrays, outputs=outputs, **keywords)
      for (body, _, outputs, keywords), arrays in zip(calls, operands)
    ]

  return jax.jit(kernels), [arrays for _, arrays, _, _ in calls]
