"""Ternary updates: every device keeps all int8 weights, for 1.6 bits per step.

From the sources: small int8 models, whose int8 weights fit a node, are pinned
as in ZeRO-2, and an update sends −1, 0 or 1 (a *trit*) for each weight. How
this is done is our guess:

  * Codes and scales (`State`) are replicated. The forward pass reads them as
    they are (`fsdp.follow`) and gathers nothing, however many microbatches a
    step has.
  * f32 masters, moments and gradients are sharded along D over the mesh axis
    `fsdp`.
  * In a step gradients are reduced to their owner, the optimizer moves the
    masters, and each owner sends one message: a trit per weight of its shard
    (`quantization/grid.py`) and, every `events_every` steps, a trit per
    channel, packed five to a byte. All devices, the sender too, apply what they
    received to what they hold.

By induction replicas stay equal bit for bit: they start equal, receive the same
bytes and do the same integer arithmetic, and scales change only by powers of
two.

A channel's trit announces a scale event, which takes effect right after this
message's deltas and before the next ones. A channel that is summed over D has a
part in every shard: each owner sends the event that its part needs, and the
largest of them holds (`grid.event`). If D is an output, the channel's only
owner decides. So a step has one exchange and no vote before it, and the
exchange takes these bits per weight,

    1.6 · (1 + owners / (events_every · D))      w_q, w_k, w_v, w_in
    1.6 · (1 + 1 / (events_every · fan-in))      w_o, w_out

and padding to five planes, below 1 % of a wide weight. A channel that grows
passes from 120, where it asks for room, to 127 in no fewer than seven steps if
codes do not lag, so every fourth step is early enough.

Damage does not heal by itself, because deltas are relative. Every `check_every`
steps devices compare a checksum of all they hold (eight bytes). If it differs
anywhere, all start afresh from the masters, as at the first step: int8 codes
cross the wire once. That heals any damage to messages, codes or scales, the
owner's own copy included, because it trusts nothing in the replicas. It does
not heal a damaged master (the only copy: restore a checkpoint), damage that is
the same on all devices, or the gradients that were taken from damaged replicas
in the steps before.

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


class Message(NamedTuple):
  """What one owner sends in a step, packed five trits to a byte.

  Attributes:
    deltas: by path, uint8: a trit for each weight of the owner's shard.
    events: uint8[…], one trit for each channel of all weights.
  """

  deltas: dict[str, jax.Array]
  events: jax.Array


class Report(NamedTuple):
  """What an update saw; scalars.

  Attributes:
    lagging: float32, share of this device's own weights whose replica is still
      behind after the update.
    no_number: int32, channels of this device's own weights that hold inf or
      NaN. Codes cannot express these: stop the run.
    doubled: int32, channels whose scale doubled. All owners count the same; sum
      over the axis `within`, whose first device counts the channels that this
      axis does not split.
    halved: int32, likewise.
    damaged: int32, bytes received that are not five trits.
    resent: bool, whether replicas differed and all of them started afresh.
  """

  lagging: jax.Array
  no_number: jax.Array
  doubled: jax.Array
  halved: jax.Array
  damaged: jax.Array
  resent: jax.Array


def start(plan: Plan, params: Any, code: int = grid.START_CODE) -> State:
  """Returns replicas made from the masters; sends int8 codes once.

  Args:
    plan: the plan of these parameters.
    params: this device's shard.
    code: the code that each channel's largest weight starts on. (127 and a
      negligible least_scale make what `qat.quantize` makes.)
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
  scales = grid.begin(largest, plan.least_scale, code)
  codes = _gather(int8.encode(w, scales), plan, layout)
  if not layout.is_shared:
    scales = _gather(scales, plan, layout)
  return codes, scales


def update(
  plan: Plan, state: State, params: Any, step: jax.Array
) -> tuple[State, Report]:
  """Brings the replicas a step nearer to the masters.

  Args:
    plan: the plan of these parameters.
    state: the state after the step before; donate it.
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
) -> tuple[Message, dict[str, jax.Array]]:
  """Returns what this owner sends, and its part of the report.

  Raises:
    ValueError: shards that are not an owner's part of the replica.
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
  sent = Message(deltas, trits.encode(jnp.concatenate(events)))
  return sent, {'lagging': behind / count, 'no_number': no_number}


def exchange(plan: Plan, sent: Message, step: jax.Array) -> Message:
  """Returns all owners' messages, each field with a leading [owners].

  Events come every `events_every` steps; between them, they are zeros.
  """
  gather = functools.partial(lax.all_gather, axis_name=plan.axis)
  owners, trit_zero = lax.axis_size(plan.axis), trits.VALUES // 2
  events = lax.cond(
    step % plan.events_every == 0,
    gather,
    lambda x: jnp.full((owners, *x.shape), trit_zero, x.dtype),
    sent.events,
  )
  return Message(jax.tree.map(gather, sent.deltas), events)


def receive(
  plan: Plan, state: State, received: Message
) -> tuple[State, dict[str, jax.Array]]:
  """Applies the messages of all owners.

  Args:
    plan: the plan of these weights.
    state: the state after the step before.
    received: all owners' messages from `exchange`, with owners along the
      leading axis.

  Returns:
    The state, and its part of the report.
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
  """Whether this device counts its channels, and no other one does."""
  if layout.parted or not plan.within:
    return True
  return lax.axis_index(plan.within) == 0


def heal(
  plan: Plan, state: State, params: Any, step: jax.Array
) -> tuple[State, jax.Array]:
  """Every `check_every` steps, starts afresh where any replicas differ.

  Returns:
    The state, and whether it was made afresh; the same on all devices.
  """

  differs = lax.cond(
    step % plan.check_every == 0,
    lambda: _differ(plan, state),
    lambda: jnp.zeros((), bool),
  )
  # A weight at a time: a branch's result is memory beside what it replaces.
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
    # A fresh start is collective: all devices go the same way.
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
  """Returns this owner's part of what is whole along the owned dimension."""
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
  """Returns the rows and columns that a shard is packed in.

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
