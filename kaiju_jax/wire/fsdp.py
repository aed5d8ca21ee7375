"""FSDP: gathers a weight from its owners and reduces its gradient to them.

Each part of an f32 master weight has one owner, a device: D is split over
`fsdp`, and F, H or V over `tensor`. One custom_vjp implements both directions:

    forward    the owner's shard → int8, the channels' limits agreed by a
               pmax → all-gather of s8 codes along D → `Quantized`
    backward   the carrier's cotangent → Squinch, groups of eight rows of D,
               6 bits per number → all-to-all of bytes → f32 sum at the owner

From the sources: int8 weights on the wire one way, 6-bit gradients the other,
master weights in f32. Our choice: a gradient crosses once per microbatch,
inside the backward pass, so that a device holds a full weight's gradient only
during that layer's backward pass. We encode the sum over the local tokens, and
`training/step.py` divides by the objective's weight afterwards, because a mean
would fall below Squinch's smallest group.

A weight of which every device holds a replica (`ternary.py`) needs no gather;
its gradient crosses in the same way (`follow`).

Error feedback is not offered here. Its residual would be the codec's loss of
everything that a device sends: gradients of whole weights in f32, different on
each device, and fsdp/3 times as large as the device's share of masters and
moments. On the presets' meshes this is 6.2 GiB per device beside 2.3 for 13b,
and 51.5 beside 2.4 for 110b. Each microbatch would read and write it, and a
checkpoint of it would fit one mesh only. Without it Squinch trains as bf16 does
(BUILD_NOTES). If every device holds all masters, the residual is only a third
of the state, and `squinch.py` offers it.

With an `fsdp` width of 1 nothing crosses, and gradients are not encoded.
"""

import dataclasses
import functools

import jax
from jax import lax
import jax.numpy as jnp

from kaiju_jax.quantization import int8
from kaiju_jax.sharding import collectives
from kaiju_jax.sharding import rules
from kaiju_jax.wire import codec
from kaiju_jax.wire import codecs
from kaiju_jax.wire import squinch


@dataclasses.dataclass(frozen=True)
class Wire:
  """The form in which a weight is used, and those in which it crosses."""

  letters: str  # The letters of the weight, D first.
  # The letters that a matmul sums over; one int8 scale covers them.
  contract: str
  dtype: str  # The dtype of a float weight in use, and of the gradient.
  int8: bool  # Whether the weight is used as `Quantized`.
  # The config's `wire_weights`. With 'int8', codes and scales cross if the
  # weight is used as int8. Otherwise the master crosses in `dtype`, and is
  # quantized on arrival if it is used as int8.
  weights: str = 'int8'
  # The codec that the gradient crosses in.
  gradients: codec.Codec = codec.SQUINCH

  @property
  def axes(self) -> tuple[int, ...]:
    """The dimensions that a matmul sums over."""
    return tuple(self.letters.index(letter) for letter in self.contract)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def gather(w: jax.Array, wire: Wire) -> int8.Quantized | jax.Array:
  """Gathers a weight; returns it with D whole, as `Quantized` or floats.

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
  """Returns a replica as a weight whose gradient alone crosses between devices.

  Args:
    replica: codes and scales, D whole; no carrier.
    w: float32, the owner's shard of the master, which gets the gradient; its
      values are not read.
    wire: see `Wire`.
  """
  del w
  return _in_use(replica.codes, replica.scales, wire)


def _follow_forward(replica, w, wire):
  return follow(replica, w, wire), None


def _follow_backward(wire, _, cotangent):
  return None, _reduce(cotangent.carrier, wire)


follow.defvjp(_follow_forward, _follow_backward)


def receive(
  held: int8.Quantized, letters: str, contract: str
) -> int8.Quantized:
  """Returns a frozen weight with D whole; it has no gradient.

  Args:
    held: the owner's shard of codes and scales.
    letters: the weight's.
    contract: those that a matmul sums over.
  """
  if letters.startswith('D'):
    codes, scales = collectives.whole(held.codes), held.scales
    if 'D' not in contract:
      scales = collectives.whole(scales)
    held = held._replace(codes=codes, scales=scales)
  # `gather` has this barrier, so the rest compiles as in training.
  return lax.optimization_barrier(held)


def _quantize(w, wire: Wire, table):
  """Returns codes and scales, the same on every mesh.

  A channel's limit covers its whole input, also where devices split it.
  """
  limit = int8.largest(w, wire.axes)
  scales = int8.scale_of(collectives.largest(limit, wire.contract, table))
  return int8.encode(w, scales), scales


def _in_use(codes, scales, wire: Wire) -> int8.Quantized:
  # The barrier makes the users of the codes compile alike, wherever the codes
  # come from: on a CPU no bit of the logits depends on the fsdp width.
  codes, scales = lax.optimization_barrier((codes, scales))
  return int8.Quantized(codes, scales, jnp.zeros(codes.shape, wire.dtype))


def _reduce(gradient: jax.Array, wire: Wire) -> jax.Array:
  """Returns the f32 sum over `fsdp` of the owner's rows of D."""
  gradients = wire.gradients
  if collectives.width('fsdp') == 1:
    return gradient.astype(jnp.float32)
  if gradients.kind == 'squinch':
    return squinch.reduce_scatter(
      gradient, 'fsdp', elements=gradients.elements, header=gradients.header
    )
  if gradients.kind == 'int4':
    gradient = codecs.int4(gradient, flat=gradients.flat)
  return lax.psum_scatter(
    gradient, 'fsdp', scatter_dimension=0, tiled=True
  ).astype(jnp.float32)
