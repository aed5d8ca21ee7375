"""Attention of other installed libraries, to compare with at the same shapes.

    jax xla           jax.nn.dot_product_attention with the dense mask, in XLA
    cudnn             the same on cuDNN, with its causal flag and window size
    cudnn, mask       the same on cuDNN with the dense mask
    torch sdpa        torch's scaled_dot_product_attention, with is_causal
    torch flex        torch's FlexAttention, compiled, with its block mask

They run in bfloat16; cuDNN needs a GPU. `available` leaves out a peer whose
dense logits or mask would take more than 8 GiB, and one that cannot express a
row's visibility.
"""

from collections.abc import Callable
import functools
import importlib.util
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kaiju_jax.kernels.visibility_attention import operands
from kaiju_jax.kernels.visibility_attention import shapes

_LARGEST = 8 * 2**30


class Peer(NamedTuple):
  """A peer's passes: JAX's calls do not wait for the device, torch's do."""

  forward: Callable[[], Any]
  backward: Callable[[], Any]


def available(
  shape: shapes.Shape, q_BLHK, k_BMK, v_BMK, dout_BLHK
) -> dict[str, Callable[[], Peer]]:
  """Returns, by the peers' names, functions that make their calls.

  Such a function may fail, for example where a library refuses the shape.

  Args:
    shape: the attention's shape.
    q_BLHK: queries, bfloat16.
    k_BMK: keys, bfloat16.
    v_BMK: values, bfloat16.
    dout_BLHK: cotangent of the output, bfloat16.
  """
  plain = shape.rows == 'causal'
  square = shape.batch * shape.length**2
  arrays = q_BLHK, k_BMK, v_BMK, dout_BLHK
  found = {}
  if 4 * square * shape.heads <= _LARGEST:
    found['jax xla'] = functools.partial(_jax, shape, arrays, 'xla', True)
  if plain:
    found['cudnn'] = functools.partial(_jax, shape, arrays, 'cudnn', False)
  if 2 * square <= _LARGEST:
    found['cudnn, mask'] = functools.partial(_jax, shape, arrays, 'cudnn', True)
  if importlib.util.find_spec('torch'):
    if plain and shape.window is None:
      found['torch sdpa'] = functools.partial(_torch, shape, arrays, _sdpa)
    found['torch flex'] = functools.partial(_torch, shape, arrays, _flex)
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


def _jax(shape, arrays, implementation, masked) -> Peer:
  q_BLHK, k_BMK, v_BMK, dout_BLHK = arrays
  attend = attention(shape, implementation, masked)
  forward = jax.jit(attend)
  # jit returns the vjp's function with its residuals, so that the forward pass
  # runs once, here.
  _, pull = jax.jit(functools.partial(jax.vjp, attend))(q_BLHK, k_BMK, v_BMK)
  backward = jax.jit(lambda pull, dout_BLHK: pull(dout_BLHK))
  return Peer(
    functools.partial(forward, q_BLHK, k_BMK, v_BMK),
    functools.partial(backward, pull, dout_BLHK),
  )


def _describe(shape, masked) -> dict[str, Any]:
  if not masked:
    window = shape.window
    size = None if window is None else (window - 1, 0)
    return {'is_causal': True, 'local_window_size': size}
  ranges = operands.Ranges(*map(jnp.asarray, shapes.ranges(shape)))
  return {'mask': operands.visible(ranges, shape.window)[:, None]}


def _torch(shape, arrays, make) -> Peer:
  """Returns a torch peer; torch has heads before tokens and one KV head."""
  import torch

  device = 'cuda' if torch.cuda.is_available() else 'cpu'

  def moved(x_BLHK):
    x_BHLK = np.asarray(jnp.swapaxes(x_BLHK, 1, 2), np.float32)
    x_BHLK = torch.from_numpy(x_BHLK).to(device, torch.bfloat16)
    return x_BHLK.requires_grad_()

  q_BLHK, k_BMK, v_BMK, dout_BLHK = arrays
  operands = [moved(x) for x in (q_BLHK, k_BMK[:, :, None], v_BMK[:, :, None])]
  dout_BHLK = moved(dout_BLHK).detach()
  attend = make(torch, shape, device)
  out_BHLK = attend(*operands)

  def waited(run):
    result = run()
    if device == 'cuda':
      torch.cuda.synchronize()
    del result

  return Peer(
    lambda: waited(lambda: attend(*operands)),
    lambda: waited(
      lambda: torch.autograd.grad(
        out_BHLK, operands, dout_BHLK, retain_graph=True
      )
    ),
  )


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
