"""Decodes over pages of codes on an x86 CPU by a numba function.

XLA's CPU widens codes and multiplies them in steps of many small calls. Here
each page of a row's plan is read once: QKᵀ, whose sums are integers if queries
are codes (`int8_matmul/numba_cpu.py`) and float32 otherwise, a softmax in
float32 that goes on from page to page, and PV in float32, whose sums stay in
registers for a page.

It takes keys and values as codes with a scale per token; others are XLA's
(`blocks.misfit`). The sums of a row and head run over its pages in the plan's
order, whatever else the batch has, so that its bits do not depend on other
rows.

Importing this module raises ImportError where `int8_matmul/numba_cpu.py` does.
"""

import math
import os

import jax
import jax.numpy as jnp
from llvmlite import ir
import numba
from numba import types
from numba.extending import intrinsic
import numpy as np

from kaiju_jax.kernels import call_frame
from kaiju_jax.kernels import choice
from kaiju_jax.kernels import softmax
from kaiju_jax.kernels.int8_matmul import numba_cpu as products
from kaiju_jax.kernels.paged_decode import rows

_NAME = 'kaiju_paged_decode'
# Multiplications from which the rows of a batch are split among the cores.
_SPLIT = 2**23

_F32 = ir.FloatType()
_FLOATS = ir.VectorType(_F32, products.LANES)
_INTEGERS = ir.VectorType(products.I32, products.LANES)
_CODES = ir.VectorType(ir.IntType(8), products.LANES)
# Channels of values whose sums are in registers: four of each row.
_CHANNELS = 4 * products.LANES
_TILE = 3  # Rows whose sums are.
# Below, e^x is less than any normal float32.
_LEAST = -87.3
# e^r / 2 for |r| <= ln 2 / 2 without its first two terms (Cephes' expf).
_TERMS = 1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2
_TERMS = *_TERMS, 1.6666665459e-1, 5.0000001201e-1
_LN2 = 0.693359375, -2.12194440e-4  # Its first bits, and the rest.
# Adding it rounds a float32 to an integer, which is in the sum's last bits.
_ROUND = 1.5 * 2**23


def _fill(value, kind=_FLOATS):
  return ir.Constant(kind, [value] * products.LANES)


def _spread(builder, x, kind=_FLOATS):
  """Returns a vector with x in each lane."""
  blank = ir.Constant(kind, ir.Undefined)
  one = builder.insert_element(blank, x, products.I32(0))
  return products.shuffle(builder, one, one, [0] * products.LANES)


def _load(builder, address, place, kind=_FLOATS):
  pointer = builder.inttoptr(builder.add(address, place), kind.as_pointer())
  return builder.load(pointer, align=1 if kind is _CODES else 4)


def _store(builder, x, address, place):
  pointer = builder.inttoptr(builder.add(address, place), x.type.as_pointer())
  builder.store(x, pointer, align=4)


def _add_product(builder, a, b, total):
  """Returns a · b + total, rounded once where the processor can."""
  kind = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
  name = f'llvm.fmuladd.v{products.LANES}f32'
  function = builder.module.declare_intrinsic(name, (), kind)
  return builder.call(function, [a, b, total])


def _exp(builder, x):
  """Returns e^x for x from `_LEAST` to 0, within 2 units in the last place."""
  log2e, shift = _fill(softmax.LOG2E), _fill(_ROUND)
  shifted = builder.fadd(builder.fmul(x, log2e), shift)
  n = builder.fsub(shifted, shift)
  for part in _LN2:
    x = _add_product(builder, n, _fill(-part), x)
  y = _fill(_TERMS[0])
  for term in _TERMS[1:]:
    y = _add_product(builder, y, x, _fill(term))
  y = _add_product(builder, builder.fmul(y, x), x, x)
  y = builder.fadd(y, _fill(1.0))
  power = builder.shl(builder.bitcast(shifted, _INTEGERS), _fill(23, _INTEGERS))
  power = builder.add(power, _fill(0x3F800000, _INTEGERS))
  return builder.fmul(y, builder.bitcast(power, _FLOATS))


def _reduce(builder, x, combine):
  """Returns what `combine` makes of all lanes of x."""
  lanes = products.LANES
  while lanes > 1:
    lanes //= 2
    halves = ([*range(lanes)], [*range(lanes, 2 * lanes)])
    x = combine(*(products.shuffle(builder, x, x, half) for half in halves))
  return builder.extract_element(x, products.I32(0))


@intrinsic
def _soften(_, sums, k_scale, v_scale, seen, state, factor, size, is_float):
  """Makes weights of a row's sums with a page's keys.

  Its arguments are addresses of the sums, which become weights times the
  values' scales, of the keys' and the values' scales, of whether each slot is
  seen, and of the row's peak, total and decay; the sums' factor, the number of
  slots, and whether the sums are floats.
  """

  def build(context, builder, signature, arguments):
    sums, k_scale, v_scale, seen, state, factor, size, is_float = arguments
    factor = _spread(builder, factor)
    none, zeros = _fill(-math.inf), _fill(0.0)

    def larger(a, b):
      return builder.select(builder.fcmp_unordered('>', a, b), a, b)

    def scale(place, values):
      x = builder.sitofp(_load(builder, sums, place, _INTEGERS), _FLOATS)
      x = builder.select(is_float, _load(builder, sums, place), x)
      x = builder.fmul(builder.fmul(x, factor), _load(builder, k_scale, place))
      is_seen = _load(builder, seen, place, _INTEGERS)
      is_seen = builder.icmp_signed('!=', is_seen, _fill(0, _INTEGERS))
      x = builder.select(is_seen, x, none)
      _store(builder, x, sums, place)
      return [larger(x, values[0])]

    def power(x):
      """Returns e^x, and where that is 0."""
      is_none = builder.fcmp_ordered('<', x, _fill(_LEAST))
      return builder.select(is_none, zeros, _exp(builder, x)), is_none

    def weigh(place, values):
      x = builder.fsub(_load(builder, sums, place), peak)
      weight, is_none = power(x)
      # The scale of a value that is not seen may be NaN.
      scaled = builder.fmul(weight, _load(builder, v_scale, place))
      _store(builder, builder.select(is_none, zeros, scaled), sums, place)
      return [builder.fadd(values[0], weight)]

    step, stop = 4 * products.LANES, builder.mul(size, products.I64(4))
    (peak,) = products.loop(builder, stop, step, [none], scale)
    old, total, _ = (
      _load(builder, state, products.I64(4 * n), _F32) for n in range(3)
    )
    new = larger(_reduce(builder, peak, larger), old)
    peak = _spread(builder, new)
    (added,) = products.loop(builder, stop, step, [zeros], weigh)
    decay, _ = power(_spread(builder, builder.fsub(old, new)))
    decay = builder.extract_element(decay, products.I32(0))
    added = _reduce(builder, added, builder.fadd)
    total = builder.fadd(builder.fmul(total, decay), added)
    for n, x in enumerate((new, total, decay)):
      _store(builder, x, state, products.I64(4 * n))
    return context.get_dummy_value()

  word = types.int64
  given = *[word] * 5, types.float32, word, types.boolean
  return types.void(*given), build


def _find_rows(builder, left):
  """Returns the numbers of a tile's rows; the last stands for those beyond."""
  last = builder.sub(left, products.I64(1))
  found = []
  for r in map(products.I64, range(_TILE)):
    is_there = builder.icmp_signed('<', r, left)
    found.append(builder.select(is_there, r, last))
  return found


def _at(builder, row, width, offset=0):
  """Returns the place of a row of so many floats, in bytes."""
  place = builder.mul(builder.mul(row, width), products.I64(4))
  return builder.add(place, products.I64(offset))


def _load_codes(builder, address, place):
  """Returns codes as floats."""
  x = builder.sext(_load(builder, address, place, _CODES), _INTEGERS)
  return builder.sitofp(x, _FLOATS)


@intrinsic
def _multiply(_, q, k, sums, left, size, width):
  """Multiplies float queries of three rows by the codes of four keys.

  Its arguments are addresses of the queries, of the keys' codes and of the
  sums, then how many rows are left and the numbers of slots and of channels.
  """

  def build(context, builder, signature, arguments):
    q, k, sums, left, size, width = arguments
    tile, keys = _find_rows(builder, left), range(4)
    lines = [builder.add(q, _at(builder, row, width)) for row in tile]

    def step(place, totals):
      wide, found = builder.mul(place, products.I64(4)), []
      for n in keys:
        key = builder.add(place, builder.mul(width, products.I64(n)))
        found.append(_load_codes(builder, k, key))
      queries = [_load(builder, line, wide) for line in lines]
      pairs = [(x, y) for x in queries for y in found]
      return [_add_product(builder, *xy, z) for xy, z in zip(pairs, totals)]

    zeros = [_fill(0.0)] * (len(tile) * len(keys))
    totals = products.loop(builder, width, products.LANES, zeros, step)
    for row in tile:
      part, totals = totals[: len(keys)], totals[len(keys) :]
      part = products.fold(builder, part, builder.fadd)
      _store(builder, part, sums, _at(builder, row, size))
    return context.get_dummy_value()

  return types.void(*[types.int64] * 6), build


@intrinsic
def _add_values(_, weights, values, out, state, k, v, left, size, width):
  """Adds weighted values to `_CHANNELS` sums of each of three rows.

  Its arguments are addresses of the rows' weights, of the values' codes, of the
  rows' sums, of the rows' states, and of the next page's keys and values, which
  the cache fetches meanwhile; then how many rows are left and the numbers of
  slots and of channels.
  """

  def build(context, builder, signature, arguments):
    weights, values, out, state, *following, left, size, width = arguments
    I64, tile = products.I64, _find_rows(builder, left)
    parts = [(r, c) for r in range(_TILE) for c in range(4)]
    places = [_at(builder, tile[r], width, c * _CHANNELS) for r, c in parts]
    lines = [builder.add(weights, _at(builder, row, size)) for row in tile]
    firsts = []
    for place, (r, _) in zip(places, parts):
      # A row's state is its peak, total and decay.
      decay = _load(builder, state, _at(builder, tile[r], I64(3), 8), _F32)
      before = _load(builder, out, place)
      firsts.append(builder.fmul(before, _spread(builder, decay)))

    def step(place, sums):
      slot, found = builder.mul(place, width), []
      for address in following:
        products.fetch(builder, builder.add(address, slot))
      for c in range(0, _CHANNELS, products.LANES):
        found.append(_load_codes(builder, values, builder.add(slot, I64(c))))
      place = builder.mul(place, I64(4))
      shares = [_load(builder, line, place, _F32) for line in lines]
      shares = [_spread(builder, share) for share in shares]
      return [
        _add_product(builder, shares[r], found[c], total)
        for total, (r, c) in zip(sums, parts)
      ]

    sums = products.loop(builder, size, 1, firsts, step)
    for total, place in zip(sums, places):
      _store(builder, total, out, place)
    return context.get_dummy_value()

  return types.void(*[types.int64] * 9), build


# The buffers of a call; the last two are results. C is the rows of results,
# which begin at row `begin` of B. Several pools may stand behind the other
# arguments, the four of each together; `number` is which of them is read.
_NAMES = (
  *('q_BRK', 'factor_BR', 'logical_BN', 'page_BN', 'full_B', 'count_B'),
  *('start_BM', 'limit_BM', 'position_BM', 'coordinate_BL', 'position_BL'),
  *('begin_', 'back_', 'number_'),
  *('k_PSK', 'v_PSK', 'k_scale_PS', 'v_scale_PS', 'out_CRK', 'lse_CR'),
)
_BEGIN, _NUMBER = _NAMES.index('begin_'), _NAMES.index('number_')
_F, _I = call_frame.F32, call_frame.S32
_DTYPES = *(call_frame.S8, _F), *[_I] * 12, *[call_frame.S8] * 2, *[_F] * 4
_AXES = [name.rpartition('_')[2] for name in _NAMES]
_RANKS = tuple(map(len, _AXES))
_LETTERS = 'BCKLMNPRS'
_AXES = tuple(tuple(map(_LETTERS.index, f'{x:B<3}')) for x in _AXES)


@numba.njit
def _read(frame, data, dims, is_float):
  """Fills in addresses and sizes; returns whether the frame is as expected."""
  for n in range(len(_RANKS)):
    place = n if n < len(_RANKS) - 2 else len(_RANKS) - 3 - n
    if n > _NUMBER and place > 0:
      place += 4 * call_frame.integers(data[_NUMBER])[0]
      if place < n:
        return False
    dtype = call_frame.F32 if n == 0 and is_float else _DTYPES[n]
    address = call_frame.buffer(frame, place, dtype, _RANKS[n])
    if address == 0:
      return False
    data[n] = call_frame.words(address)[3]
    sizes = call_frame.words(call_frame.words(address)[5])
    for axis in range(_RANKS[n]):
      letter = _AXES[n][axis]
      if dims[letter] not in (0, sizes[axis]):
        return False
      dims[letter] = sizes[axis]
  B, C, K, L, M, N, _, R, S = dims
  begin = call_frame.integers(data[_BEGIN])[0]
  whole = K % _CHANNELS == 0 and S % products.LANES == 0 and R % L == 0
  return whole and M == N * S and 0 <= begin <= B - C


@numba.njit(error_model='numpy')
def _attend(data, dims, b, c, is_float, sums, states, excess, seen):
  """Writes row c of the results, row b of the batch.

  Returns whether the row's plan lists what the pool and the row's table have.
  """
  _, _, K, L, M, N, P, R, S = dims
  q, factor, logical, pages, full, count, start, limit, position = data[:9]
  coordinate, own, _, back, _, k, v, k_scale, v_scale, out, lse = data[9:]
  logical = call_frame.integers(logical + 4 * b * N)
  pages = call_frame.integers(pages + 4 * b * N)
  full, count = call_frame.integers(full)[b], call_frame.integers(count)[b]
  coordinate = call_frame.integers(coordinate + 4 * b * L)
  own, back = call_frame.integers(own + 4 * b * L), call_frame.integers(back)[0]
  factor = call_frame.floats(factor + 4 * b * R)
  lse, out = call_frame.floats(lse + 4 * c * R), out + 4 * c * R * K
  found = call_frame.floats(out)
  for i in range(R * K):
    found[i] = 0
  states[:, 0], states[:, 1], seen[:] = softmax.LOWEST, 0, 1
  if count > N:
    return False
  for n in range(count):
    page, following = pages[n], pages[min(n + 1, count - 1)]
    if not (0 <= page < P and 0 <= following < P and 0 <= logical[n] < N):
      return False
    page, following = page * S, following * S * K
    weights, state = sums.ctypes.data, states.ctypes.data
    codes, keys = q + b * R * K, k + page * K
    if is_float:
      for s in range(0, S, 4):
        for r in range(0, R, _TILE):
          x, w = q + 4 * (b * R + r) * K, weights + 4 * (r * S + s)
          _multiply(x, keys + s * K, w, R - r, S, K)
    else:
      products.multiply_codes(codes, keys, weights, excess, R, K, S)
    at = 4 * (b * M + logical[n] * S)
    starts = call_frame.integers(start + at)
    limits = call_frame.integers(limit + at)
    positions = call_frame.integers(position + at)
    k_scales, v_scales = k_scale + 4 * page, v_scale + 4 * page
    for r in range(R):
      query, head = divmod(r, R // L)
      if n >= full and head == 0:
        at, mine = coordinate[query], own[query]
        for s in range(S):
          is_near = mine - positions[s] <= back
          seen[s] = starts[s] <= at and at < limits[s] and is_near
      w, t = weights + 4 * r * S, state + 12 * r
      f, seen_at = factor[r], seen.ctypes.data
      _soften(w, k_scales, v_scales, seen_at, t, f, S, is_float)
    for i in range(0, K, _CHANNELS):
      values, next_k, next_v = v + page * K + i, k + following, v + following
      for r in range(0, R, _TILE):
        w, y, t = weights + 4 * r * S, out + 4 * (r * K + i), state + 12 * r
        _add_values(w, values, y, t, next_k + i, next_v + i, R - r, S, K)
  for r in range(R):
    peak, total = states[r, 0], states[r, 1]
    # `== 0` and not `> 0`, which is false for NaN as well.
    lse[r] = 0 if total == 0 else peak + math.log(total)
    for i in range(r * K, (r + 1) * K):
      found[i] /= np.float32(1) if total == 0 else total
  return True


@numba.cfunc(call_frame.HANDLER, cache=True)
def _handle(frame):
  if call_frame.tell_version(frame):
    return 0
  data, dims = np.empty(len(_RANKS), np.int64), np.zeros(9, np.int64)
  is_float = call_frame.buffer(frame, 0, call_frame.F32, 3) != 0
  if not _read(frame, data, dims, is_float):
    return call_frame.fail(frame)
  rows, slots = dims[7], dims[8]
  # They are arguments so that they live while their addresses are used.
  sums, seen = np.empty((rows, slots), np.int32), np.empty(slots, np.int32)
  states, excess = np.empty((rows, 3), np.float32), np.empty(rows, np.int32)
  begin = call_frame.integers(data[_BEGIN])[0]
  for c in range(dims[1]):
    b = begin + c
    if not _attend(data, dims, b, c, is_float, sums, states, excess, seen):
      return call_frame.fail(frame)
  return 0


call_frame.register(_NAME, _handle)


def decode(q_BLHK, k_PSK, v_PSK, ranges, scales, call):
  """Returns (out_BLHK in `dtype`, lse_BLH in float32).

  The rows of a large batch are in as many calls as there are cores, because XLA
  runs independent calls side by side.
  """
  q_BRK, q_scale_BR = rows.pack(q_BLHK, k_PSK, scales, call.dtype)
  B, R, K = q_BRK.shape
  if q_scale_BR is None:
    q_BRK, q_scale_BR = q_BRK.astype(jnp.float32), jnp.ones((B, R))
  chosen = [choice.wrap(x) for x in (k_PSK, v_PSK, scales.k, scales.v)]
  pools = [
    x if x.dtype == jnp.int8 else jnp.asarray(x, jnp.float32)
    for four in zip(*(each.arrays for each in chosen), strict=True)
    for x in four
  ]
  given = (
    *(q_BRK, jnp.asarray(call.scale * q_scale_BR, jnp.float32), *call.plan),
    *(ranges.start_BM, ranges.limit_BM, ranges.position_BM),
    *(ranges.coordinate_BL, ranges.position_BL),
  )
  most = jnp.iinfo(jnp.int32).max
  back = jnp.int32(most if call.window is None else call.window - 1)
  is_large = ranges.start_BM.size * R * K >= _SPLIT
  size = -(-B // (len(os.sched_getaffinity(0)) if is_large else 1))
  parts = []
  for begin in range(0, B, size):
    out_BRK = jax.ShapeDtypeStruct((min(size, B - begin), R, K), jnp.float32)
    results = out_BRK, jax.ShapeDtypeStruct(out_BRK.shape[:2], jnp.float32)
    decoded = jax.ffi.ffi_call(_NAME, results, vmap_method='sequential')
    parts.append(
      decoded(*given, jnp.int32(begin), back, chosen[0].number, *pools)
    )
  out_BRK, lse_BR = map(jnp.concatenate, zip(*parts))
  return rows.unpack(out_BRK, lse_BR, scales.v, q_BLHK.shape, call.dtype)
