"""Benchmarks every implementation and every peer at the presets' shapes.

    python -m kaiju_jax.kernels.visibility_attention.bench [--json=PATH]

On a CPU nothing is timed. The table holds the operations and bytes that a shape
needs, and for the GPU's and the TPU's kernels how many pairs of tiles they
visit and how many they have to visit. On an accelerator the implementations of
a shape are timed side by side, and compared with the reference at 2,048 tokens.

The backward pass needs five products per visible pair, the forward pass two.
The kernels compute seven in the backward pass, because each of its halves
recomputes QKᵀ and dout · vᵀ.
"""

from collections.abc import Iterator
import functools

import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import report
from kaiju_jax.kernels import timing
from kaiju_jax.kernels.visibility_attention import api
from kaiju_jax.kernels.visibility_attention import blocks
from kaiju_jax.kernels.visibility_attention import codes
from kaiju_jax.kernels.visibility_attention import peers
from kaiju_jax.kernels.visibility_attention import plan
from kaiju_jax.kernels.visibility_attention import shapes

_PASSES = {'forward': ('forward',), 'backward': ('dq', 'dkv')}
_PRODUCTS = {'forward': 2, 'backward': 5}
# Tokens per row in the comparison with the reference, whose mask is dense.
_COMPARED = 2048


def measure(
  repeats: int, named: dict[str, shapes.Shape] = shapes.SHAPES
) -> list[report.Row]:
  """Returns the report's rows of both passes at each shape.

  Args:
    repeats: rounds, each timing every contender once.
    named: shapes by name.
  """
  return [
    row for name in named for row in _of_shape(name, named[name], repeats)
  ]


def _of_shape(name, shape, repeats) -> Iterator[report.Row]:
  pairs = shapes.pairs(shape)
  on_cpu = dispatch.platform() == 'cpu'
  ours = list(_COUNTED) if on_cpu else _ours(shape)
  contenders, problems = ({}, {}) if on_cpu else _contenders(shape, ours)
  errors = (
    {} if on_cpu else _errors(shape, [x for x in ours if x in contenders])
  )
  for part in _PASSES:
    runs = {each: calls[part] for each, calls in contenders.items()}
    times = timing.spreads(runs, repeats) if runs else {}
    for contender in dict.fromkeys([*ours, *runs, *problems]):
      yield report.Row(
        kernel=f'visibility_attention {part}',
        shape=name,
        implementation=contender,
        operations=2 * _PRODUCTS[part] * pairs * shape.heads * shape.head_dim,
        bytes=_bytes(shape, part),
        tiles=(
          tiles(shape, part, contender) if contender in _COUNTED else None
        ),
        max_error=errors.get((contender, part)),
        is_peer=contender not in ours,
        problem=problems.get(contender),
        **report.time_fields(times.get(contender)),
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


def _contenders(shape, ours):
  """Returns calls of both passes by name, and why the others have none."""
  floats, _, dout_BLHK, _ = operands(shape._replace(coded=False))
  makers = {name: functools.partial(_own, shape, name) for name in ours}
  makers |= peers.available(shape, *floats, dout_BLHK)
  found, problems = {}, {}
  for name, make in makers.items():
    try:
      with timing.trial(name):
        contender = make()
        jax.block_until_ready((contender.forward(), contender.backward()))
    except Exception as error:  # Each fails in its own way.
      problems[name] = timing.tell(error)
    else:
      found[name] = contender._asdict()
  return found, problems


def _own(shape, name) -> peers.Peer:
  arrays, scales, dout_BLHK, dlse_BLH = operands(shape)
  forward, backward = calls(shape, name)
  cotangents = *forward(arrays, scales), dout_BLHK, dlse_BLH
  return peers.Peer(
    functools.partial(forward, arrays, scales),
    functools.partial(backward, arrays, scales, cotangents),
  )


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


def _errors(shape, ours) -> dict[tuple[str, str], float]:
  """Returns errors against the reference, relative to its largest value."""
  shape = shape._replace(length=min(shape.length, _COMPARED), batch=1)
  arrays, scales, dout_BLHK, dlse_BLH = operands(shape)
  names = {'q_scale_BLH': 0, 'k_scale': 1, 'v_scale': 2}
  floats = [x.astype(jnp.float32) for x in arrays]
  for name, scale in scales.items():
    floats[names[name]] = codes.dequantize(
      arrays[names[name]], scale, jnp.float32
    )

  def run(name, arrays, scales):
    forward, backward = calls(shape, name)
    results = forward(arrays, scales)
    cotangents = *results, dout_BLHK, dlse_BLH
    return {
      'forward': results,
      'backward': backward(arrays, scales, cotangents),
    }

  with jax.default_matmul_precision('highest'):
    wanted = run('reference', floats, {})
  errors = {}
  for name in ours:
    found = run(name, arrays, scales)
    for part in _PASSES:
      errors[name, part] = max(
        _error(x, y) for x, y in zip(found[part], wanted[part])
      )
  return errors


def _error(x, y) -> float:
  x, y = np.asarray(x, np.float32), np.asarray(y, np.float32)
  return float(np.abs(x - y).max() / np.abs(y).max())


if __name__ == '__main__':
  report.command(measure)
