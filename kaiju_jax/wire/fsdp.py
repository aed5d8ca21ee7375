"""A weight's way to its users and its gradient's way home.

Each f32 master weight has one owner: D is split over `fsdp`, and F, H or V
over `tensor`. This one custom_vjp is all that FSDP is:

    forward    the owner's shard → int8, the channels' limits agreed by a
               pmax → all-gather of s8 codes along D → `Quantized`
    backward   the carrier's cotangent → Squinch, groups of eight rows of D,
               6 bits per number → all-to-all of bytes → f32 sum at the owner

From the sources: int8 weights on the wire one way, 6-bit gradients the other,
master weights in f32. Our choice: a gradient crosses once per microbatch,
inside the backward pass, so that no device holds a full weight's gradient for
longer than its layer's turn. We encode the sum over the local tokens, and
`training/step.py` divides by the objective's weight afterwards: a mean would
fall below Squinch's smallest group.

A weight of which every device holds a replica (`ternary.py`) needs no gather;
its gradient's way home is the same (`follow`).

Error feedback is not offered here. Its residual would be what the codec lost of
everything that a device sends: gradients of whole weights in f32, different on
each device, and fsdp/3 times as large as the device's share of masters and
moments. On the meshes that the presets are meant for this is 6.2 GiB per device
beside 2.3 for 13b, and 51.5 beside 2.4 for 110b. It would be read and written
once per microbatch, and a checkpoint of it would fit one mesh only. Without it
Squinch trains as bf16 does (BUILD_NOTES). Where every device holds all masters
the residual is a third of the state: `squinch.py` has it.

On one device (or one `fsdp` rank) nothing crosses, and nothing is encoded.
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
from kaiju_jax.wire import contrast
from kaiju_jax.wire import squinch


@dataclasses.dataclass(frozen=True)
class Wire:
  """How a weight is used, and what crosses the wire for it.

  Attributes:
    letters: the letters of the weight, D first.
    contract: the letters that a matmul sums over: one int8 scale for them.
    dtype: the dtype of a float weight in use, and of the gradient.
    int8: whether the weight is used as `Quantized`.
    weights: the config's `wire_weights`. With 'int8' codes and scales cross
      if the weight is used as int8. Otherwise the master crosses in `dtype`,
      and is quantized on arrival if need be.
    gradients: the codec that the gradient crosses in.
  """

  letters: str
  contract: str
  dtype: str
  int8: bool
  weights: str = 'int8'
  gradients: codec.Codec = codec.SQUINCH

  @property
  def axes(self) -> tuple[int, ...]:
    """The dimensions that a matmul sums over."""
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
  """Returns the weight as the device already holds it; nothing crosses.

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
  # Behind the barrier their users compile alike, wherever the codes come from:
  # on a CPU no bit of the logits depends on the fsdp width.
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
    gradient = contrast.int4(gradient, flat=gradients.flat)
  return lax.psum_scatter(
    gradient, 'fsdp', scatter_dimension=0, tiled=True
  ).astype(jnp.float32)
