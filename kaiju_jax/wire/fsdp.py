"""A weight's way to its users and its gradient's way home.

Each f32 master weight has one owner: D is split over `fsdp`, and F, H or V
over `tensor`. This one custom_vjp is all that FSDP is:

    forward    the owner's shard → int8, the channels' limits agreed by a
               pmax → all-gather of s8 codes along D → `Quantized`
    backward   the carrier's cotangent → 6-bit Squinch, eight along D →
               all-to-all of bytes → f32 sum at the owner

From the sources: int8 weights on the wire one way, 6-bit gradients the other,
master weights in f32. Our choice: once a microbatch, inside the backward
pass, so that no device ever holds a full weight's gradient longer than its
layer's turn; and what is encoded is the sum over the local tokens, not the
mean, which would fall below Squinch's smallest block.

A weight of which every device holds a replica (`ternary.py`) needs no gather;
its gradient's way home is the same (`follow`).

Error feedback is not offered here. Its residual is of what a device sends, the
gradient of whole weights in f32, and is that device's own: fsdp/3 times its
share of masters and moments. On the meshes that the sizes are meant for these
are 6.2 GiB a device beside 2.3 for 13b, and 51.5 beside 2.4 for 110b; it would
be read and written once a microbatch, and a checkpoint of it fits one mesh
alone. Without it Squinch trains as bf16 does (BUILD_NOTES). Where every device
holds all masters it is a third of the state: `squinch.py` has it.

On one device (or one `fsdp` rank) nothing crosses, and nothing is encoded.
"""

import functools
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from kaiju_jax.quantization import int8
from kaiju_jax.sharding import collectives
from kaiju_jax.sharding import rules
from kaiju_jax.wire import contrast
from kaiju_jax.wire import squinch


class Wire(NamedTuple):
  """How a weight is used, and what crosses the wire for it.

  Attributes:
    letters: of the weight; D first.
    contract: the letters that a matmul sums over: one int8 scale for them.
    dtype: of a float weight in use, and of the gradient.
    int8: whether the weight is used as `Quantized`.
    weights: 'int8' for codes and scales where the weight is int8; else the
      master crosses in `dtype`, quantized on arrival.
    gradients: as `QuantizationConfig.wire_gradients`.
    header: as `QuantizationConfig.wire_header`.
  """

  letters: str
  contract: str
  dtype: str
  int8: bool
  weights: str = 'int8'
  gradients: str = 'squinch'
  header: str = 'ln6'

  @property
  def axes(self) -> tuple[int, ...]:
    return tuple(self.letters.index(letter) for letter in self.contract)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def gather(w: jax.Array, wire: Wire) -> int8.Quantized | jax.Array:
  """Returns the weight as a device uses it: D whole.

  Args:
    w: float32, the owner's shard of the master weight.
    wire: see `Wire`.
  """
  if wire.int8 and wire.weights == 'int8':
    codes, scales = _quantize(w, wire, rules.STORED)
    codes = collectives.whole(codes)
    if 'D' not in wire.contract:
      scales = collectives.whole(scales)
    return _in_use(codes, scales, wire)
  w = collectives.whole(w.astype(wire.dtype))
  if not wire.int8:
    return w
  return _in_use(*_quantize(w, wire, rules.IN_USE), wire)


def _forward(w, wire):
  return gather(w, wire), None


def _backward(wire, _, cotangent):
  gradient = cotangent.carrier if wire.int8 else cotangent
  return (_reduce(gradient, wire),)


gather.defvjp(_forward, _backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def follow(replica: int8.Quantized, w: jax.Array, wire: Wire) -> int8.Quantized:
  """Returns the weight as a device holds it already; nothing crosses.

  Args:
    replica: codes and scales, D whole; no carrier.
    w: float32, the owner's shard of the master; only its gradient matters.
    wire: see `Wire`.
  """
  del w
  return _in_use(replica.codes, replica.scales, wire)


def _follow_forward(replica, w, wire):
  return follow(replica, w, wire), None


def _follow_backward(wire, _, cotangent):
  return None, _reduce(cotangent.carrier, wire)


follow.defvjp(_follow_forward, _follow_backward)


def _quantize(w, wire: Wire, table):
  """The same codes on every mesh: a channel's limit is its whole input's."""
  limit = int8.largest(w, wire.axes)
  scales = int8.scale_of(collectives.largest(limit, wire.contract, table))
  return int8.encode(w, scales), scales


def _in_use(codes, scales, wire: Wire) -> int8.Quantized:
  # What uses them is then compiled alike, wherever they come from: on a CPU the
  # logits do not change by a bit with the fsdp width.
  codes, scales = lax.optimization_barrier((codes, scales))
  return int8.Quantized(codes, scales, jnp.zeros(codes.shape, wire.dtype))


def _reduce(gradient: jax.Array, wire: Wire) -> jax.Array:
  """Returns the f32 sum over `fsdp` of the owner's rows of D."""
  gradients = wire.gradients
  if collectives.width('fsdp') == 1:
    return gradient.astype(jnp.float32)
  if gradients.startswith('int4'):
    gradient = contrast.int4(gradient, flat=gradients == 'int4_flat')
  if gradients == 'float' or gradients.startswith('int4'):
    return lax.psum_scatter(
      gradient, 'fsdp', scatter_dimension=0, tiled=True
    ).astype(jnp.float32)
  elements = gradients.removeprefix('squinch').removeprefix('_') or 'zero'
  return squinch.reduce_scatter(
    gradient, 'fsdp', elements=elements, header=wire.header
  )
