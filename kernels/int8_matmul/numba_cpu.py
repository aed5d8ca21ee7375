"""Multiplies codes on an x86 CPU by a numba function, which XLA calls.

A weight [O, C] has its contracted dimension last; other products are XLA's
(`xla.py`). XLA's CPU multiplies s8 by s8 without VNNI, and packs the weight in
each call. Here a tile of rows and outputs has its sums in registers, and the
weights of later tiles are fetched meanwhile. Sums are integers, with the same
bits in every order, so that y has XLA's.

Importing this module raises ImportError where numba is missing, the processor
has no AVX2, or XLA calls in another way (`kernels/call_frame.py`).
"""

import os

import jax
import jax.numpy as jnp
from llvmlite import ir
import numba
from numba import types
from numba.core import codegen
from numba.extending import intrinsic
import numpy as np

from kaiju_jax.kernels import call_frame
from kaiju_jax.kernels import choice
from kaiju_jax.kernels.int8_matmul import reference
from kaiju_jax.kernels.int8_matmul import xla

quantize = reference.quantize
quantize_stochastic = reference.quantize_stochastic
input_gradient = xla.input_gradient
weight_gradient = xla.weight_gradient

_NAME = 'kaiju_int8_sums'
# Rows that are multiplied before a weight is read again: the L2 cache has them.
_ROWS = 64
# Tiles of outputs between one that is multiplied and one that is fetched.
_AHEAD = 4
# Codes of a weight from which each core reads its part of it.
_SPLIT = 2**22

_I8, _I16, I32, I64 = map(ir.IntType, (8, 16, 32, 64))
_ADDRESS = _I8.as_pointer()


def _choose_tile() -> tuple[int, int]:
  """Returns how many codes one instruction multiplies, and outputs of a tile.

  It must agree with the features that numba compiles for, because LLVM ends the
  process where it has no such instruction.
  """
  features = numba.config.CPU_FEATURES
  if features is None:
    features = codegen.get_host_cpu_features()
  has = {name[1:] for name in features.split(',') if name.startswith('+')}
  if {'avx512f', 'avx512vl', 'avx512vnni'} <= has:
    return 64, 4
  if 'avx2' not in has:
    raise ImportError('numba_cpu: the processor has no AVX2.')
  return (32 if 'avxvnni' in has else 16), 2


_STEP, _OUTPUTS = _choose_tile()
# Sums of a register. Without VNNI codes are widened to 16 bits.
LANES = 16 if _STEP == 64 else 8
_SUMS = ir.VectorType(I32, LANES)
_WIDENS = _STEP == 16


def _load(builder, address, is_weight):
  """Returns the operand of `_add_products` at an address."""
  kind = ir.VectorType(_I8, 16) if _WIDENS else _SUMS
  x = builder.load(builder.inttoptr(address, kind.as_pointer()), align=1)
  if _WIDENS:
    return builder.sext(x, ir.VectorType(_I16, 16))
  if is_weight:  # VNNI multiplies u8 by s8: codes + 128.
    return builder.xor(x, ir.Constant(_SUMS, [0x80808080] * LANES))
  return x


def _add_products(builder, sums, w, x):
  """Returns the lanes of `sums` plus the products of the codes of w and x."""
  name = 'avx2.pmadd.wd' if _WIDENS else f'avx512.vpdpbusd.{8 * _STEP}'
  operands = (w, x) if _WIDENS else (sums, w, x)
  kind = ir.FunctionType(_SUMS, [each.type for each in operands])
  function = builder.module.declare_intrinsic(f'llvm.x86.{name}', (), kind)
  made = builder.call(function, operands)
  return builder.add(sums, made) if _WIDENS else made


def fetch(builder, address):
  """Has the cache fetch an address, which may lie outside the weight."""
  kind = ir.FunctionType(ir.VoidType(), [_ADDRESS, I32, I32, I32])
  function = builder.module.declare_intrinsic('llvm.prefetch', [_ADDRESS], kind)
  flags = [I32(flag) for flag in (0, 3, 1)]  # To read, near, data.
  builder.call(function, [builder.inttoptr(address, _ADDRESS), *flags])


def shuffle(builder, a, b, lanes):
  lanes = ir.Constant(ir.VectorType(I32, len(lanes)), lanes)
  return builder.shuffle_vector(a, b, lanes)


def fold(builder, sums, add):
  """Returns one vector with the sum of each vector's lanes."""

  def pairs(a, b, count):
    even, odd = (
      shuffle(builder, a, b, [*range(first, count, 2)]) for first in (0, 1)
    )
    return add(even, odd)

  count, lanes = len(sums), LANES
  while len(sums) > 1:
    sums = [pairs(a, b, 2 * lanes) for a, b in zip(sums[::2], sums[1::2])]
  (folded,) = sums
  while lanes > count:
    folded = pairs(folded, folded, lanes)
    lanes //= 2
  return folded


def loop(builder, stop, step, firsts, body):
  """Builds a loop over places from 0 to `stop`, which runs at least once.

  Args:
    builder: llvmlite's.
    stop: an `I64`.
    step: how far one place is from the next.
    firsts: what each carried value is at first.
    body: from a place and the carried values to their next ones.

  Returns:
    the carried values after the last place.
  """
  before = builder.block
  inside = builder.append_basic_block('loop')
  after = builder.append_basic_block('after')
  builder.branch(inside)
  builder.position_at_end(inside)
  place, *values = phis = [builder.phi(x.type) for x in (I64(0), *firsts)]
  made = body(place, values)
  following = builder.add(place, I64(step))
  for phi, first, value in zip(phis, [I64(0), *firsts], [following, *made]):
    phi.add_incoming(first, before)
    phi.add_incoming(value, inside)
  again = builder.icmp_signed('<', following, stop)
  builder.cbranch(again, inside, after)
  builder.position_at_end(after)
  return made


def _tile(rows):
  """Returns numba's function that multiplies a tile of so many rows.

  Its arguments are addresses of the tile's first codes of x and w, of its first
  sum and of what each row has too much, then C, how much of it is multiplied (a
  multiple of `_STEP`), and O.
  """

  def build(context, builder, signature, arguments):
    x, w, y, excess, size, stop, width = arguments

    def at(address, stride, index):
      return builder.add(address, builder.mul(stride, I64(index)))

    places = [(r, o) for r in range(rows) for o in range(_OUTPUTS)]

    def step(place, sums):
      xs = [builder.add(at(x, size, r), place) for r in range(rows)]
      ws = [builder.add(at(w, size, o), place) for o in range(_OUTPUTS)]
      for address in ws:
        fetch(builder, at(address, size, _OUTPUTS * _AHEAD))
      xs = [_load(builder, address, False) for address in xs]
      ws = [_load(builder, address, True) for address in ws]
      return [
        _add_products(builder, total, ws[o], xs[r])
        for total, (r, o) in zip(sums, places)
      ]

    zeros = [ir.Constant(_SUMS, None)] * len(places)
    made = loop(builder, stop, _STEP, zeros, step)
    folded = fold(builder, made, builder.add)
    out = ir.VectorType(I32, _OUTPUTS)
    for r in range(rows):
      lanes = [places.index((r, o)) for o in range(_OUTPUTS)]
      part = shuffle(builder, folded, folded, lanes)
      if not _WIDENS:
        address = builder.inttoptr(at(excess, I64(4), r), I32.as_pointer())
        one = builder.insert_element(
          ir.Constant(out, ir.Undefined), builder.load(address), I32(0)
        )
        part = builder.sub(part, shuffle(builder, one, one, [0] * _OUTPUTS))
      address = at(y, width, 4 * r)
      builder.store(part, builder.inttoptr(address, out.as_pointer()), align=4)
    return context.get_dummy_value()

  @intrinsic
  def multiply(_, x, w, y, excess, size, stop, width):
    return types.void(*[types.int64] * 7), build

  return multiply


_tile_1, _tile_2, _tile_4 = map(_tile, (1, 2, 4))


@numba.njit
def _multiply_whole(x, w, y, excess, rows, size, stop, outputs):
  """Writes the sums over the first `stop` codes, a multiple of `_STEP`."""
  x_codes = call_frame.codes(x)
  for r in range(rows):
    total = np.int32(0)
    for c in range(r * size, r * size + stop):
      total += np.int32(x_codes[c])
    excess[r] = 128 * total
  for first in range(0, rows, _ROWS):
    last = min(first + _ROWS, rows)
    for o in range(0, outputs, _OUTPUTS):
      o = min(o, outputs - _OUTPUTS)  # The last tile lies over another.
      w_tile = w + o * size
      r = first
      while r < last:
        x_tile, y_tile = x + r * size, y + 4 * (r * outputs + o)
        shift = excess.ctypes.data + 4 * r
        if r + 4 <= last:
          _tile_4(x_tile, w_tile, y_tile, shift, size, stop, outputs)
          r += 4
        elif r + 2 <= last:
          _tile_2(x_tile, w_tile, y_tile, shift, size, stop, outputs)
          r += 2
        else:
          _tile_1(x_tile, w_tile, y_tile, shift, size, stop, outputs)
          r += 1


@numba.njit
def multiply_codes(x, w, y, excess, rows, size, outputs):
  """Writes the sums [rows, outputs] at y, of codes at the addresses x and w."""
  stop = size // _STEP * _STEP if outputs >= _OUTPUTS else 0
  if stop:
    _multiply_whole(x, w, y, excess, rows, size, stop, outputs)
  if stop == size:
    return
  x_codes, w_codes = call_frame.codes(x), call_frame.codes(w)
  sums = call_frame.integers(y)
  for r in range(rows):
    for o in range(outputs):
      total = sums[r * outputs + o] if stop else np.int32(0)
      for c in range(stop, size):
        product = np.int32(x_codes[r * size + c]) * w_codes[o * size + c]
        total += np.int32(product)
      sums[r * outputs + o] = total


@numba.cfunc(call_frame.HANDLER, cache=True)
def _handle(frame):
  if call_frame.tell_version(frame):
    return 0
  x = call_frame.buffer(frame, 0, call_frame.S8, 2)
  begin = call_frame.buffer(frame, 1, call_frame.S32, 0)
  number = call_frame.buffer(frame, 2, call_frame.S32, 0)
  y = call_frame.buffer(frame, -1, call_frame.S32, 2)
  if x == 0 or begin == 0 or number == 0 or y == 0:
    return call_frame.fail(frame)
  number = call_frame.integers(call_frame.words(number)[3])[0]
  w = call_frame.buffer(frame, 3 + number, call_frame.S8, 2)
  if number < 0 or w == 0:
    return call_frame.fail(frame)
  x, w, y = call_frame.words(x), call_frame.words(w), call_frame.words(y)
  begin = call_frame.integers(call_frame.words(begin)[3])[0]
  x_RC, w_OC = call_frame.words(x[5]), call_frame.words(w[5])
  y_RO = call_frame.words(y[5])
  rows, size, outputs = x_RC[0], x_RC[1], y_RO[1]
  is_part = 0 <= begin <= w_OC[0] - outputs
  if w_OC[1] != size or y_RO[0] != rows or not is_part:
    return call_frame.fail(frame)
  # It is an argument so that it lives while its address is used.
  excess = np.empty(rows, np.int32)
  multiply_codes(x[3], w[3] + begin * size, y[3], excess, rows, size, outputs)
  return 0


call_frame.register(_NAME, _handle)


def is_whole(size: int) -> bool:
  """Returns whether a sum over so many codes has no part of a step.

  Such parts are multiplied one by one, slower than XLA does.
  """
  return size % _STEP == 0


def sums(x_RC: jax.Array, w_OC: jax.Array) -> jax.Array:
  """Returns Σ_c x[r, c] · w[o, c] in int32 [R, O]; both are int8.

  A large weight is read in as many calls as there are cores, because XLA runs
  independent calls side by side.
  """
  outputs, (number, weights) = w_OC.shape[0], choice.wrap(w_OC)
  is_large = weights[0].size >= _SPLIT
  parts = len(os.sched_getaffinity(0)) if is_large else 1
  size = -(-outputs // parts)
  calls = []
  for begin in range(0, outputs, size):
    shape = x_RC.shape[0], min(size, outputs - begin)
    call = jax.ffi.ffi_call(
      _NAME, jax.ShapeDtypeStruct(shape, jnp.int32), vmap_method='sequential'
    )
    calls.append(call(x_RC, jnp.int32(begin), number, *weights))
  return calls[0] if len(calls) == 1 else jnp.concatenate(calls, axis=1)


def multiply(
  codes_RC, scale_R, w, scale_O, *, contract, nonnegative, relu2, cut_R, dtype
):
  """Returns y_RO in `dtype`."""
  options = dict(nonnegative=nonnegative, relu2=relu2, cut_R=cut_R, dtype=dtype)
  if contract == 'first':
    return xla.multiply(
      codes_RC, scale_R, w, scale_O, contract=contract, **options
    )
  return xla.finish(sums(codes_RC, w), scale_R, w, scale_O, axis=1, **options)
