"""Visibility attention's forward pass in Pallas Mosaic GPU, for Hopper.

    s = q · k,   p = 2^(f · (s - peak)),   peak = max s so far,   f > 0
    out = Σ p · v / Σ p,   lse = f · peak / log2 e + log Σ p

A program has three warpgroups and one tile of 128 rows of [B, L·H, K], which
are all heads of a few tokens. One warpgroup only fetches: it follows the tile's
list of key blocks (`plan`) and makes the TMA unit fill a ring of shared memory
with K, V and the ranges, positions and scales of the keys. The other two have
64 rows each: the tensor cores multiply for one while the other computes its
softmax, and then they change places. Blocks that the whole tile sees in full
come first, because they need no mask. The method is FlashAttention-3's (Shah et
al. 2024, arXiv:2407.08608), the lists are FlexAttention's (Dong et al. 2024,
arXiv:2412.05496).

Where q and k are both codes with scales per token, they are multiplied as s8
with an s32 sum. The key's scale and the sign of `scale` are part of s; all
other factors are f, one number per row. All other codes, and V's in any case,
become `dtype` before the kernel: the tensor cores take V only from shared
memory, every tile would convert each block again, and one head of K and V
serves many heads of queries. Our guess is that one pass over them beforehand is
cheaper, except where there is only one tile, as in decoding.

H100's compiler compiles the kernel without a spill. In JAX's interpreter, which
computes products by jnp and reports memory that is used before it is ready, the
kernel agrees with an oracle. It has not run on a GPU, so its numerics there are
unknown, and `api` runs it only where a caller names it. JAX's own kernel of
this kind refuses causal masks with CUDA 12.8.0 to 12.9.0, whose assembler
miscompiles them; the masks here are different code, but untested too.

The backward pass is `pallas_gpu`'s. JAX calls this interface unstable; it was
tried with 0.10.2 and 0.12.0.1.
"""

import functools
import inspect
from typing import Any
from typing import NamedTuple

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
import jax.numpy as jnp

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import softmax
from kaiju_jax.kernels.visibility_attention import blocks
from kaiju_jax.kernels.visibility_attention import codes
from kaiju_jax.kernels.visibility_attention import pallas_gpu
from kaiju_jax.kernels.visibility_attention import plan

backward = pallas_gpu.backward

# Warpgroups that multiply, each with the rows of one instruction.
_GROUP_ROWS = 64
_ROWS = blocks.MOSAIC_ROWS
_GROUPS = _ROWS // _GROUP_ROWS
# Registers per fetching and per multiplying thread. The three warpgroups' sum,
# 40 + 2 · 232, may be 512 at most.
_FETCHING, _MULTIPLYING = 40, 232
# The sums and logits of a wider head do not fit into the registers.
_WIDEST = 128

# The least f, because 0 · -inf would be NaN.
_LEAST = 1e-30

_OF_ROWS = plgpu.Layout.WGMMA.reduce(1)
_OF_COLUMNS = plgpu.Layout.WGMMA.reduce(0)
# JAX 0.10 requires an index to load a whole reference, and 0.12 refuses one.
_ALL = ((),) if 'idx' in inspect.signature(plgpu.load).parameters else ()


class _Rows(NamedTuple):
  """Facts per row of q, [B, R]; `past` is the newest position out of window."""

  coordinate: Any
  past: Any
  factor: Any


class _Columns(NamedTuple):
  """Facts per key, [B, M]."""

  start: Any
  limit: Any
  position: Any
  scale: Any


class _Operands(NamedTuple):
  """Operands in the GPU's memory."""

  lists: plan.FullFirst
  q_BRK: Any
  k_BMK: Any
  v_BMK: Any
  rows: _Rows
  columns: _Columns


class _Shared(NamedTuple):
  """A program's shared memory: G warpgroups, S stages of the ring."""

  q_GIK: Any
  k_SJK: Any
  v_SJK: Any
  columns: _Columns
  out_GIK: Any
  lse_GI: Any


class _Barriers(NamedTuple):
  """The barriers of a program.

  Attributes:
    full: the TMA unit has filled a stage.
    free: both warpgroups have read a stage.
  """

  q_full: Any
  k_full: Any
  v_full: Any
  k_free: Any
  v_free: Any
  turn: Any  # Both warpgroups have arrived.


class _Statics(NamedTuple):
  """The constants of a compiled kernel."""

  batch: int  # B.
  tiles: int  # Query tiles per row of the batch.
  shared: int  # Tiles that share a list.
  keys: int  # Keys per key block.
  stages: int  # Stages of the ring.
  factor: float  # F where all rows have the same.
  # Whether s must be negated, because `scale` is negative and no key's scale
  # carries the sign.
  negative: bool
  dtype: Any  # The dtype of v, of the weights p and of the output.


def forward(q_BLHK, k_BMK, v_BMK, ranges, scales, *, window, scale, dtype):
  """Returns (out_BLHK in `dtype`, lse_BLH in float32).

  Raises:
    ValueError: a type or a head size that the kernel does not take; names an
      implementation that does. A negative scale of a query's codes is not
      detected: the results are NaN.
  """
  B, L, H, K = q_BLHK.shape
  _check({'q_BLHK': q_BLHK, 'k_BMK': k_BMK, 'v_BMK': v_BMK}, dtype)
  factor, factor_BLH = max(abs(scale) * softmax.LOG2E, _LEAST), None
  q_scale_BLH, k_scale, v_scale = scales
  integer_dot = codes.integer_dot(q_BLHK, k_BMK, k_scale)
  if integer_dot:
    factor_BLH = q_scale_BLH.astype(jnp.float32) * factor
    factor_BLH = jnp.where(factor_BLH == 0, _LEAST, factor_BLH)
    k_scale = k_scale.astype(jnp.float32) * (-1 if scale < 0 else 1)
  else:
    q_BLHK = codes.dequantize(q_BLHK, q_scale_BLH, dtype)
    k_BMK, k_scale = codes.dequantize(k_BMK, k_scale, dtype), None
  v_BMK = codes.dequantize(v_BMK, v_scale, dtype)
  position_BM = ranges.position_BM if window else None
  of_keys = ranges.start_BM, ranges.limit_BM, position_BM, k_scale
  q_bytes, k_bytes, v_bytes = (
    -(-K // 64) * 64 * x.dtype.itemsize for x in (q_BLHK, k_BMK, v_BMK)
  )
  tiles = blocks.mosaic(
    row_bytes=q_bytes + v_bytes,  # The output is as large as a value.
    key_bytes=k_bytes + v_bytes + 4 * len(_present(of_keys)),
    window=window,
    head_dim=K,
    integer_dot=integer_dot,
  )
  shared = blocks.plan_tiles(_ROWS, H)
  sizes = window, _ROWS * shared, H, tiles.keys
  operands = _Operands(
    plan.full_first(plan.sees(ranges, *sizes), plan.full(ranges, *sizes)),
    _pad(_flat(q_BLHK), _ROWS, 64),
    _pad(k_BMK, tiles.keys, 64),
    _pad(v_BMK, tiles.keys, 64),
    _rows(ranges, window, factor_BLH, H),
    _columns(tiles.keys, *of_keys),
  )
  statics = _Statics(
    batch=B,
    tiles=operands.q_BRK.shape[1] // _ROWS,
    shared=shared,
    keys=tiles.keys,
    stages=tiles.stages,
    factor=factor,
    negative=scale < 0 and k_scale is None,
    dtype=jnp.dtype(dtype),
  )
  out_BRK, lse_BR = _call(operands, statics)
  out_BLHK = out_BRK[:, : L * H, :K].reshape(B, L, H, K)
  return out_BLHK, lse_BR[:, : L * H].reshape(B, L, H)


def _check(arrays, dtype) -> None:
  others = "implementation='pallas_gpu' takes it."
  if dtype not in (jnp.bfloat16, jnp.float16):
    raise ValueError(
      f'dtype={jnp.dtype(dtype)}: mosaic_gpu computes in bfloat16 or float16;'
      f' {others}'
    )
  for name, x in arrays.items():
    if x.dtype not in (jnp.int8, dtype):
      raise ValueError(
        f'{name} is {x.dtype}: mosaic_gpu takes int8 or dtype,'
        f' {jnp.dtype(dtype)}; {others}'
      )
    if x.shape[-1] > _WIDEST:
      raise ValueError(
        f'{name} has a head size of {x.shape[-1]}: mosaic_gpu takes at most'
        f' {_WIDEST}; {others}'
      )


def _rows(ranges, window, factor_BLH, heads):
  def repeated(x_BL):
    return _pad(jnp.repeat(x_BL, heads, axis=1), _ROWS)

  return _Rows(
    repeated(ranges.coordinate_BL),
    repeated(ranges.position_BL - window) if window else None,
    None if factor_BLH is None else _pad(_flat(factor_BLH), _ROWS),
  )


def _columns(keys, *of_keys):
  return _Columns(
    *(None if x_BM is None else _pad(x_BM, keys) for x_BM in of_keys)
  )


def _flat(x):
  """Returns [B, L, H, …] as [B, R, …]: row r is head r % H of token r // H."""
  return x.reshape(len(x), -1, *x.shape[3:])


def _pad(x, *multiples):
  """Pads all dimensions but B with zeros; no query sees a key of zeros."""
  spares = [-size % of for size, of in zip(x.shape[1:], multiples)]
  pads = [(0, 0), *((0, spare) for spare in spares)]
  return jnp.pad(x, pads) if any(spares) else x


def _call(operands, statics):
  B, R, K = operands.q_BRK.shape
  rows, stages = (_GROUPS, _GROUP_ROWS), (statics.stages, statics.keys)
  shared = _Shared(
    _tile((*rows, K), operands.q_BRK.dtype),
    _tile((*stages, K), operands.k_BMK.dtype),
    _tile((*stages, K), statics.dtype),
    jax.tree.map(lambda x: plgpu.SMEM(stages, x.dtype), operands.columns),
    _tile((*rows, K), statics.dtype),
    plgpu.SMEM(rows, jnp.float32),
  )
  copies = 1 + len(_present(operands.columns))
  barriers = _Barriers(
    q_full=plgpu.Barrier(num_barriers=_GROUPS),
    k_full=plgpu.Barrier(num_barriers=statics.stages, num_arrivals=copies),
    v_full=plgpu.Barrier(num_barriers=statics.stages),
    k_free=plgpu.Barrier(num_barriers=statics.stages, num_arrivals=_GROUPS),
    v_free=plgpu.Barrier(num_barriers=statics.stages, num_arrivals=_GROUPS),
    turn=plgpu.Barrier(num_arrivals=_GROUPS),
  )

  def visibility_attention_forward(operands, out_BRK, lse_BR):
    pl.run_scoped(
      functools.partial(_program, operands, out_BRK, lse_BR, statics),
      shared,
      barriers,
      collective_axes='group',
    )

  return plgpu.kernel(
    visibility_attention_forward,
    out_type=(
      jax.ShapeDtypeStruct((B, R, K), statics.dtype),
      jax.ShapeDtypeStruct((B, R), jnp.float32),
    ),
    grid=(statics.tiles * statics.batch,),
    grid_names=('tile',),
    num_threads=_GROUPS + 1,
    thread_name='group',
    # No thread reads shared memory that it writes, so our barriers suffice.
    compiler_params=plgpu.CompilerParams(
      approx_math=True, unsafe_no_auto_barriers=True
    ),
    interpret=_interpreter(),
  )(operands)


def _tile(shape, dtype):
  """Returns shared memory laid out for the tensor cores and the TMA unit."""
  size = jnp.dtype(dtype).itemsize
  width = min(128, shape[-1] * size)
  return plgpu.SMEM(
    shape,
    dtype,
    transforms=(
      plgpu.TilingTransform((8, width // size)),
      plgpu.SwizzleTransform(width),
    ),
  )


def _interpreter():
  if not dispatch.interpreting():
    return None
  if hasattr(plgpu, 'InterpretGPUParams'):
    return plgpu.InterpretGPUParams(detect_races=True)
  # JAX 0.10 has the interpreter's parameters only in a private module.
  from jax._src.pallas.mosaic_gpu.interpret import params

  return params.InterpretGPUParams(detect_races=True)


def _program(operands, out_BRK, lse_BR, statics, shared, barriers):
  number = jax.lax.axis_index('tile')
  b = jax.lax.rem(number, statics.batch)
  # The last tile goes first, because it has most work in a causal row.
  x = statics.tiles - 1 - jax.lax.div(number, statics.batch)
  group = jax.lax.axis_index('group')
  X, lists = jax.lax.div(x, statics.shared), operands.lists
  count = lists.count_BX[b, X]

  @pl.when(group == _GROUPS)
  def _():
    plgpu.set_max_registers(_FETCHING, action='decrease')

    # The loop continues until the last fetched block has been read.
    @pl.loop(0, count + statics.stages)
    def _(n):
      _fetch(operands, shared, barriers, (b, X, n), count, statics)

  @pl.when(group < _GROUPS)
  def _():
    plgpu.set_max_registers(_MULTIPLYING, action='increase')
    span = b, pl.ds(x * _ROWS + group * _GROUP_ROWS, _GROUP_ROWS)
    q_IK, q_full = shared.q_GIK.at[group], barriers.q_full.at[group]
    plgpu.copy_gmem_to_smem(operands.q_BRK.at[span], q_IK, q_full)
    rows = jax.tree.map(
      lambda x_BR: _load(x_BR.at[span], _OF_ROWS, optimized=False),
      operands.rows,
    )
    plgpu.barrier_wait(q_full)
    counts = lists.full_BX[b, X], count
    sums = _attend(q_IK, rows, shared, barriers, group, counts, statics)
    results = shared.out_GIK.at[group], shared.lse_GI.at[group]
    _finish(sums, rows, results, statics)
    plgpu.commit_smem()
    for result, whole in zip(results, (out_BRK, lse_BR)):
      plgpu.copy_smem_to_gmem(result, whole.at[span])
    plgpu.wait_smem_to_gmem(0)


def _fetch(operands, shared, barriers, index, count, statics):
  """Fetches block n of a list, `index` = (row, list, n), if n < `count`."""
  b, _, n = index
  stage = jax.lax.rem(n, jnp.int32(statics.stages))

  def fetch(sources, places, full, free):
    @pl.when(n >= statics.stages)
    def _():
      plgpu.barrier_wait(free.at[stage])

    @pl.when(n < count)
    def _():
      first = operands.lists.list_BXY[index] * statics.keys
      span = b, pl.ds(first, statics.keys)
      for source, place in zip(_present(sources), _present(places)):
        plgpu.copy_gmem_to_smem(
          source.at[span], place.at[stage], full.at[stage]
        )

  fetch(
    (operands.k_BMK, *operands.columns),
    (shared.k_SJK, *shared.columns),
    barriers.k_full,
    barriers.k_free,
  )
  fetch([operands.v_BMK], [shared.v_SJK], barriers.v_full, barriers.v_free)


def _attend(q_IK, rows, shared, barriers, group, counts, statics):
  """Returns peak_I, total_I and sum_IK over the blocks of the list."""
  full, count = counts

  def take_turn():
    plgpu.barrier_arrive(barriers.turn)
    plgpu.barrier_wait(barriers.turn)

  def wait_for_k(n):
    @pl.when(n < count)
    def _():
      stage = jax.lax.rem(n, statics.stages)
      plgpu.barrier_wait(barriers.k_full.at[stage])

  def step(is_full, n, carry):
    peak_I, total_I, sum_IK = carry
    stage = jax.lax.rem(n, jnp.int32(statics.stages))
    columns = jax.tree.map(lambda x_SJ: x_SJ.at[stage], shared.columns)
    s_IJ = _logits(q_IK, shared.k_SJK.at[stage], take_turn)
    s_IJ = _scale(s_IJ, columns, statics)
    if not is_full:
      s_IJ = jnp.where(_visible(rows, columns, s_IJ.shape), s_IJ, -jnp.inf)
    _release(
      barriers.k_free.at[stage], not is_full or columns.scale is not None
    )
    new_peak_I = jnp.maximum(peak_I, s_IJ.max(axis=1))
    factor_I, factor_IJ = _factors(rows, s_IJ.shape, statics)
    decay_I = jnp.exp2(factor_I * (peak_I - new_peak_I))
    p_IJ = jnp.exp2(factor_IJ * s_IJ - _down(factor_I * new_peak_I, s_IJ.shape))
    total_I = total_I * decay_I + p_IJ.sum(axis=1)
    sum_IK = sum_IK * _down(decay_I, sum_IK.shape)
    # The barrier keeps all of this before the next turn, in which this group
    # multiplies.
    p_IJ, total_I, sum_IK = jax.lax.optimization_barrier(
      (p_IJ.astype(statics.dtype), total_I, sum_IK)
    )
    plgpu.barrier_arrive(barriers.turn)
    plgpu.barrier_wait(barriers.v_full.at[stage])
    plgpu.barrier_wait(barriers.turn)
    sum_IK = _add_weighted(
      sum_IK, p_IJ, shared.v_SJK.at[stage], lambda: wait_for_k(n + 1)
    )
    _release(barriers.v_free.at[stage], False)
    return new_peak_I, total_I, sum_IK

  wait_for_k(jnp.int32(0))
  # The second group begins when the first has its first logits ...
  pl.when(group == 1)(take_turn)
  carry = (
    _constant(softmax.LOWEST, (_GROUP_ROWS,), _OF_ROWS),
    _constant(0.0, (_GROUP_ROWS,), _OF_ROWS),
    _constant(0.0, q_IK.shape, plgpu.Layout.WGMMA),
  )
  carry = jax.lax.fori_loop(0, full, functools.partial(step, True), carry)
  carry = jax.lax.fori_loop(full, count, functools.partial(step, False), carry)
  # ... and has its last turn when the first is done.
  pl.when(group == 0)(take_turn)
  return carry


def _release(free, by_threads):
  """Signals that a group has read a place of the ring.

  Args:
    free: the barrier of that place.
    by_threads: whether threads, and not only the tensor cores, read it. Such
      reads need a fence, so that the TMA unit's next writes come after them.
  """
  if by_threads or dispatch.interpreting():
    plgpu.commit_smem()
  plgpu.barrier_arrive(free)


def _finish(sums, rows, results, statics):
  peak_I, total_I, sum_IK = sums
  out_IK, lse_I = results
  # `== 0`, not `> 0`: a NaN is not a blind query.
  blind_I = total_I == 0
  total_I = jnp.where(blind_I, 1.0, total_I)
  factor_I, _ = _factors(rows, sum_IK.shape, statics)
  lse_I[...] = jnp.where(
    blind_I, 0.0, factor_I * peak_I / softmax.LOG2E + jnp.log(total_I)
  )
  sum_IK = sum_IK * _down(1 / total_I, sum_IK.shape)
  out_IK[...] = sum_IK.astype(statics.dtype)


def _logits(q_IK, k_JK, meanwhile):
  """Returns q · k of the tensor cores; calls `meanwhile` when they begin."""
  dtype = jnp.int32 if q_IK.dtype == jnp.int8 else jnp.float32
  if dispatch.interpreting():
    s_IJ = jax.lax.dot_general(
      q_IK[...],
      k_JK[...],
      (((1,), (1,)), ((), ())),
      preferred_element_type=dtype,
    )
    meanwhile()
    return s_IJ

  def multiply(s_IJ):
    plgpu.wgmma(s_IJ, q_IK, k_JK.transpose((1, 0)))
    meanwhile()
    return s_IJ[...]

  accumulator = plgpu.ACC((q_IK.shape[0], k_JK.shape[0]), dtype)
  return pl.run_scoped(multiply, accumulator)


def _add_weighted(sum_IK, p_IJ, v_JK, meanwhile):
  """Returns sum + p · v likewise; calls `meanwhile` when they begin."""
  if dispatch.interpreting():
    meanwhile()
    return sum_IK + jnp.dot(p_IJ, v_JK[...], preferred_element_type=jnp.float32)

  def multiply(sum_IK):
    plgpu.wgmma(sum_IK, p_IJ, v_JK)
    meanwhile()

  return pl.run_state(multiply)(plgpu.ACC.init(sum_IK))


def _scale(s_IJ, columns, statics):
  s_IJ = s_IJ.astype(jnp.float32)
  if columns.scale is not None:
    return s_IJ * _across(columns.scale, s_IJ.shape)
  return -s_IJ if statics.negative else s_IJ


def _visible(rows, columns, shape):
  coordinate_IJ = _down(rows.coordinate, shape)
  visible_IJ = (_across(columns.start, shape) <= coordinate_IJ) & (
    coordinate_IJ < _across(columns.limit, shape)
  )
  if rows.past is None:
    return visible_IJ
  return visible_IJ & (
    _down(rows.past, shape) < _across(columns.position, shape)
  )


def _factors(rows, shape, statics):
  """Returns f per row and broadcast; two numbers where all rows share it."""
  if rows.factor is None:
    return statics.factor, statics.factor
  return rows.factor, _down(rows.factor, shape)


def _down(x_I, shape):
  return jax.lax.broadcast_in_dim(x_I, shape, [0])


def _across(x_J, shape):
  return jax.lax.broadcast_in_dim(_load(x_J, _OF_COLUMNS), shape, [1])


# An interpreted array has no layout.
def _load(ref, layout, optimized=True):
  if dispatch.interpreting():
    return ref[...]
  return plgpu.load(ref, *_ALL, layout=layout, optimized=optimized)


def _constant(value, shape, layout):
  x = jnp.full(shape, value, jnp.float32)
  return x if dispatch.interpreting() else plgpu.layout_cast(x, layout)


def _present(items) -> list:
  return [x for x in items if x is not None]
