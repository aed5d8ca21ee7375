"""A kernel's implementation held to its definition.

A check calls one function with several sets of arrays of equal shapes, so that
it compiles once. The definition (`reference.py`) computes on the CPU.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
from typing import Any
from typing import NamedTuple

import jax
import numpy as np

# What logits may lie around; e^88 is the largest power in float32.
LEVELS = -300.0, -88.0, 88.0, 300.0


def list_kernels(
  runs_on: Mapping[str, tuple[str, ...]], platform: str
) -> list[str]:
  """Returns the implementations but the reference that a platform compiles."""
  return [
    name
    for name, places in runs_on.items()
    if platform in places and name != 'reference'
  ]


class Check(NamedTuple):
  """One implementation on arrays of one shape.

  Attributes:
    estimate: seconds that it may take.
    implementation: a key of the kernel's `RUNS_ON`.
    call: takes an implementation's name and returns the function to compile.
    variants: returns the function's arguments by name, trees of numpy arrays.
    tolerance: of the largest error, over the largest value of each result; 0
      for equal bits.
    blocks: makes a context in which the implementation's blocks are smaller.
  """

  estimate: float
  implementation: str
  call: Callable[[str], Callable[..., Any]]
  variants: Callable[[], Mapping[str, tuple]]
  tolerance: float
  blocks: Callable[[], Any] = contextlib.nullcontext


def draw_codes(
  operands: Sequence[np.ndarray], q_codes: bool, per: str, seed: int = 3
) -> tuple[tuple, dict[str, np.ndarray | None], list[np.ndarray]]:
  """Returns codes of q, k and v, their scales, and the floats they stand for.

  Args:
    operands: float q [..., K], k and v [X, Y, K]. Keys and values are drawn as
      codes, queries where `q_codes` says so.
    q_codes: whether queries are codes, too.
    per: 'token' or 'channel', what a scale of keys and values is for.
    seed: of the values.
  """
  random = np.random.default_rng(seed)

  def codes(x):
    return random.integers(-127, 128, x.shape).astype(np.int8)

  def scale(shape):
    return random.uniform(0.01, 0.03, shape).astype(np.float32)

  q, k, v = operands
  k, v = codes(k), codes(v)
  shape = k.shape[:2] if per == 'token' else k.shape[2:]
  scales = {
    'k_scale': scale(shape),
    'v_scale': scale(shape),
    'q_scale_BLH': None,
  }
  spread = {'token': np.s_[..., None], 'channel': np.s_[None, None]}[per]
  values = [q, k * scales['k_scale'][spread], v * scales['v_scale'][spread]]
  if q_codes:
    q = codes(q)
    scales['q_scale_BLH'] = scale(q.shape[:-1])
    values[0] = q * scales['q_scale_BLH'][..., None]
  return (q, k, v), scales, values


def at_level(
  operands: Sequence[np.ndarray], level: float, scale: float
) -> list[np.ndarray]:
  """Returns q, k, v whose channel 0 adds `level` to every logit.

  Args:
    operands: float q, k and v, [..., K].
    level: what the logits lie around.
    scale: the factor of the logits.
  """
  q, k, v = operands[0].copy(), operands[1].copy(), operands[2]
  q[..., 0] = (abs(level) / scale) ** 0.5
  k[..., 0] = np.copysign(q[..., 0].max(), level)
  return [q, k, v]


def encode(
  operands: Sequence[np.ndarray],
) -> tuple[tuple, dict[str, np.ndarray], list[np.ndarray]]:
  """Returns float q, k, v as codes scaled per token, as `draw_codes`."""
  scales = [np.abs(x).max(axis=-1).astype(np.float32) / 127 for x in operands]
  spread = [scale[..., None] for scale in scales]
  codes = tuple(
    np.rint(x / s).astype(np.int8) for x, s in zip(operands, spread)
  )
  names = 'q_scale_BLH', 'k_scale', 'v_scale'
  return (
    codes,
    dict(zip(names, scales)),
    [x * s for x, s in zip(codes, spread)],
  )


def program(check: Check) -> tuple[Any, tuple]:
  """Returns what the device compiles: a `jax.jit` and its arguments' shapes."""
  some = next(iter(check.variants().values()))
  shapes = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(np.shape(x), x.dtype), some
  )
  return _compiled(check), shapes


def _compiled(check: Check) -> Any:
  call = check.call(check.implementation)

  def run(*arguments):
    with check.blocks(), jax.default_matmul_precision('highest'):
      return call(*arguments)

  return jax.jit(run)


def measure(check: Check) -> dict[str, Any]:
  """Returns each variant's errors, and whether all are within the tolerance."""
  run = _compiled(check)
  defined = jax.jit(check.call('reference'))
  here = jax.local_devices(backend='cpu')[0]
  found = {}
  for name, arguments in check.variants().items():
    got = jax.block_until_ready(run(*arguments))
    with jax.default_device(here), jax.default_matmul_precision('highest'):
      want = defined(*arguments)
    found[name] = compare(got, want)
  return {
    'implementation': check.implementation,
    'tolerance': check.tolerance,
    'variants': found,
    'holds': all(
      each['error'] <= check.tolerance and not each['misplaced']
      for each in found.values()
    ),
  }


def compare(got: Any, want: Any) -> dict[str, float]:
  """Returns how far trees of arrays differ.

  Returns:
    `error`: the largest difference, of each array over its largest value;
    `misplaced`: numbers that are NaN or infinite in one of the two alone;
    `different`: the share of numbers that are not equal.
  """
  error, misplaced, different, total = 0.0, 0, 0, 0
  pairs = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
  for x, y in pairs:
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    total += x.size
    different += int(np.sum(~((x == y) | (np.isnan(x) & np.isnan(y)))))
    finite = np.isfinite(x) & np.isfinite(y)
    misplaced += int(
      np.sum(~finite & ~((x == y) | (np.isnan(x) & np.isnan(y))))
    )
    if finite.any():
      largest = max(1.0, np.abs(y[finite]).max())
      error = max(error, float(np.abs((x - y)[finite]).max()) / largest)
  return {
    'error': error,
    'misplaced': misplaced,
    'different': different / max(total, 1),
  }
