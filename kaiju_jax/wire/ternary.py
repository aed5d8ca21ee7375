"""Ternary updates: every device keeps all int8 weights, for 1.6 bits per step.

From the sources: small int8 models, whose int8 weights fit a node, are pinned
as in ZeRO-2, and an update sends −1, 0 or 1 (a *trit*) per weight. The method
is our guess:

  * Every device holds all codes and scales (`State`). The forward pass reads
    them (`fsdp.follow`) and gathers nothing, however many microbatches a step
    has.
  * f32 masters, moments and gradients are sharded along D over the mesh axis
    `fsdp`.
  * A step reduces gradients to their owners, and the optimizer moves the
    masters. Then each owner sends one message: a trit per weight of its shard
    (`quantization/grid.py`) and, every `events_every` steps, a trit per
    channel, packed five to a byte. All devices, the sender included, apply the
    messages that they receive to their replicas.

By induction replicas stay equal bit for bit: they start equal, receive the same
bytes and do the same integer arithmetic, and scales change only by powers of
two.

A channel's trit announces a scale event: its scale doubles, halves or stays.
The event takes effect right after this message's deltas and before the next
ones. A channel that is summed over D has a part in every shard. Each owner
sends the event that its part needs, and all apply the largest of them
(`grid.event`). If D is an output, the channel has one owner, which decides. So
a step has one exchange and no vote before it. The exchange takes these bits per
weight:

    1.6 · (1 + owners / (events_every · D))      w_q, w_k, w_v, w_in
    1.6 · (1 + 1 / (events_every · fan-in))      w_o, w_out

Padding to five planes adds less than 1 % of a wide weight. If codes do not lag,
a growing channel takes at least seven steps from code 120, where its owner asks
to double, to 127; so every fourth step is early enough.

Damage persists, because deltas are relative. Every `check_every` steps devices
compare a checksum of all that they hold (eight bytes). If it differs anywhere,
all make their replicas anew from the masters, as at the first step: int8 codes
cross the wire once. That repairs any damage to messages, codes or scales, the
owner's own copy included, because nothing is taken from the replicas. It does
not repair a damaged master (the only copy: restore a checkpoint), damage that
is the same on all devices, or the gradients that earlier steps computed with
damaged replicas.

Everything here runs under a manual `shard_map` that binds the plan's axes.
"""

import functools
import math
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from kaiju_jax.kernels.ternary import reference as trits
from kaiju_jax.quantization import grid
from kaiju_jax.quantization import int8
from kaiju_jax.sharding import collectives
from kaiju_jax.wire import checksum
from kaiju_jax.wire import ternary_plan

Layout = ternary_plan.Layout
Plan = ternary_plan.Plan
State = ternary_plan.State

# The width of a TPU's registers: narrower columns would waste them.
_LANES = 128


class OwnerUpdate(NamedTuple):
  """The message that one owner sends in a step, five trits packed in a byte."""

  # uint8 by path, one trit per weight of the owner's shard.
  deltas: dict[str, jax.Array]
  events: jax.Array  # uint8[…], one trit per channel of all weights.


class Report(NamedTuple):
  """Counts from one update; scalars."""

  # float32, share of this device's own weights whose replica is still behind
  # after the update.
  lagging: jax.Array
  # int32, channels of this device's own weights that hold inf or NaN. Codes
  # cannot express these: stop the run.
  no_number: jax.Array
  # int32, channels whose scale doubled. All owners count the same; sum over the
  # axis `within`, whose first device counts the channels that this axis does
  # not split.
  doubled: jax.Array
  # int32, channels whose scale halved, counted in the same way.
  halved: jax.Array
  damaged: jax.Array  # int32, received bytes that are not five trits.
  resent: jax.Array  # Bool, whether replicas differed and all were made anew.


def start(plan: Plan, params: Any, code: int = grid.START_CODE) -> State:
  """Returns replicas made from the masters; sends int8 codes once.

  Args:
    plan: the plan of these parameters.
    params: this device's shard.
    code: the code of each channel's largest weight. (127 and a negligible
      least_scale give the codes of `qat.quantize`.)
  """
  made = {
    path: _fresh(plan, plan.layouts[path], w, code)
    for path, w in ternary_plan.weights_of(plan, params).items()
  }
  return State(
    {path: codes for path, (codes, _) in made.items()},
    {path: scales for path, (_, scales) in made.items()},
  )


def _fresh(
  plan: Plan, layout: Layout, w: jax.Array, code: int = grid.START_CODE
) -> tuple[jax.Array, jax.Array]:
  """Returns one weight's codes and scales, made from its masters."""
  largest = int8.largest(w, layout.contracted)
  if axes := _axes_of_a_channel(plan, layout):
    largest = collectives.highest(largest, axes)
  scales = grid.first_scale(largest, plan.least_scale, code)
  codes = _gather(int8.encode(w, scales), plan, layout)
  if not layout.is_shared:
    scales = _gather(scales, plan, layout)
  return codes, scales


def update(
  plan: Plan, state: State, params: Any, step: jax.Array
) -> tuple[State, Report]:
  """Moves the replicas by at most one code towards the masters.

  Args:
    plan: the plan of these parameters.
    state: the replicas after the previous step; donate them.
    params: this device's shard, after the optimizer.
    step: int32, the same on all devices; a multiple of `check_every` compares
      the replicas.
  """
  sent, report = message(plan, state, params)
  state, seen = receive(plan, state, exchange(plan, sent, step))
  state, resent = heal(plan, state, params, step)
  return state, Report(**report, **seen, resent=resent)


def message(
  plan: Plan, state: State, params: Any
) -> tuple[OwnerUpdate, dict[str, jax.Array]]:
  """Returns this owner's message, and its part of the report.

  Raises:
    ValueError: a shard is not an owner's part of the replica.
  """
  deltas, events, behind, no_number, count = {}, [], 0.0, 0, 0
  for path, w in ternary_plan.weights_of(plan, params).items():
    layout = plan.layouts[path]
    codes = _own(path, state.codes[path], w, plan, layout)
    scales = state.scales[path]
    if not layout.is_shared:
      scales = _own(path, scales, w, plan, layout)
    carried = grid.carry(w, codes, scales)
    delta = grid.delta(carried)
    deltas[path] = trits.encode(delta.reshape(_fold(w.shape)))
    largest = int8.largest(w, layout.contracted)
    event = grid.event(largest, scales, plan.least_scale)
    if layout.split and plan.within and lax.axis_size(plan.within) > 1:
      event = lax.pmax(event, plan.within)
    events.append(event.reshape(-1))
    behind += jnp.sum(jnp.abs(carried) > 1, dtype=jnp.float32)
    no_number += jnp.sum(~jnp.isfinite(largest), dtype=jnp.int32)
    count += w.size
  sent = OwnerUpdate(deltas, trits.encode(jnp.concatenate(events)))
  return sent, {'lagging': behind / count, 'no_number': no_number}


def exchange(plan: Plan, sent: OwnerUpdate, step: jax.Array) -> OwnerUpdate:
  """Sends a message; returns those of all owners, with a leading [owners].

  Events cross every `events_every` steps; in other steps they are zero trits.
  """
  gather = functools.partial(lax.all_gather, axis_name=plan.axis)
  owners, trit_zero = lax.axis_size(plan.axis), trits.VALUES // 2
  events = lax.cond(
    step % plan.events_every == 0,
    gather,
    lambda x: jnp.full((owners, *x.shape), trit_zero, x.dtype),
    sent.events,
  )
  return OwnerUpdate(jax.tree.map(gather, sent.deltas), events)


def receive(
  plan: Plan, state: State, received: OwnerUpdate
) -> tuple[State, dict[str, jax.Array]]:
  """Applies the messages of all owners.

  Args:
    plan: the plan of these weights.
    state: the replicas after the previous step.
    received: all owners' messages from `exchange`.

  Returns:
    The new replicas, and their part of the report.
  """
  owners = received.events.shape[0]
  sizes = [
    ternary_plan.share(state.scales[path].shape, layout, owners)
    for path, layout in plan.layouts.items()
  ]
  total = sum(math.prod(size) for size in sizes)
  all_events = jax.vmap(lambda x: trits.decode(x, total))(received.events)
  codes, scales, doubled, halved, offset = {}, {}, 0, 0, 0
  for (path, layout), size in zip(plan.layouts.items(), sizes):
    events = all_events[:, offset : offset + math.prod(size)]
    offset += math.prod(size)
    events = events.reshape(owners, *size)
    if layout.is_shared:
      events = jnp.max(events, axis=0)
    else:
      events = ternary_plan.join(events, layout)
    delta = _delta(received.deltas[path], state.codes[path], layout, owners)
    codes[path], scales[path] = grid.apply(
      state.codes[path] + delta, state.scales[path], events
    )
    counts = _is_counted(plan, layout)
    doubled += jnp.sum(counts & (events == grid.DOUBLE), dtype=jnp.int32)
    halved += jnp.sum(counts & (events == grid.HALVE), dtype=jnp.int32)
  damaged = sum(
    jnp.sum(trits.is_damaged(x), dtype=jnp.int32)
    for x in jax.tree.leaves(received)
  )
  seen = {'doubled': doubled, 'halved': halved, 'damaged': damaged}
  return State(codes, scales), seen


def _is_counted(plan: Plan, layout: Layout) -> jax.Array | bool:
  """Returns whether this device counts its channels, and no other one does."""
  if layout.parted or not plan.within:
    return True
  return lax.axis_index(plan.within) == 0


def heal(
  plan: Plan, state: State, params: Any, step: jax.Array
) -> tuple[State, jax.Array]:
  """Makes all replicas anew if any differ; checks every `check_every` steps.

  Returns:
    The replicas, and whether they were made anew; the same on all devices.
  """

  differs = lax.cond(
    step % plan.check_every == 0,
    lambda: _differ(plan, state),
    lambda: jnp.zeros((), bool),
  )
  # One weight at a time, because a branch's result takes memory beside the
  # arrays that it replaces.
  codes, scales = {}, {}
  for path, w in ternary_plan.weights_of(plan, params).items():
    fresh = functools.partial(_fresh, plan, plan.layouts[path], w)
    codes[path], scales[path] = lax.cond(
      differs,
      lambda *_, fresh=fresh: fresh(),
      lambda *held: held,
      state.codes[path],
      state.scales[path],
    )
  return State(codes, scales), differs


def _differ(plan: Plan, state: State) -> jax.Array:
  """Returns whether any replicas differ, the same on all devices."""
  differs = checksum.differs(
    checksum.checksum(jax.tree.leaves(state)), plan.axis
  )
  if plan.within and lax.axis_size(plan.within) > 1:
    # Making replicas is collective, so all devices take the same branch.
    differs = lax.pmax(differs.astype(jnp.int32), plan.within) > 0
  return differs


def _axes_of_a_channel(plan: Plan, layout: Layout) -> tuple[str, ...]:
  axes = (plan.axis,) if layout.is_shared else ()
  return axes + ((plan.within,) if layout.split and plan.within else ())


def _gather(x: jax.Array, plan: Plan, layout: Layout) -> jax.Array:
  return lax.all_gather(x, plan.axis, axis=layout.owned, tiled=True)


def _own(
  path: str, x: jax.Array, w: jax.Array, plan: Plan, layout: Layout
) -> jax.Array:
  """Returns this owner's part of an array that is whole along D."""
  owners, size = lax.axis_size(plan.axis), w.shape[layout.owned]
  if x.shape[layout.owned] != owners * size:
    raise ValueError(
      f'{path}: the replica has {x.shape[layout.owned]} rows along dimension'
      f' {layout.owned}, but {owners} owners of {plan.axis!r} hold {size} each.'
    )
  return lax.dynamic_slice_in_dim(
    x, lax.axis_index(plan.axis) * size, size, layout.owned
  )


def _fold(shape: tuple[int, ...]) -> tuple[int, int]:
  """Returns the rows and columns of a shard as it is packed.

  Leading dimensions are merged, which moves nothing. If rows are so few that
  padding to five planes costs more than 1 %, columns are halved, down to 128.
  """
  rows, columns = math.prod(shape[:-1]), shape[-1]

  def padding():
    return trits.DIGITS * trits.packed_rows(rows) / rows - 1

  while padding() > 0.01 and columns % 2 == 0 and columns >= 2 * _LANES:
    rows, columns = 2 * rows, columns // 2
  return rows, columns


def _delta(
  packed: jax.Array, codes: jax.Array, layout: Layout, owners: int
) -> jax.Array:
  share = ternary_plan.share(codes.shape, layout, owners)
  rows, _ = _fold(share)
  delta = jax.vmap(lambda x: trits.decode(x, rows))(packed)
  return ternary_plan.join(delta.reshape(owners, *share), layout)
