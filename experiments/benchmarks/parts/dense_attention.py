"""Compares visibility attention with the same attention in plain jnp.

The plain one is einsum, where, softmax, einsum over a causal mask of L×M. It
runs twice: once it keeps the weights for the backward pass, once it recomputes
them (`jax.checkpoint`). A step computes the output and all three gradients, in
float32.
"""

import functools
import itertools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax.kernels import timing
from kaiju_jax.kernels.visibility_attention import api
from kaiju_jax.reporting import report

OURS = 'visibility_attention'
DENSE = 'dense'
DENSE_REMAT = 'dense, remat'
CONTENDERS = OURS, DENSE, DENSE_REMAT


class Shape(NamedTuple):
  """A causal self-attention: one row unless `batch` says otherwise."""

  length: int
  window: int | None
  heads: int
  head_dim: int
  batch: int = 1


def add_times(page: report.Report, settings: Any) -> None:
  """Adds median seconds, and their ratio to the faster dense step's."""
  rows = []
  cases = [(settings.length, settings.window)]
  for length, window in cases + [(x, None) for x in settings.causal_length]:
    shape = Shape(length, window, settings.heads, settings.head_dim)
    keys = jax.random.split(jax.random.key(0), 4)
    values = [
      jax.random.normal(key, x.shape, x.dtype)
      for key, x in zip(keys, operands(shape))
    ]
    runs = {
      name: functools.partial(compile_step(name, shape), *values)
      for name in CONTENDERS
    }
    seconds = timing.medians(runs, settings.repeats)
    ratio = min(seconds[DENSE], seconds[DENSE_REMAT]) / seconds[OURS]
    times = (f'{1e3 * seconds[name]:,.1f}' for name in CONTENDERS)
    rows.append((length, window, *times, f'{ratio:.1f}×'))
  page.table(
    rows,
    ('length', 'window', *CONTENDERS, 'ratio'),
    title=f'Output and gradients, median ms of {settings.repeats} rounds',
  )


def add_memory(page: report.Report, settings: Any) -> None:
  """Adds MiB of the compiled steps, and the exponents of their growth."""
  lengths = settings.memory_length
  columns = list(
    itertools.product((settings.window, None), (OURS, DENSE_REMAT))
  )
  mib = {
    (window, name): [
      temporary_bytes(
        name, Shape(length, window, settings.heads, settings.head_dim)
      )
      / 2**20
      for length in lengths
    ]
    for window, name in columns
  }
  rows = [
    (length, *(f'{mib[column][row]:,.1f}' for column in columns))
    for row, length in enumerate(lengths)
  ]
  if len(lengths) > 1:
    # The p of the least-squares fit values ∝ lengths^p.
    powers = (np.polyfit(np.log(lengths), np.log(mib[x]), 1) for x in columns)
    rows.append(('growth', *(f'L^{power:.2f}' for power, _ in powers)))
  page.table(
    rows,
    ('length', *(f'{name}\nwindow {window}' for window, name in columns)),
    title='Temporary memory of the compiled step, MiB',
  )


def temporary_bytes(name: str, shape: Shape) -> int:
  """Returns the bytes that a compiled step needs for intermediate results."""
  return compile_step(name, shape).memory_analysis().temp_size_in_bytes


def operands(shape: Shape) -> list[jax.ShapeDtypeStruct]:
  """Returns the shapes of q, k, v and of the output's cotangent."""
  B, L, H, K = shape.batch, shape.length, shape.heads, shape.head_dim
  return [
    jax.ShapeDtypeStruct(dims, jnp.float32)
    for dims in ((B, L, H, K), (B, L, K), (B, L, K), (B, L, H, K))
  ]


def compile_step(name: str, shape: Shape) -> jax.stages.Compiled:
  """Compiles a contender's step, a function operands -> out, (dq, dk, dv)."""
  attend = {
    OURS: _ours,
    DENSE: _dense,
    DENSE_REMAT: jax.checkpoint(_dense, static_argnums=3),
  }[name]

  def step(q_BLHK, k_BMK, v_BMK, dout_BLHK):
    out_BLHK, pull = jax.vjp(
      lambda *qkv: attend(*qkv, shape.window), q_BLHK, k_BMK, v_BMK
    )
    return out_BLHK, pull(dout_BLHK)

  return jax.jit(step).lower(*operands(shape)).compile()


def _ours(q_BLHK, k_BMK, v_BMK, window):
  B, L, _, K = q_BLHK.shape
  token_BL = jnp.broadcast_to(jnp.arange(L, dtype=jnp.int32), (B, L))
  out_BLHK, _ = api.attention(
    q_BLHK,
    k_BMK,
    v_BMK,
    token_BL,
    jnp.full_like(token_BL, L),
    token_BL,
    token_BL,
    token_BL,
    window=window,
    scale=K**-0.5,
  )
  return out_BLHK


def _dense(q_BLHK, k_BMK, v_BMK, window):
  L, K = q_BLHK.shape[1], q_BLHK.shape[-1]
  behind_LM = jnp.arange(L)[:, None] - jnp.arange(L)[None]
  visible_LM = behind_LM >= 0
  if window is not None:
    visible_LM &= behind_LM < window
  logits_BHLM = jnp.einsum('BLHK,BMK->BHLM', q_BLHK, k_BMK) * K**-0.5
  logits_BHLM = jnp.where(visible_LM[None, None], logits_BHLM, -1e30)
  weights_BHLM = jax.nn.softmax(logits_BHLM, axis=-1)
  return jnp.einsum('BHLM,BMK->BLHK', weights_BHLM, v_BMK)
