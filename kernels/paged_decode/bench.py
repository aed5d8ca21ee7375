"""Paged decode against one read of the cache.

A shape has all heads of a preset, or the eighth that a tensor axis of eight
leaves to a device. It needs one read of the codes and scales of every slot that
some query sees, and of its queries and outputs. Tiles are the slots of the
pages that the plan visits, and the slots that some query sees. The plan is made
before the timed call, as layers of a step share it, and is timed by itself.

The platform's kernel stands beside the same kernel on a bfloat16 cache (which
shows what the codes save), XLA's gather, and, where each row sees its first
tokens, `jax.nn.dot_product_attention` in bfloat16 over unpaged rows.
"""

from collections.abc import Callable
from collections.abc import Iterator
import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax.kernels import benchmark
from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.paged_decode import api
from kaiju_jax.kernels.paged_decode import blocks
from kaiju_jax.kernels.paged_decode import plan as plan_lib
from kaiju_jax.kernels.visibility_attention import operands as operands_lib

_K = 128
# Tokens of each beam that no other beam sees.
_BRANCH = 128
CACHES = 'int8', 'bfloat16'


class BenchShape(NamedTuple):
  """A step of decoding."""

  heads: int  # Query heads on this device.
  batch: int  # Rows.
  context: int  # Slots of a row's table, and tokens of the (longest) row.
  slots: int  # Slots per page.
  window: int | None = None  # The layer's window in positions; None for all.
  queries: int = 1  # Beams of a row, which share all but their last tokens.
  # Whether rows' lengths differ, from an eighth of the context to all.
  ragged: bool = False
  # Whether the slots are a ring, in which new tokens overwrite old ones.
  ring: bool = False
  # The first positions that all see; a ring's first pages are theirs.
  sinks: int = 0


SHAPES = {
  '13b/8, 64 × 16k': BenchShape(5, 64, 16_384, 64),
  '34b/8, 8 × 128k': BenchShape(7, 8, 131_072, 128),
  '110b/8, 32 × 32k': BenchShape(12, 32, 32_768, 64),
  '110b/8, 32 × 32k, pages of 16': BenchShape(12, 32, 32_768, 16),
  '110b/8, 32 × 32k, pages of 128': BenchShape(12, 32, 32_768, 128),
  '110b/8, 32 × 4k…32k': BenchShape(12, 32, 32_768, 64, ragged=True),
  '110b/8, 1 × 128k': BenchShape(12, 1, 131_072, 64),
  '13b, 32 × 32k': BenchShape(40, 32, 32_768, 64),
  '34b, 8 × 128k': BenchShape(56, 8, 131_072, 128),
  '110b, 32 × 32k': BenchShape(96, 32, 32_768, 64),
  '110b/8, 64 rings, window 1024': BenchShape(
    12, 64, 1152, 128, window=1024, ring=True
  ),
  '110b/8, 64 rings, window 1024, sinks': BenchShape(
    12, 64, 1280, 128, window=1024, ring=True, sinks=4
  ),
  '110b/8, 64 × 32k, window 1024': BenchShape(12, 64, 32_768, 64, window=1024),
  '110b/8, 16 × 32k, 8 beams': BenchShape(12, 16, 32_768, 64, queries=8),
}
FIRST = (
  '110b/8, 32 × 32k',
  '13b/8, 64 × 16k',
  '110b/8, 64 rings, window 1024',
  '110b/8, 1 × 128k',
  '110b/8, 16 × 32k, 8 beams',
)
TINY = BenchShape(heads=2, batch=2, context=64, slots=32)


class Layout(NamedTuple):
  """The table and ranges of a step; numpy, int32. See `api.decode`."""

  table_BN: Any
  start_BM: Any
  limit_BM: Any
  coordinate_BL: Any
  position_BL: Any
  position_BM: Any


def layout(shape: BenchShape) -> Layout:
  """Returns shuffled pages and the ranges of causal rows, or of beams.

  Each beam sees the row's prompt and its own last tokens.
  """
  B, M, L = shape.batch, shape.context, shape.queries
  N = M // shape.slots
  table_BN = np.random.default_rng(0).permutation(B * N).reshape(B, N)
  slot_BM = np.tile(np.arange(M), (B, 1))
  if L > 1:
    prompt = M - L * _BRANCH
    beam_BM = (slot_BM - prompt) // _BRANCH
    shared_BM = slot_BM < prompt
    start_BM = np.where(shared_BM, 0, beam_BM)
    limit_BM = np.where(shared_BM, L, beam_BM + 1)
    position_BM = np.where(
      shared_BM, slot_BM, prompt + (slot_BM - prompt) % _BRANCH
    )
    coordinate_BL = np.tile(np.arange(L), (B, 1))
    position_BL = np.full((B, L), prompt + _BRANCH - 1)
  else:
    newest_B1 = lengths(shape)[:, None] - 1
    if shape.ring:
      # The row has written one and a half times as many tokens as the ring has.
      newest_B1 = newest_B1 + M // 2
      pinned = -(-shape.sinks // shape.slots) * shape.slots
      turned_BM = newest_B1 - (newest_B1 - slot_BM) % (M - pinned)
      slot_BM = np.where(slot_BM < pinned, slot_BM, turned_BM)
    start_BM, position_BM = slot_BM, slot_BM
    limit_BM = np.where(slot_BM <= newest_B1, newest_B1.max() + 1, slot_BM)
    coordinate_BL = position_BL = newest_B1
  fields = (
    table_BN,
    start_BM,
    limit_BM,
    coordinate_BL,
    position_BL,
    position_BM,
  )
  return Layout(*(np.asarray(field, np.int32) for field in fields))


def lengths(shape: BenchShape):
  """Returns the tokens of each row."""
  if not shape.ragged:
    return np.full(shape.batch, shape.context)
  return np.linspace(shape.context // 8, shape.context, shape.batch, dtype=int)


class Counts(NamedTuple):
  """The numbers of slots that a shape needs and that its plan visits."""

  pairs: int  # Pairs of a query and a slot that it sees, by brute force.
  slots: int  # Slots that some query sees, by brute force.
  visited: int  # Slots of the pages that the plan visits.
  whole: int  # Slots of the pages that are seen whole.


def counts(shape: BenchShape, where: Layout) -> Counts:
  """Returns the `Counts` of a shape's layout."""
  pairs = slots = 0
  _, *visibility = where
  for row in zip(*(field[:, None] for field in visibility)):
    ranges = operands_lib.Ranges(*row).exempt(shape.sinks)
    visible_LM = np.asarray(operands_lib.visible(ranges, shape.window))[0]
    pairs += int(visible_LM.sum())
    slots += int(visible_LM.any(axis=0).sum())
  plan = make_plan(shape, where)
  return Counts(
    pairs,
    slots,
    int(plan.count_B.sum()) * shape.slots,
    int(plan.full_B.sum()) * shape.slots,
  )


def make_plan(shape: BenchShape, where: Layout) -> plan_lib.Plan:
  """Returns the plan that all layers of a step share."""
  return _planner(where.table_BN.size, shape.window, shape.sinks)(*where)


@functools.cache
def _planner(pages: int, window: int | None, sinks: int):
  seen = {'window': window, 'sinks': sinks}
  return jax.jit(functools.partial(api.make_plan, pages=pages, **seen))


def operands(
  shape: BenchShape, where: Layout, cache: str
) -> dict[str, jax.Array]:
  """Returns a layer's operands of `api.decode`, by name."""
  B, L, H, S = shape.batch, shape.queries, shape.heads, shape.slots
  P = where.table_BN.size
  shapes = {
    'q_BLHK': (B, L, H, _K),
    'k_PSK': (P, S, _K),
    'v_PSK': (P, S, _K),
  }
  scales = {'q_scale_BLH': (B, L, H), 'k_scale': (P, S), 'v_scale': (P, S)}

  @jax.jit
  def make(keys):
    values = {
      name: jax.random.normal(key, dims, jnp.bfloat16)
      for key, (name, dims) in zip(keys, shapes.items())
    }
    if cache != 'int8':
      return {name: x.astype(cache) for name, x in values.items()}
    # Normal values, in which code 127 is about three standard deviations.
    arrays = {
      name: jnp.clip(40 * x, -127, 127).astype(jnp.int8)
      for name, x in values.items()
    }
    return arrays | {
      name: jax.random.uniform(key, dims, minval=0.02, maxval=0.03)
      for key, (name, dims) in zip(keys[3:], scales.items())
    }

  return make(jax.random.split(jax.random.key(0), 6))


def least_bytes(shape: BenchShape, counted: Counts, cache: str) -> int:
  """Returns the bytes that any implementation must read and write."""
  rows = shape.batch * shape.queries * shape.heads
  itemsize, scale = (1, 4) if cache == 'int8' else (2, 0)
  read = (counted.slots * 2 + rows) * (_K * itemsize + scale)
  return read + rows * (_K * 2 + 4)


def subjects(label: str, shape: BenchShape) -> Iterator[benchmark.Subject]:
  """Yields the step with its peers, and the plan."""
  where = layout(shape)
  counted = counts(shape, where)
  own = default(shape)
  contenders = {
    f'{name}, {cache}': _contender(shape, where, counted, name, cache)
    for cache in CACHES
    for name in ('xla' if own == 'numba_cpu' and cache != 'int8' else own,)
  }
  if benchmark.is_timed():
    if own != 'xla':
      contenders['xla, int8'] = _contender(shape, where, counted, 'xla', 'int8')
    if shape.window is None and shape.queries == 1:
      # JAX's own attention can express these ranges.
      for name in 'xla', 'cudnn':
        contenders[f'jax.nn {name}'] = _peer(shape, counted, name)
  yield benchmark.Subject(
    kernel='paged_decode',
    shape=label,
    operations=4 * _K * counted.pairs * shape.heads,
    bytes=least_bytes(shape, counted, 'int8'),
    make=lambda: None,
    contenders=contenders,
  )
  yield benchmark.Subject(
    kernel='paged_decode: plan',
    shape=label,
    operations=0,
    bytes=3 * 4 * shape.batch * shape.context,
    make=lambda: tuple(map(jnp.asarray, where)),
    contenders={
      'plan': benchmark.Contender(
        _planner(where.table_BN.size, shape.window, shape.sinks),
        lambda fields: fields,
      )
    },
  )


def default(shape: BenchShape) -> str:
  """Returns the platform's implementation at a shape."""
  return blocks.implementation(dispatch.platform(), block_shape(shape, 'int8'))


def _contender(shape, where, counted, implementation, cache):
  def make(made):
    del made
    return arguments(shape, where, cache)

  def error(made):
    (got, _), (expected, _) = (
      run(shape, each)(*make(made)) for each in (implementation, 'reference')
    )
    return benchmark.largest_difference(got, expected)

  return benchmark.Contender(
    run(shape, implementation),
    make,
    error,
    # The bfloat16 cache is the comparison for the codes.
    is_peer=cache != 'int8',
    tiles=(counted.visited, counted.slots),
    bytes=least_bytes(shape, counted, cache),
  )


def block_shape(shape: BenchShape, cache: str) -> blocks.Shape:
  """Returns the shape as `blocks` takes it."""
  return blocks.Shape(
    B=shape.batch,
    rows=shape.queries * shape.heads,
    K=_K,
    P=shape.batch * shape.context // shape.slots,
    N=shape.context // shape.slots,
    S=shape.slots,
    itemsize=jnp.dtype(cache).itemsize,
    window=shape.window,
    is_coded=cache == 'int8',
  )


def arguments(shape: BenchShape, where: Layout, cache: str) -> tuple:
  """Returns the arguments of what `run` returns, on the device."""
  fields = {name: jnp.asarray(x) for name, x in where._asdict().items()}
  return operands(shape, where, cache), fields, make_plan(shape, where)


def run(
  shape: BenchShape, implementation: str, sizes: blocks.Sizes | None = None
) -> Callable[..., Any]:
  """Returns the jitted decode, a function of arrays, layout and plan."""

  @jax.jit
  def step(arrays, where, plan):
    return api.decode(
      **arrays,
      **where,
      plan=plan,
      window=shape.window,
      sinks=shape.sinks,
      scale=_K**-0.5,
      implementation=implementation,
      sizes=sizes,
    )

  return step


def _peer(shape: BenchShape, counted: Counts, implementation: str):
  """Returns JAX's own attention over unpaged rows."""
  attend = functools.partial(
    jax.nn.dot_product_attention, implementation=implementation
  )

  def make(made):
    del made
    keys = jax.random.split(jax.random.key(0), 3)
    rows = shape.batch, shape.context, 1, _K
    dims = (shape.batch, 1, shape.heads, _K), rows, rows
    arrays = (jax.random.normal(*x, jnp.bfloat16) for x in zip(keys, dims))
    return *arrays, jnp.asarray(lengths(shape), jnp.int32)

  return benchmark.Contender(
    jax.jit(
      lambda *arrays: attend(*arrays[:3], key_value_seq_lengths=arrays[3])
    ),
    make,
    is_peer=True,
    bytes=least_bytes(shape, counted, 'bfloat16'),
  )
