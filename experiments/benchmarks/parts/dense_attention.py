"""Compares visibility attention with the same attention in plain jnp.

The plain one is einsum, where, softmax, einsum over a causal mask of L×M. It
runs twice: once it keeps the weights for the backward pass, once it recomputes
them (`jax.checkpoint`). A step computes the output and all three gradients, in
float32.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from kaiju_jax.kernels import timing
from kaiju_jax.kernels.visibility_attention import api

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


def seconds(shape: Shape, repeats: int) -> dict[str, float]:
  """Returns the median seconds of a step, {contender: seconds}."""
  keys = jax.random.split(jax.random.key(0), 4)
  values = [
    jax.random.normal(key, x.shape, x.dtype)
    for key, x in zip(keys, operands(shape))
  ]
  runs = {}
  for name in CONTENDERS:
    step = compile_step(name, shape)
    runs[name] = lambda step=step: step(*values)
  return timing.medians(runs, repeats)


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
