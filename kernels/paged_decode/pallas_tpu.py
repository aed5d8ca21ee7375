"""Paged decode for TPUs, in Pallas Mosaic.

A program takes R rows (queries times heads) of one row of the batch, and visits
one split of that row's pages, a group of G pages at a time. It copies pages
from the pool into two buffers: while it attends to one group, it copies the
next. After a row's last group comes the next row's first, so that copies never
pause between rows. It copies ranges and positions only for groups that are not
seen whole.

The groups of a split, over all rows of the batch, form a chain, whose group i
lies in buffer i % 2. Rows that visit nothing are not part of it.

Scales are treated as in `pallas_gpu`. The two cores of a chip may share the
first dimension of the grid, the splits.

Pages of 128 slots, the lanes of a register, suit it best: XLA changes the
layout of smaller pages' scales at every call. XLA also changes the layout of
ranges and positions, for pages of any size; layers that are compiled together
share that work.
"""

import functools
import math
from typing import Any
from typing import NamedTuple

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import softmax
from kaiju_jax.kernels.paged_decode import partials
from kaiju_jax.kernels.paged_decode import rows as rows_lib

_LOG2_E = math.log2(math.e)


class _Chain(NamedTuple):
  """The places of each row's groups in the chain of each split; int32."""

  full_B: Any  # Pages that are seen whole.
  count_B: Any  # Pages visited.
  first_XB: Any  # The row's first group in the chain.
  next_XB: Any  # The next row that has groups in the chain; B if none.


class _Rows(NamedTuple):
  """Blocks of rows, padded to R; a number per row is a column [R, 1]."""

  q_RK: Any
  q_scale_R1: Any
  coordinate_R1: Any
  position_R1: Any


class _Lists(NamedTuple):
  """The places of a row's visited pages in its table and the pool, in SMEM."""

  logical_1N: Any
  page_1N: Any


class _Pages(NamedTuple):
  """The arrays copied per page: in the pool, or G pages in each buffer.

  A vector of a page's slots is [1, S]. Scales are None where there are none.
  Ranges and positions belong to the batch, [B, N, 1, S].
  """

  k: Any
  v: Any
  k_scale: Any
  v_scale: Any
  start: Any
  limit: Any
  position: Any


def decode(q_BLHK, k_PSK, v_PSK, ranges, scales, call):
  """Returns (out_BLHK in `dtype`, lse_BLH in float32)."""
  B, L, H, K = q_BLHK.shape
  S = k_PSK.shape[1]
  sizes, plan, dtype = call.sizes, call.plan, call.dtype
  N = plan.page_BN.shape[1]
  R, X, G = sizes.R, sizes.X, sizes.J // S
  tiles = -(-L * H // R)
  q_BRK, q_scale_BR = rows_lib.pack(q_BLHK, k_PSK, scales, dtype)
  rows = _Rows(
    _pad(q_BRK, tiles * R),
    _column(q_scale_BR, tiles * R),
    _column(jnp.repeat(ranges.coordinate_BL, H, axis=1), tiles * R),
    _column(jnp.repeat(ranges.position_BL, H, axis=1), tiles * R),
  )
  lists = _Lists(plan.logical_BN[:, None], plan.page_BN[:, None])
  pages = _Pages(
    k_PSK,
    v_PSK,
    _vectors(rows_lib.per_token(scales.k)),
    _vectors(rows_lib.per_token(scales.v)),
    *(
      x.reshape(B, N, 1, S)
      for x in (ranges.start_BM, ranges.limit_BM, ranges.position_BM)
    ),
  )
  chain = _chain(plan, X, G)

  def rows_spec(x):
    return pl.BlockSpec((None, R, x.shape[2]), lambda x, t, b, *_: (b, t, 0))

  def next_row(x, t, b, chain):
    return jnp.minimum(chain.next_XB[x, b], B - 1), 0, 0

  def lists_spec(index_map):
    return pl.BlockSpec(
      (None, 1, N), index_map, memory_space=pltpu.MemorySpace.SMEM
    )

  def partial_spec(columns):
    return pl.BlockSpec(
      (None, None, R, columns), lambda x, t, b, *_: (x, b, t, 0)
    )

  in_memory = pl.BlockSpec(memory_space=pltpu.MemorySpace.HBM)
  out_XBRK, lse_XBR1 = pl.pallas_call(
    functools.partial(
      _kernel,
      group=G,
      factor=call.scale * _LOG2_E,
      window=call.window,
      dtype=dtype,
    ),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=len(chain),
      grid=(X, tiles, B),
      in_specs=[
        jax.tree.map(rows_spec, rows),
        _Lists(*[lists_spec(lambda x, t, b, *_: (b, 0, 0))] * 2),
        _Lists(
          *[lists_spec(lambda x, t, b, *c: next_row(x, t, b, _Chain(*c)))] * 2
        ),
        jax.tree.map(lambda _: in_memory, pages),
      ],
      out_specs=(partial_spec(K), partial_spec(1)),
      scratch_shapes=[
        jax.tree.map(lambda x: _buffer(x, G), pages),
        pltpu.SemaphoreType.DMA((2,)),
      ],
    ),
    out_shape=(
      jax.ShapeDtypeStruct((X, B, tiles * R, K), jnp.float32),
      jax.ShapeDtypeStruct((X, B, tiles * R, 1), jnp.float32),
    ),
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=('parallel', 'arbitrary', 'arbitrary'),
      disable_bounds_checks=True,
    ),
    interpret=dispatch.interpreting(),
    name='paged_decode',
  )(*chain, rows, lists, lists, _in_memory(pages))
  out_BRK, lse_BR = partials.combine(out_XBRK, lse_XBR1[..., 0])
  return rows_lib.unpack(
    out_BRK[:, : L * H], lse_BR[:, : L * H], scales.v, q_BLHK.shape, dtype
  )


def _chain(plan, splits, group) -> _Chain:
  B = len(plan.count_B)
  first_XB, last_XB = _share(
    plan.count_B[None],
    jnp.arange(splits, dtype=jnp.int32)[:, None],
    splits,
    group,
  )
  length_XB = last_XB - first_XB
  row_XB = jnp.where(length_XB > 0, jnp.arange(B, dtype=jnp.int32)[None], B)
  # The next row that has groups: a running minimum from the end.
  after_XB = jnp.pad(row_XB[:, 1:], ((0, 0), (0, 1)), constant_values=B)
  return _Chain(
    plan.full_B,
    plan.count_B,
    jnp.cumsum(length_XB, axis=1) - length_XB,
    jax.lax.cummin(after_XB, axis=1, reverse=True),
  )


def _share(count, split, splits, group):
  """Returns the first of a row's groups in a split, and one past the last."""
  groups = jax.lax.div(count + group - 1, group)
  return (
    jax.lax.div(groups * split, splits),
    jax.lax.div(groups * (split + 1), splits),
  )


def _in_memory(pages):
  """Keeps the pool in HBM; XLA would copy one that fits into VMEM there."""
  if dispatch.interpreting():
    return pages
  return jax.tree.map(
    lambda x: pltpu.with_memory_space_constraint(x, pltpu.MemorySpace.HBM),
    pages,
  )


def _pad(x_BRK, rows):
  """Pads with the last row, so that padding sees the slots that rows see."""
  spare = rows - x_BRK.shape[1]
  return jnp.pad(x_BRK, ((0, 0), (0, spare), (0, 0)), mode='edge')


def _column(x_BR, rows):
  return None if x_BR is None else _pad(x_BR[..., None], rows)


def _vectors(x_PS):
  return None if x_PS is None else x_PS[:, None]


def _buffer(x, group):
  return pltpu.VMEM((2, group, *x.shape[-2:]), x.dtype)


def _kernel(
  full_ref,
  count_ref,
  first_ref,
  next_ref,
  rows,
  lists,
  next_lists,
  pages,
  out_ref,
  lse_ref,
  buffers,
  semaphores,
  *,
  group,
  factor,
  window,
  dtype,
):
  """Attends from one tile of rows to one split; see the module."""
  split, b = pl.program_id(0), pl.program_id(2)
  splits, batch = pl.num_programs(0), pl.num_programs(2)
  first, last = _share(count_ref[b], split, splits, group)
  next_b = next_ref[split, b]
  begin = first_ref[split, b]

  def page_copies(lists, n, g, buffer, act):
    page = lists.page_1N[0, n * group + g]
    for source, target in zip(pages[:4], buffers[:4]):
      if source is not None:
        act(source.at[page], target.at[buffer, g], semaphores.at[buffer])

  def copies(lists, row, n, buffer, act):
    """Starts the copies of group n of a row, or waits for them (`act`)."""

    def both(g, carry):
      page_copies(lists, n, g, buffer, act)

      @pl.when((n + 1) * group > full_ref[row])
      def _():
        logical = lists.logical_1N[0, n * group + g]
        for source, target in zip(pages[4:], buffers[4:]):
          act(
            source.at[row, logical],
            target.at[buffer, g],
            semaphores.at[buffer],
          )

      return carry

    here = jnp.minimum(group, count_ref[row] - n * group)
    jax.lax.fori_loop(0, here, both, 0)

  def start(*copy):
    pltpu.make_async_copy(*copy).start()

  def wait(*copy):
    pltpu.make_async_copy(*copy).wait()

  @pl.when((first < last) & (begin == 0))
  def _():
    copies(lists, b, first, 0, start)

  def step(n, carry):
    buffer = jax.lax.rem(begin + n - first, 2)
    # The common case has its own code, because a TPU's scalar unit is slow: no
    # loop over pages, and one wait per array for all pages.
    whole_next = (n + 2) * group <= full_ref[b]

    @pl.when((n + 1 < last) & whole_next)
    def _():
      for g in range(group):
        page_copies(lists, n + 1, g, 1 - buffer, start)

    @pl.when((n + 1 < last) & ~whole_next)
    def _():
      copies(lists, b, n + 1, 1 - buffer, start)

    @pl.when((n + 1 == last) & (next_b < batch))
    def _():
      first, _ = _share(count_ref[next_b], split, splits, group)
      copies(next_lists, next_b, first, 1 - buffer, start)

    whole = (n + 1) * group <= full_ref[b]

    @pl.when(whole)
    def _():
      for target in buffers[:4]:
        if target is not None:
          wait(target.at[buffer], target.at[buffer], semaphores.at[buffer])

    @pl.when(~whole)
    def _():
      copies(lists, b, n, buffer, wait)

    attend = functools.partial(
      _attend,
      rows,
      buffers,
      buffer,
      n * group,
      count_ref[b],
      carry,
      factor,
      window,
      dtype,
    )
    return jax.lax.cond(
      whole,
      functools.partial(attend, masked=False),
      functools.partial(attend, masked=True),
    )

  R, K = rows.q_RK.shape
  peak_R1, total_R1, sum_RK = jax.lax.fori_loop(
    first,
    last,
    step,
    (
      jnp.full((R, 1), softmax.LOWEST, jnp.float32),
      jnp.zeros((R, 1), jnp.float32),
      jnp.zeros((R, K), jnp.float32),
    ),
  )
  # `== 0`, not `> 0`: a NaN is not a blind query.
  blind_R1 = total_R1 == 0
  total_R1 = jnp.where(blind_R1, 1.0, total_R1)
  out_ref[...] = sum_RK / total_R1
  lse_ref[...] = jnp.where(
    blind_R1, -jnp.inf, peak_R1 / _LOG2_E + jnp.log(total_R1)
  )


def _attend(
  rows,
  buffers,
  buffer,
  place,
  count,
  carry,
  factor,
  window,
  dtype,
  *,
  masked,
):
  """Folds a buffer's pages, the first at `place`, into the softmax."""
  peak_R1, total_R1, sum_RK = carry
  group = [
    _Pages(*(None if x is None else x[buffer, g] for x in buffers))
    for g in range(buffers.k.shape[1])
  ]
  logits, visible = [], []
  for g, page in enumerate(group):
    logits_RS = _logits(rows, page, factor)
    if masked:
      visible_RS = _visible(rows, page, window) & (place + g < count)
      logits_RS = jnp.where(visible_RS, logits_RS, -jnp.inf)
      visible.append(visible_RS)
    logits.append(logits_RS)
  # Reduce over pages first and over lanes once: crossing lanes is slow.
  highest_RS = functools.reduce(jnp.maximum, logits)
  new_peak_R1 = jnp.maximum(peak_R1, highest_RS.max(axis=1, keepdims=True))
  decay_R1 = jnp.exp2(peak_R1 - new_peak_R1)
  weights = [jnp.exp2(logits_RS - new_peak_R1) for logits_RS in logits]
  added_RS = functools.reduce(jnp.add, weights)
  total_R1 = total_R1 * decay_R1 + added_RS.sum(axis=1, keepdims=True)
  sum_RK = sum_RK * decay_R1
  for g, (page, weights_RS) in enumerate(zip(group, weights)):
    sum_RK += _product(weights_RS, page, visible[g] if masked else None, dtype)
  return new_peak_R1, total_R1, sum_RK


def _visible(rows, page, window):
  coordinate_R1 = rows.coordinate_R1[...]
  visible_RS = (page.start <= coordinate_R1) & (coordinate_R1 < page.limit)
  if window is None:
    return visible_RS
  return visible_RS & (rows.position_R1[...] - page.position < window)


def _logits(rows, page, factor):
  """Returns scale · q · k of a page in float32, in base 2."""
  q_RK, k_SK = rows.q_RK[...], page.k
  if rows.q_scale_R1 is not None:
    logits_RS = _dot(q_RK, k_SK, 1, jnp.int32).astype(jnp.float32)
    logits_RS *= rows.q_scale_R1[...] * factor
  else:
    if k_SK.dtype == jnp.int8:
      k_SK = _float(k_SK, q_RK.dtype)
    both = jnp.promote_types(q_RK.dtype, k_SK.dtype)
    logits_RS = _dot(q_RK.astype(both), k_SK.astype(both), 1, jnp.float32)
    logits_RS *= factor
  return logits_RS if page.k_scale is None else logits_RS * page.k_scale


def _product(weights_RS, page, visible_RS, dtype):
  """Returns weights · v of a page, even if unseen slots hold NaN."""
  v_SK = page.v
  if page.v_scale is not None:
    weights_RS *= page.v_scale
    if visible_RS is not None:
      weights_RS = jnp.where(visible_RS, weights_RS, 0.0)
  weights_RS = weights_RS.astype(dtype)
  if v_SK.dtype == jnp.int8:
    v_SK = _float(v_SK, dtype)
  elif visible_RS is not None:
    v_SK = jnp.where(_find_seen(visible_RS), v_SK, jnp.zeros_like(v_SK))
  both = jnp.promote_types(dtype, v_SK.dtype)
  return _dot(weights_RS.astype(both), v_SK.astype(both), 0, jnp.float32)


def _find_seen(visible_RS):
  """Returns bool[S, 1]: whether any row sees the slot."""
  seen_1S = visible_RS.astype(jnp.float32).max(axis=0, keepdims=True)
  return seen_1S.T > 0


def _float(x, dtype):
  return x.astype(jnp.float32).astype(dtype)


def _dot(a, b, contracted, dtype):
  """Returns a · b over b's axis `contracted`, float32 in full precision."""
  return jax.lax.dot_general(
    a,
    b,
    (((1,), (contracted,)), ((), ())),
    precision=jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None,
    preferred_element_type=dtype,
  )
