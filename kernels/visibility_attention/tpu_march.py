"""Runs a march: each block of one side visits its list of the other side.

The grid has a step for each marching block, whose operands Pallas' pipeline
fetches. The visited side stays in HBM. A loop as long as the block's list
copies the visited blocks one after the other into two alternating buffers: the
next block arrives while the kernel works on the present one. A block that is on
no list costs neither a copy nor a step.

Steps form chains: the last turn of a step's loop copies the first block of the
chain's next step. Chains are the grid's second dimension. There are two where
the number of blocks is even, each with every other block, because a chip with
two cores (v5p) gives each core a part of the parallel dimensions, and the lists
of a causal row grow longer towards its end.

The orders of a marching block, its list in coded form, are one row of int32.
They fit into scalar memory, however long the whole march is:

    [count, word 0, …, word count - 1, following, …]
    word = 2 · visited block + (1 where every pair of the two is visible)

`following` is the first word of the chain's next step, or -1.
"""

from collections.abc import Callable
import functools
import math
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.visibility_attention import plan as plan_lib


def orders(plan: plan_lib.Plan, full_BXY: jax.Array) -> jax.Array:
  """Returns int32[B, X, 1, Y + 2], the orders of every marching block.

  Args:
    plan: which blocks each of the X marching blocks visits.
    full_BXY: bool, where a pair of blocks needs no mask.
  """
  count_BX, list_BXY = plan
  B, X = count_BX.shape
  full_BXY = jnp.take_along_axis(full_BXY, list_BXY, axis=-1)
  word_BXY = 2 * list_BXY + full_BXY.astype(jnp.int32)
  first_BX = jnp.where(count_BX > 0, word_BXY[:, :, 0], -1)
  following_BX = jnp.full((B, X), -1, jnp.int32)
  chains = _chains(X)
  following_BX = following_BX.at[:, :-chains].set(first_BX[:, chains:])
  words = jnp.pad(word_BXY, ((0, 0), (0, 0), (0, 1)))
  place = jnp.arange(words.shape[-1])[None, None]
  words = jnp.where(
    place == count_BX[..., None], following_BX[..., None], words
  )
  return jnp.concatenate([count_BX[..., None], words], axis=-1)[:, :, None]


def march(
  body: Callable,
  orders_BX1N: jax.Array,
  marching: Any,
  visited: Any,
  constants: Any,
  *,
  outputs: Any,
  scratch: Any,
  name: str,
) -> Any:
  """Runs `body` once for every marching block.

  Args:
    body: a function of (visit, marching, constants, outputs, scratch). The last
      four are references to one block of each of the arguments below.
      visit(step) calls step(visited references, masked) for each visited block,
      where masked is a Python bool.
    orders_BX1N: int32, from `orders`.
    marching: tree of arrays [B, X, …].
    visited: tree of arrays [B, Y, …].
    constants: tree of arrays that every block reads whole.
    outputs: tree of jax.ShapeDtypeStruct [B, X, …].
    scratch: tree of memory that a block keeps from visit to visit.
    name: the kernel's name, for profiles.

  Returns:
    The outputs.
  """
  B, X = orders_BX1N.shape[:2]
  chains = _chains(X)

  def block(x, **keywords):
    rest = x.shape[2:]

    def index(b, c, i):
      return b, i * chains + c, *(0 for _ in rest)

    return pl.BlockSpec((None, None, *rest), index, **keywords)

  def whole(x):
    return pl.BlockSpec(x.shape, lambda b, c, i: (0,) * x.ndim)

  buffers = jax.tree.map(
    lambda x: pltpu.VMEM((2, *x.shape[2:]), x.dtype), visited
  )
  copies = len(jax.tree.leaves(visited))
  (results,) = pl.pallas_call(
    functools.partial(_step, body),
    grid=(B, chains, X // chains),
    in_specs=[
      block(orders_BX1N, memory_space=pltpu.SMEM),
      jax.tree.map(block, marching),
      jax.tree.map(lambda _: pl.BlockSpec(memory_space=pl.ANY), visited),
      jax.tree.map(whole, constants),
    ],
    out_specs=[jax.tree.map(block, outputs)],
    out_shape=[outputs],
    scratch_shapes=[
      buffers,
      pltpu.SemaphoreType.DMA((2, copies)),
      pltpu.SMEM((1,), jnp.int32),
      scratch,
    ],
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=('parallel', 'parallel', 'arbitrary')
    ),
    interpret=dispatch.interpreting(),
    name=name,
  )(orders_BX1N, marching, visited, constants)
  return results


def _chains(blocks: int) -> int:
  return math.gcd(blocks, 2)


def _step(
  body,
  orders_ref,
  marching,
  visited,
  constants,
  outputs,
  buffers,
  semaphores,
  turn_ref,
  scratch,
):
  """Runs one step of the grid: `body` for one marching block."""
  b, i = pl.program_id(0), pl.program_id(2)
  count = orders_ref[0, 0]

  @pl.when(i == 0)
  def _():
    turn_ref[0] = 0

  turn = turn_ref[0]

  def copies(word, slot):
    place = b, jax.lax.shift_right_logical(word, 1)
    pairs = zip(jax.tree.leaves(visited), jax.tree.leaves(buffers), strict=True)
    return [
      pltpu.make_async_copy(
        x.at[place], buffer.at[slot], semaphores.at[slot, n]
      )
      for n, (x, buffer) in enumerate(pairs)
    ]

  def start(word, slot):
    @pl.when(word >= 0)
    def _():
      for copy in copies(word, slot):
        copy.start()

  # Where the list is empty, the first word is `following`.
  @pl.when((i == 0) | (count == 0))
  def _():
    start(orders_ref[0, 1], turn)

  def visit(step):
    def visit_one(n, carry):
      slot = (turn + n) % 2
      word = orders_ref[0, 1 + n]
      start(orders_ref[0, 2 + n], 1 - slot)
      for copy in copies(word, slot):
        copy.wait()
      here = jax.tree.map(lambda buffer: buffer.at[slot], buffers)
      masked = word % 2 == 0
      pl.when(masked)(lambda: step(here, True))
      pl.when(jnp.logical_not(masked))(lambda: step(here, False))
      return carry

    jax.lax.fori_loop(0, count, visit_one, None)

  body(visit, marching, constants, outputs, scratch)
  turn_ref[0] = (turn + count) % 2
