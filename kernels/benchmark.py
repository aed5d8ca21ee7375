"""Times a kernel's implementations beside peers, and counts what a shape needs.

A kernel's `bench.py` describes shapes as `Subject`s, each with its contenders;
`measure` runs them side by side. Seconds are measured; operations and bytes are
counted, the same on any machine. Then

    of ceiling = max(operations / matmul's rate, bytes / copy's rate) / seconds

is the fraction that a contender reached of the device's best rates, which
`ceilings` measures. A peer is another library's implementation.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp

from kaiju_jax.kernels import ceilings as ceilings_lib
from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import timing


class Row(NamedTuple):
  """One contender at one shape."""

  kernel: str  # The kernel's folder, and the pass where it has several.
  shape: str  # The shape's name.
  implementation: str  # A module's name, or a peer's.
  # The median time of a call; None where it was not timed.
  seconds: float | None
  operations: float  # Operations that the shape needs, two per multiply-add.
  bytes: float  # Bytes that the shape must read and write.
  # The field of `Ceilings` that bounds the operations.
  ceiling: str = 'bf16_matmul'
  # Numbers of tiles (visited, needed); None where none are skipped.
  tiles: tuple[int, int] | None = None
  # The result's largest error against the reference; None where they were not
  # compared.
  max_error: float | None = None
  is_peer: bool = False  # Whether the implementation is another library's.
  # The times of all rounds; None where it was not timed.
  spread: timing.Spread | None = None
  # Why it could not be timed on this platform; None where it was.
  problem: str | None = None


class Contender(NamedTuple):
  """One implementation of a computation."""

  run: Callable[..., Any]  # A `jax.jit`, or another library's function.
  # Takes the subject's operands and returns the arguments of `run`; by default
  # the operands are the one argument.
  operands: Callable[[Any], tuple] = lambda made: (made,)
  # Takes the subject's operands and returns the largest error against the
  # reference; None where none is computed.
  error: Callable[[Any], float] | None = None
  is_peer: bool = False  # As in `Row`.
  tiles: tuple[int, int] | None = None  # As in `Row`.
  bytes: float | None = None  # As in `Row`; None for the subject's.


class Subject(NamedTuple):
  """What contenders compute at one shape; fields are as in `Row`."""

  kernel: str
  shape: str
  operations: float
  bytes: float
  make: Callable[[], Any]  # Returns the operands, on the device.
  contenders: Mapping[str, Contender]  # By name.
  ceiling: str = 'bf16_matmul'
  calls: int = 4  # Calls per timing.


def is_timed() -> bool:
  """Returns whether times mean something here, or are rehearsed."""
  return dispatch.platform() != 'cpu' or dispatch.interpreting()


def measure(subjects: Iterable[Subject], repeats: int) -> list[Row]:
  """Returns a row per contender; without an accelerator counts alone.

  Args:
    subjects: one after the other, so that operands of one are freed before the
      next one's are made.
    repeats: rounds, each timing every contender of a subject once.
  """
  return [row for each in subjects for row in _rows(each, repeats)]


def _rows(subject: Subject, repeats: int) -> list[Row]:
  runs, errors, problems = {}, {}, {}
  made = subject.make() if is_timed() else None
  for name, each in subject.contenders.items() if is_timed() else ():
    try:
      with timing.trial(name):
        run = functools.partial(each.run, *each.operands(made))
        jax.block_until_ready(run())
        if each.error is not None:
          errors[name] = each.error(made)
    except Exception as error:  # Compilers and libraries fail in many ways.
      problems[name] = timing.tell(error)
    else:
      runs[name] = run
  spreads = timing.spreads(runs, repeats, subject.calls) if runs else {}
  return [
    Row(
      kernel=subject.kernel,
      shape=subject.shape,
      implementation=name,
      seconds=spreads[name].median if name in spreads else None,
      operations=subject.operations,
      bytes=subject.bytes if each.bytes is None else each.bytes,
      ceiling=subject.ceiling,
      tiles=each.tiles,
      max_error=errors.get(name),
      is_peer=each.is_peer,
      spread=spreads.get(name),
      problem=problems.get(name),
    )
    for name, each in subject.contenders.items()
  ]


def largest_difference(got: Any, expected: Any) -> float:
  """Returns the largest difference of two arrays, in float32."""
  return float(
    jnp.max(jnp.abs(got.astype(jnp.float32) - expected.astype(jnp.float32)))
  )


def of_ceiling(row: Row, ceilings: ceilings_lib.Ceilings) -> float | None:
  """Returns the fraction of the best rates; None where it was not timed."""
  if row.seconds is None:
    return None
  ceiling = getattr(ceilings, row.ceiling)
  return max(row.operations / ceiling, row.bytes / ceilings.copy) / row.seconds


def times_as_fast(row: Row, rows: Iterable[Row]) -> dict[str, float]:
  """Returns {peer: how many times as fast the row is}, at the same shape."""
  if row.seconds is None or row.is_peer:
    return {}
  return {
    peer.implementation: peer.seconds / row.seconds
    for peer in rows
    if peer.is_peer
    and peer.seconds is not None
    and (peer.kernel, peer.shape) == (row.kernel, row.shape)
  }
