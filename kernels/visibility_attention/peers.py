"""Attention of other installed libraries, to compare with at the same shapes.

    jax xla           jax.nn.dot_product_attention with the dense mask, in XLA
    cudnn             the same on cuDNN, with its causal flag and window size
    cudnn, mask       the same on cuDNN with the dense mask
    torch sdpa        torch's scaled_dot_product_attention, with is_causal
    torch flex        torch's FlexAttention, compiled, with its block mask

They run in bfloat16, on `made['peers']` of the bench's operands; cuDNN needs a
GPU. `available` leaves out a peer whose dense logits or mask would take more
than 8 GiB, and one that cannot express a row's visibility.
"""

from collections.abc import Callable
import functools
import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax.kernels import benchmark
from kaiju_jax.kernels.visibility_attention import operands
from kaiju_jax.kernels.visibility_attention import shapes

_LARGEST = 8 * 2**30


def available(shape: shapes.Shape, part: str) -> dict[str, benchmark.Contender]:
  """Returns the peers of a pass by name; one may refuse the shape when it runs.

  Args:
    shape: the attention's shape.
    part: 'forward' or 'backward'.
  """
  plain = shape.rows == 'causal' and not shape.sinks
  square = shape.batch * shape.length**2
  found = {}
  if 4 * square * shape.heads <= _LARGEST:
    found['jax xla'] = _jax(shape, part, 'xla', masked=True)
  if plain:
    found['cudnn'] = _jax(shape, part, 'cudnn', masked=False)
  if 2 * square <= _LARGEST:
    found['cudnn, mask'] = _jax(shape, part, 'cudnn', masked=True)
  if importlib.util.find_spec('torch'):
    if plain and shape.window is None:
      found['torch sdpa'] = _torch(shape, part, _sdpa)
    found['torch flex'] = _torch(shape, part, _flex)
  return found


def attention(
  shape: shapes.Shape, implementation: str, masked: bool
) -> Callable[..., jax.Array]:
  """Returns JAX's attention as a function of q_BLHK, k_BMK and v_BMK.

  Args:
    shape: the attention's shape.
    implementation: 'xla' or 'cudnn'.
    masked: whether it gets the dense mask, not the causal flag.
  """

  def attend(q_BLHK, k_BMK, v_BMK):
    return jax.nn.dot_product_attention(
      q_BLHK,
      k_BMK[:, :, None],
      v_BMK[:, :, None],
      implementation=implementation,
      **_describe(shape, masked),
    )

  return attend


def _jax(shape, part, implementation, masked) -> benchmark.Contender:
  attend = attention(shape, implementation, masked)
  if part == 'forward':
    return benchmark.Contender(
      jax.jit(attend), lambda made: made['peers'][:3], is_peer=True
    )

  def pulled(made):
    # jit returns the vjp's function with its residuals, so that the forward
    # pass runs once, here.
    *arrays, dout_BLHK = made['peers']
    _, pull = jax.jit(functools.partial(jax.vjp, attend))(*arrays)
    return pull, dout_BLHK

  return benchmark.Contender(
    jax.jit(lambda pull, dout_BLHK: pull(dout_BLHK)), pulled, is_peer=True
  )


def _describe(shape, masked) -> dict[str, Any]:
  if not masked:
    window = shape.window
    size = None if window is None else (window - 1, 0)
    return {'is_causal': True, 'local_window_size': size}
  ranges = operands.Ranges(*map(jnp.asarray, shapes.ranges(shape)))
  return {'mask': operands.visible(ranges, shape.window)[:, None]}


def _torch(shape, part, make) -> benchmark.Contender:
  """Returns a torch peer; torch has heads before tokens and one KV head."""

  def arguments(made):
    import torch

    device = 'cuda' if torch.cuda.is_available() else 'cpu'

    def moved(x_BLHK):
      x_BHLK = np.asarray(jnp.swapaxes(x_BLHK, 1, 2), np.float32)
      x_BHLK = torch.from_numpy(x_BHLK).to(device, torch.bfloat16)
      return x_BHLK.requires_grad_()

    q_BLHK, k_BMK, v_BMK, dout_BLHK = made['peers']
    operands = [
      moved(x) for x in (q_BLHK, k_BMK[:, :, None], v_BMK[:, :, None])
    ]
    attend = make(torch, shape, device)
    if part == 'forward':
      return torch, lambda: attend(*operands)
    out_BHLK, dout_BHLK = attend(*operands), moved(dout_BLHK).detach()
    return torch, functools.partial(
      torch.autograd.grad, out_BHLK, operands, dout_BHLK, retain_graph=True
    )

  return benchmark.Contender(_wait, arguments, is_peer=True)


def _wait(torch, call) -> None:
  """Runs a torch call to its end; nothing is returned for JAX to wait for."""
  call()
  if torch.cuda.is_available():
    torch.cuda.synchronize()


def _sdpa(torch, shape, device):
  return functools.partial(
    torch.nn.functional.scaled_dot_product_attention,
    is_causal=True,
    enable_gqa=True,
  )


def _flex(torch, shape, device):
  from torch.nn.attention import flex_attention

  start_BM, limit_BM, coordinate_BL, position_BL, position_BM = (
    torch.from_numpy(np.array(x)).to(device) for x in shapes.ranges(shape)
  )

  def visible(b, h, q, k):
    seen = (start_BM[b, k] <= coordinate_BL[b, q]) & (
      coordinate_BL[b, q] < limit_BM[b, k]
    )
    if shape.window is None:
      return seen
    return seen & (position_BL[b, q] - position_BM[b, k] < shape.window)

  L = shape.length
  mask = flex_attention.create_block_mask(
    visible, shape.batch, None, L, L, device=device, _compile=device == 'cuda'
  )
  attend = flex_attention.flex_attention
  if device == 'cuda':
    attend = torch.compile(attend)
  return functools.partial(attend, block_mask=mask, enable_gqa=True)
