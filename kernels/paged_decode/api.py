"""Attends from a few queries per row to a paged cache: a step of decoding.

    page(b, m) = table[b, m // S],   key(b, m) = k_pool[page(b, m), m % S]
    visible(q, m) = start[m] <= coordinate[q] < limit[m]
                    and (window is None or position[q] - position[m] < window
                         or position[m] < sinks)
                    and page(b, m) is in the pool
    lse[q] = log Σ exp(scale · q · key(m))  over the visible slots m
    out[q] = Σ exp(scale · q · key(m) - lse[q]) · value(m)

It is visibility attention over keys that lie in pages; `visibility_attention`
describes queries, codes and scales. Rows may share a page and see it
differently: ranges and positions belong to (row, logical slot), scales to the
pool's slot. One KV head serves all H query heads, and the beams of a row are
its L queries. A kernel does not read pages in which no query sees a slot. Slots
that no query sees may hold anything, even NaN. A NaN that one query of a row
sees may reach the row's other queries.

A query that sees nothing gets out = 0 and lse = 0. The caller attends to a
chunk's own keys, which are not in the pool yet, separately and merges:

    out, lse = api.merge(*api.decode(…), *visibility_attention.forward(…))

There is no gradient, because a cache serves inference only.
"""

import operator

import jax
import jax.numpy as jnp

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.paged_decode import blocks
from kaiju_jax.kernels.paged_decode import partials
from kaiju_jax.kernels.paged_decode import plan as plan_lib
from kaiju_jax.kernels.visibility_attention import operands

RUNS_ON = {
  'reference': dispatch.ANYWHERE,
  'xla': dispatch.ANYWHERE,
  'numba_cpu': ('cpu',),
  'pallas_gpu': ('gpu',),
  'pallas_tpu': ('tpu',),
}

merge = partials.merge


def decode(
  q_BLHK,
  k_PSK,
  v_PSK,
  table_BN,
  start_BM,
  limit_BM,
  coordinate_BL,
  position_BL,
  position_BM,
  *,
  window,
  sinks=0,
  scale,
  q_scale_BLH=None,
  k_scale=None,
  v_scale=None,
  dtype=None,
  plan=None,
  sizes=None,
  implementation=None,
):
  """Returns the output and lse, the log-sum-exp of each query's logits.

  Args:
    q_BLHK: queries, float or int8; L is 1 for one token per row.
    k_PSK: the pool's keys, P pages of S slots, float or int8.
    v_PSK: the pool's values, float or int8.
    table_BN: int32, the places of each row's N logical pages in the pool. A
      number outside 0…P-1 marks an absent page. A wrong page, such as another
      row's, is not detected.
    start_BM: int32, first query coordinate that sees each of the M = N·S
      logical slots.
    limit_BM: int32, one past the last; equal to start for an empty slot.
    coordinate_BL: int32, the coordinate of each query.
    position_BL: int32, the position of each query.
    position_BM: int32, the position of each logical slot.
    window: positions that a query looks back, itself included; None for all.
    sinks: the first positions, whose keys a query sees beside its window.
    scale: factor of the logits, a Python number.
    q_scale_BLH: float32, given exactly where q is int8.
    k_scale: float32 [P, S] or [K], given exactly where k is int8.
    v_scale: float32 [P, S] or [K], given exactly where v is int8.
    dtype: the dtype of the output and of PV. The default is v's dtype, or q's
      where v is codes, or bfloat16 where both are codes.
    plan: `make_plan` of the same table, ranges, positions, window and sinks,
      which layers can share; with None `decode` makes one.
    sizes: `blocks.Sizes` to try; with None `blocks` chooses.
    implementation: a key of `RUNS_ON`. With None it is the platform's kernel,
      or 'xla' for shapes that the kernel does not take.

  Returns:
    out_BLHK in `dtype`, and lse_BLH in float32.

  Raises:
    ValueError, TypeError: names the argument, its value and what is right.
  """
  arrays = {'q_BLHK': q_BLHK, 'k_PSK': k_PSK, 'v_PSK': v_PSK}
  ranges = operands.Ranges(
    start_BM, limit_BM, coordinate_BL, position_BL, position_BM
  )
  layout = {'table_BN': table_BN, **ranges._asdict()}
  scales = {'q_scale_BLH': q_scale_BLH, 'k_scale': k_scale, 'v_scale': v_scale}
  dims = _check_shapes(arrays | layout)
  operands.check_dtypes(arrays | layout)
  operands.check_scales(arrays, scales)
  operands.check_options(window, sinks, scale)
  dtype = operands.output_dtype(dtype, q_BLHK, v_PSK)
  # A traced index cannot index a numpy array.
  table_BN, ranges = jax.tree.map(jnp.asarray, (table_BN, ranges.exempt(sinks)))
  scales = jax.tree.map(jnp.asarray, operands.Scales(*scales.values()))
  is_coded = all(
    scale is not None and scale.ndim == 2 for scale in (scales.k, scales.v)
  )
  shape = _shape(dims, k_PSK, v_PSK, window, sinks, is_coded)
  if implementation is None:
    implementation = blocks.implementation(dispatch.platform(), shape)
  module = dispatch.choose(__package__, implementation, RUNS_ON)
  if sizes is None:
    sizes = blocks.sizes(implementation, shape)
  blocks.check(implementation, shape, sizes)
  if plan is None:
    plan = plan_lib.make(table_BN, ranges, pages=dims['P'], window=window)
  _check_plan(plan, dims)
  call = plan_lib.Call(table_BN, plan, window, scale, dtype, sizes)
  arrays = jax.tree.map(jnp.asarray, list(arrays.values()))
  return module.decode(*arrays, ranges, scales, call)


def make_plan(
  table_BN,
  start_BM,
  limit_BM,
  coordinate_BL,
  position_BL,
  position_BM,
  *,
  pages,
  window,
  sinks=0,
):
  """Returns the `plan.Plan` that all layers of a kind share in a step.

  Args:
    table_BN … position_BM, window, sinks: as for the calls of `decode`.
    pages: P, the number of the pool's pages.

  Raises:
    ValueError, TypeError: names the argument, its value and what is right.
  """
  ranges = operands.Ranges(
    start_BM, limit_BM, coordinate_BL, position_BL, position_BM
  )
  layout = {'table_BN': table_BN, **ranges._asdict()}
  _check_shapes(layout)
  operands.check_dtypes(layout)
  operands.check_options(window, sinks, scale=1)
  if operator.index(pages) < 1:
    raise ValueError(f'pages={pages}: a pool has at least one page.')
  ranges = ranges.exempt(sinks)
  return plan_lib.make(table_BN, ranges, pages=pages, window=window)


def _shape(dims, k_PSK, v_PSK, window, sinks, is_coded) -> blocks.Shape:
  return blocks.Shape(
    B=dims['B'],
    rows=dims['L'] * dims['H'],
    K=dims['K'],
    P=dims['P'],
    N=dims['N'],
    S=dims['S'],
    itemsize=min(k_PSK.dtype.itemsize, v_PSK.dtype.itemsize),
    window=window,
    is_coded=is_coded,
    sinks=sinks,
  )


def _check_shapes(arrays) -> dict[str, int]:
  """Returns the size of each dimension; refuses arrays that disagree."""
  dims = {}
  for name, x in arrays.items():
    letters = name.rpartition('_')[2]
    if x.ndim != len(letters) or 0 in x.shape:
      raise ValueError(
        f'{name} has shape {x.shape}: expected {len(letters)} dims, none empty.'
      )
    dims = dict(zip(letters, x.shape)) | dims
    expected = tuple(dims[letter] for letter in letters)
    if x.shape != expected:
      raise ValueError(f'{name} has shape {x.shape}: expected {expected}.')
  # N pages of S slots must be the M slots of the ranges.
  slots = dims.get('S')
  if slots is None:
    if dims['M'] % dims['N']:
      raise ValueError(
        f'start_BM has rows of {dims["M"]} slots: expected a multiple of the'
        f' {dims["N"]} pages in a row of table_BN.'
      )
  elif dims['M'] != dims['N'] * slots:
    raise ValueError(
      f'start_BM has rows of {dims["M"]} slots: expected {dims["N"]} pages of'
      f' {slots}, {dims["N"] * slots}.'
    )
  return dims


def _check_plan(plan, dims) -> None:
  for name, x in zip(plan._fields, plan):
    expected = tuple(dims[letter] for letter in name.rpartition('_')[2])
    if x.shape != expected or x.dtype != jnp.int32:
      raise ValueError(
        f'plan.{name} is {x.dtype}{list(x.shape)}: expected int32'
        f'{list(expected)}, as make_plan gives for this table.'
      )
