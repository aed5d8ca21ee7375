"""Lists every collective of a compiled program, with the bytes that it sends.

One device of a group of g sends, for a result of n bytes on each device,

    all-gather           n (g − 1)/g
    all-to-all           n (g − 1)/g
    reduce-scatter       n (g − 1)          the operand is g times the result
    all-reduce           2 n (g − 1)/g      a reduce-scatter, then a gather
    collective-permute   n                  times the share of devices that send
                                            to another
    collective-broadcast n

A ring sends this much, and no algorithm can send less. `costs/links.py`
estimates the seconds.

An asynchronous pair counts at its start. A collective of several arrays gives
one `Collective` per array. TPU compilers write a reduce-scatter as a fusion of
an all-reduce and the slice that a device keeps (`all-reduce-scatter`); it
counts as a reduce-scatter. The CPU compiler has no bf16 collectives and shows
f32.
"""

from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
import math
import re

from kaiju_jax.aot.hlo import groups as groups_lib
from kaiju_jax.aot.hlo import loops
from kaiju_jax.aot.hlo import text as text_lib

KINDS = (
  'all-gather',
  'all-reduce',
  'all-to-all',
  'collective-broadcast',
  'collective-permute',
  'ragged-all-to-all',
  'reduce-scatter',
)


@dataclasses.dataclass(frozen=True)
class Collective:
  """The exchange of one array."""

  kind: str  # One of KINDS.
  dtype: str  # Such as 'u8'.
  shape: tuple[int, ...]  # The shape of one device's result.
  axes: tuple[str, ...]  # The axes of the mesh that its groups span.
  group: int  # Number of devices that take part together.
  times: int  # How often one call of the program runs it, loops multiplied in.
  result_bytes: int  # Bytes of one device's result, each time.
  wire_bytes: float  # Bytes that one device sends, each time.
  # Whether `times` is exact. It is a lower bound where a loop's trip count
  # could not be read.
  is_sure: bool
  op_name: str  # Path of the JAX operation that made it.

  @property
  def size(self) -> int:
    """Returns the size of one device's result, in numbers."""
    return math.prod(self.shape)

  @property
  def total(self) -> float:
    """Returns the bytes that one device sends in one call of the program."""
    return self.times * self.wire_bytes


def read(
  module: text_lib.Module, mesh: Mapping[str, int]
) -> tuple[Collective, ...]:
  """Returns every collective between two devices or more.

  Args:
    module: the compiled program.
    mesh: width of each axis, in the mesh's order.

  Raises:
    ValueError: the groups are in an unknown notation.
  """
  found = []
  executions = loops.executions(module)
  for name, times in executions.times.items():
    computation = module.computations[name]
    is_sure = name not in executions.unsure
    for instruction in computation.instructions.values():
      kind = _kind(instruction)
      if kind is not None:
        found += _collectives(
          computation, instruction, kind, times, is_sure, mesh
        )
  return tuple(found)


def totals(
  collectives: Iterable[Collective],
) -> dict[tuple[str, str, tuple[str, ...]], tuple[int, float]]:
  """Returns {(kind, dtype, axes): (calls, bytes sent)} of one step."""
  sums = {}
  for x in collectives:
    key = x.kind, x.dtype, x.axes
    calls, sent = sums.get(key, (0, 0.0))
    sums[key] = calls + x.times, sent + x.total
  return dict(sorted(sums.items(), key=lambda row: -row[1][1]))


def launches(
  module: text_lib.Module, mesh: Mapping[str, int]
) -> dict[str, int]:
  """Returns {kind: collectives that one call of the program starts}.

  One that joins several arrays counts once; arguments and errors as for `read`.
  """
  counts = {}
  for name, times in loops.executions(module).times.items():
    computation = module.computations[name]
    for instruction in computation.instructions.values():
      kind = _kind(instruction)
      if kind is None:
        continue
      found = _collectives(computation, instruction, kind, times, True, mesh)
      for kind in {x.kind for x in found}:
        counts[kind] = counts.get(kind, 0) + times
  return counts


def _kind(instruction: text_lib.Instruction) -> str | None:
  kind = instruction.opcode.removesuffix('-start')
  return kind if kind in KINDS else None


def _collectives(computation, instruction, kind, times, is_sure, mesh):
  devices = math.prod(mesh.values())
  results = _results(computation, instruction)
  if kind == 'collective-permute':
    pairs = groups_lib.pairs(instruction)
    share = float((pairs[:, 0] != pairs[:, 1]).sum()) / devices
    rows = groups_lib.link(pairs)
  else:
    rows, share = groups_lib.find_groups(instruction, devices), 1.0
  group = max(map(len, rows))
  if group == 1:
    return
  axes = groups_lib.axes(rows, mesh)
  if kind == 'all-reduce':
    sliced = _find_kept_slice(computation)
    if sliced is not None:
      kind, results = 'reduce-scatter', (sliced,)
  for array in results:
    yield Collective(
      kind=kind,
      dtype=array.dtype,
      shape=array.shape,
      axes=axes,
      group=group,
      times=times,
      result_bytes=array.bytes,
      wire_bytes=share * array.bytes * _bytes_sent(kind, group),
      is_sure=is_sure,
      op_name=instruction.op_name,
    )


def _bytes_sent(kind: str, group: int) -> float:
  """Returns the bytes that one device sends per byte of its result."""
  if kind in ('all-gather', 'all-to-all', 'ragged-all-to-all'):
    return (group - 1) / group
  if kind == 'reduce-scatter':
    return group - 1
  if kind == 'all-reduce':
    return 2 * (group - 1) / group
  return 1.0


def _results(computation, instruction) -> tuple[text_lib.Array, ...]:
  """Returns the result's arrays; drops the operands in the type of a start."""
  type_ = instruction.type
  is_start = instruction.opcode.endswith('-start')
  if is_start and isinstance(type_, tuple) and len(type_) > 1:
    operands = tuple(
      array
      for name in instruction.operands
      for array in computation.instructions[name].arrays
    )
    if text_lib.flat(type_[0]) == operands:
      type_ = type_[1]
  results = text_lib.flat(type_)
  if instruction.opcode.startswith('all-to-all') and len(results) > 1:
    # The arrays, one per peer, are one exchange.
    return _join(results)
  return results


def _join(parts: tuple[text_lib.Array, ...]) -> tuple[text_lib.Array, ...]:
  joined = {}
  for part in parts:
    joined[part] = joined.get(part, 0) + 1
  return tuple(
    text_lib.Array(part.dtype, (count, *part.shape))
    for part, count in joined.items()
  )


def _find_kept_slice(computation) -> text_lib.Array | None:
  """Returns the slice that a device keeps in a fused reduce-scatter."""
  if not re.match(r'all-reduce-scatter', computation.name):
    return None
  root = computation.instructions[computation.root]
  is_slice = any(
    x.opcode == 'dynamic-slice' for x in computation.instructions.values()
  )
  return root.arrays[0] if is_slice else None
