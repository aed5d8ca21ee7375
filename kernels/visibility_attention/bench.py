"""Attention's implementations and peers at the presets' shapes.

Tiles are pairs that the GPU's and the TPU's kernels visit, and have to visit.
Errors are against the reference at 2,048 tokens.

The backward pass needs five products per visible pair, the forward pass two.
The kernels compute seven in the backward pass, because each of its halves
recomputes QKᵀ and dout · vᵀ.
"""

from collections.abc import Iterator
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax.kernels import benchmark
from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.visibility_attention import api
from kaiju_jax.kernels.visibility_attention import blocks
from kaiju_jax.kernels.visibility_attention import codes
from kaiju_jax.kernels.visibility_attention import peers
from kaiju_jax.kernels.visibility_attention import plan
from kaiju_jax.kernels.visibility_attention import shapes

SHAPES = shapes.SHAPES
FIRST = (
  '110b, window',
  '110b, window, int8',
  '110b, all',
  '110b, all, int8',
  '250m, window',
  '15m, all',
)
TINY = shapes.Shape(48, 2, 32, window=20)
_PASSES = {'forward': ('forward',), 'backward': ('dq', 'dkv')}
_PRODUCTS = {'forward': 2, 'backward': 5}
# Tokens per row in the comparison with the reference, whose mask is dense.
_COMPARED = 2048


def subjects(label: str, shape: shapes.Shape) -> Iterator[benchmark.Subject]:
  """Yields both passes, with the platform's kernels and the peers.

  On a CPU, where none is timed, the contenders are the kernels whose tiles are
  counted.
  """
  pairs = shapes.pairs(shape)
  ours = _ours(shape) if benchmark.is_timed() else list(_COUNTED)
  errors_of = functools.cache(functools.partial(errors, shape))
  for part in _PASSES:
    contenders = {
      name: _contender(shape, name, part, errors_of) for name in ours
    }
    if benchmark.is_timed():
      contenders |= peers.available(shape, part)
    yield benchmark.Subject(
      kernel=f'visibility_attention {part}',
      shape=label,
      operations=2 * _PRODUCTS[part] * pairs * shape.heads * shape.head_dim,
      bytes=_bytes(shape, part),
      make=functools.partial(_make, shape),
      contenders=contenders,
      calls=1,
    )


def default(shape: shapes.Shape) -> str:
  """Returns the platform's implementation at a shape."""
  return blocks.implementation(
    dispatch.platform(), shape.length, shape.length, shape.head_dim
  )


def _make(shape) -> dict[str, Any]:
  """Returns the operands of our kernels, and floats for the peers."""
  floats, _, dout_BLHK, _ = operands(shape._replace(coded=False))
  return {'ours': operands(shape), 'peers': (*floats, dout_BLHK)}


def _contender(shape, name: str, part: str, errors_of) -> benchmark.Contender:
  forward, backward = calls(shape, name)

  def arguments(made):
    arrays, scales, dout_BLHK, dlse_BLH = made['ours']
    if part == 'forward':
      return arrays, scales
    cotangents = *forward(arrays, scales), dout_BLHK, dlse_BLH
    return arrays, scales, cotangents

  return benchmark.Contender(
    {'forward': forward, 'backward': backward}[part],
    arguments,
    lambda made: errors_of(name)[part],
    tiles=tiles(shape, part, name) if name in _COUNTED else None,
  )


def tiles(
  shape: shapes.Shape, part: str, implementation: str
) -> tuple[int, int]:
  """Returns how many pairs of tiles a kernel visits, and how many it has to.

  Args:
    shape: the attention's shape.
    part: 'forward' or 'backward'.
    implementation: 'pallas_gpu' or 'pallas_tpu'.
  """
  counts = [
    _counts(shape._replace(batch=1), *_COUNTED[implementation](shape, kind))
    for kind in _PASSES[part]
  ]
  visited, needed = (shape.batch * sum(each) for each in zip(*counts))
  return visited, needed


@functools.cache
def _counts(shape, rows, keys, shared):
  ranges = shapes.ranges(shape)
  return plan.counts(ranges, shape.window, rows, shape.heads, keys, shared)


def gpu_blocks(shape: shapes.Shape, kind: str) -> blocks.Tiles:
  """Returns the blocks that a GPU's kernel has at a shape."""
  return blocks.gpu(
    kind,
    rows=shape.length * shape.heads,
    memory=shape.length,
    window=shape.window,
    head_dim=shape.head_dim,
    itemsize=2,
    integer_dot=shape.coded,
  )


def _gpu_tiles(shape, kind):
  """Returns rows and keys per tile, and how many tiles share a list."""
  rows, keys, *_ = gpu_blocks(shape, kind)
  return rows, keys, blocks.plan_tiles(rows, shape.heads)


def _tpu_tiles(shape, kind):
  """Returns the same for a TPU, where all kernels have the same tiles."""
  del kind
  rows, keys = blocks.tpu(
    length=shape.length,
    memory=shape.length,
    heads=shape.heads,
    head_dim=shape.head_dim,
    itemsize=2,
    window=shape.window,
  )
  return rows, keys, 1


_COUNTED = {'pallas_gpu': _gpu_tiles, 'pallas_tpu': _tpu_tiles}


def _bytes(shape, part) -> int:
  """Returns the bytes of all operands and results, each counted once."""
  q = shape.batch * shape.length * shape.heads
  k = shape.batch * shape.length
  one = 1 if shape.coded else 2
  operands = one * shape.head_dim * (q + 2 * k)
  if shape.coded:
    operands += 4 * (q + 2 * k)
  result = q * (2 * shape.head_dim + 4)
  if part == 'forward':
    return operands + result
  return operands + 2 * result + 2 * shape.head_dim * (q + 2 * k)


def _ours(shape) -> list[str]:
  """Returns the platform's kernels, and `chunked` where it is quick enough."""
  here = dispatch.platform()
  kernels = [
    name
    for name, places in api.RUNS_ON.items()
    if here in places
    and places != dispatch.ANYWHERE
    # Mosaic GPU's interpreter takes minutes.
    and not (dispatch.interpreting() and name == 'mosaic_gpu')
  ]
  short = shape.window is not None or shape.length <= 8192
  return kernels + ['chunked'] * short


def operands(shape: shapes.Shape):
  """Returns ((q, k, v), scales, dout, dlse) of random values."""
  B, L, H, K = shape.batch, shape.length, shape.heads, shape.head_dim
  keys = jax.random.split(jax.random.key(0), 5)
  q_BLHK, k_BMK, v_BMK, dout_BLHK = (
    jax.random.normal(key, (B, L, *rest), jnp.bfloat16)
    for key, rest in zip(keys, [(H, K), (K,), (K,), (H, K)])
  )
  dlse_BLH = jax.random.normal(keys[4], (B, L, H))
  if not shape.coded:
    return (q_BLHK, k_BMK, v_BMK), {}, dout_BLHK, dlse_BLH
  coded = [_code(x) for x in (q_BLHK, k_BMK, v_BMK)]
  names = 'q_scale_BLH', 'k_scale', 'v_scale'
  scales = {name: scale for name, (_, scale) in zip(names, coded)}
  return [codes for codes, _ in coded], scales, dout_BLHK, dlse_BLH


def _code(x):
  x = x.astype(jnp.float32)
  scale = jnp.abs(x).max(axis=-1) / 127
  return jnp.round(x / scale[..., None]).astype(jnp.int8), scale


def calls(shape: shapes.Shape, implementation: str):
  """Returns jitted forward(arrays, scales) and backward(…, cotangents)."""
  ranges = tuple(map(jnp.asarray, shapes.ranges(shape)))
  keywords = {
    'window': shape.window,
    'scale': shape.head_dim**-0.5,
    'implementation': implementation,
  }

  @jax.jit
  def forward(arrays, scales):
    return api.forward(*arrays, *ranges, **keywords, **scales)

  @jax.jit
  def backward(arrays, scales, cotangents):
    return api.backward(*arrays, *ranges, *cotangents, **keywords, **scales)

  return forward, backward


def errors(shape: shapes.Shape, name: str) -> dict[str, float]:
  """Returns each pass's error, relative to the reference's largest value."""
  shape = shape._replace(length=min(shape.length, _COMPARED), batch=1)
  arrays, scales, dout_BLHK, dlse_BLH = operands(shape)
  names = {'q_scale_BLH': 0, 'k_scale': 1, 'v_scale': 2}
  floats = [x.astype(jnp.float32) for x in arrays]
  for field, scale in scales.items():
    floats[names[field]] = codes.dequantize(
      arrays[names[field]], scale, jnp.float32
    )

  def run(name, arrays, scales):
    forward, backward = calls(shape, name)
    results = forward(arrays, scales)
    cotangents = *results, dout_BLHK, dlse_BLH
    return results, backward(arrays, scales, cotangents)

  with jax.default_matmul_precision('highest'):
    wanted = run('reference', floats, {})
  found = run(name, arrays, scales)
  return {
    part: max(map(_error, got, want))
    for part, got, want in zip(_PASSES, found, wanted)
  }


def _error(x, y) -> float:
  x, y = np.asarray(x, np.float32), np.asarray(y, np.float32)
  return float(np.abs(x - y).max() / np.abs(y).max())
