"""Benchmarks Squinch's kernels on the presets' gradients, in bytes/s.

    python -m kaiju_jax.kernels.squinch.bench [--repeats=9] [--json=PATH]

It times every implementation that the device runs, on one device's gradient of
a layer's weights (13b on 64 devices, 34b on 128, 110b on 512): encoding bf16 in
parts for their owners, and summing the parts that one owner receives. The table
counts the bytes that must be read and written, and compares their rate with a
copy's. `copies.py` measures a CPU.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import report
from kaiju_jax.kernels import timing
from kaiju_jax.kernels.squinch import api


class Shape(NamedTuple):
  """A weight's gradient on one device.

  Attributes:
    parts: number of owners, and of the sources that an owner sums.
    rows: all of D.
    columns: the device's share of the other dimensions.
  """

  parts: int
  rows: int
  columns: int


def _layer(parts: int, d_model: int, hidden: int) -> dict[str, Shape]:
  """Returns the gradients of a preset's layer, with a tensor axis of 8."""
  return {
    'hidden': Shape(parts, d_model, hidden // 8),
    'queries': Shape(parts, d_model, d_model // 8),
    'keys': Shape(parts, d_model, 128),
    'vocabulary': Shape(parts, d_model, 65_536 // 8),
  }


SHAPES = {
  f'{preset} {weight}': shape
  for preset, layer in (
    ('13b', _layer(8, 5120, 24_576)),
    ('34b', _layer(16, 7168, 34_816)),
    ('110b', _layer(64, 12_288, 51_200)),
  )
  for weight, shape in layer.items()
}


def measure(
  repeats: int, shapes: Mapping[str, Shape] = SHAPES
) -> list[report.Row]:
  """Returns a report's row per direction, shape and implementation.

  On a CPU it runs nothing and only counts the bytes of every implementation.

  Args:
    repeats: rounds, each timing every implementation once.
    shapes: shapes by name.
  """
  platform = dispatch.platform()
  is_timed = platform != 'cpu' or dispatch.interpreting()
  names = [
    name
    for name, places in api.RUNS_ON.items()
    if platform in places or platform == 'cpu'
  ]
  rows = []
  for label, shape in shapes.items():
    values = operands(shape) if is_timed else {}
    for kernel, run in KERNELS.items():
      found = {}
      if is_timed:
        found = _time(functools.partial(run, shape), values, names, repeats)
      for name in names:
        spread, error, problem = found.get(name, (None, None, None))
        rows.append(
          report.Row(
            kernel=f'squinch {kernel}',
            shape=f'{label} {tuple(shape)}',
            implementation=name,
            # Not counted, because bytes bound the time.
            operations=0,
            bytes=bytes_moved(kernel, shape),
            max_error=error,
            problem=problem,
            **report.time_fields(spread),
          )
        )
  return rows


def bytes_moved(kernel: str, shape: Shape) -> int:
  """Returns the bytes that the kernel reads and writes."""
  elements = shape.rows * shape.columns
  packed = elements * 6 // 8
  if kernel == 'encode':
    return 2 * elements + packed
  return packed + 4 * elements // shape.parts


def operands(shape: Shape) -> dict[str, jax.Array]:
  """Returns the kernels' operands by name: a gradient, and encoded parts."""
  keys = jax.random.split(jax.random.key(0))
  x_RC = jax.random.normal(keys[0], (shape.rows, shape.columns), jnp.bfloat16)
  # Columns differ by octaves, so that headers differ.
  octaves = jax.random.randint(keys[1], (1, shape.columns), -16, 0)
  x_RC = x_RC * jnp.exp2(octaves.astype(jnp.bfloat16))
  packed = api.encode_parts(x_RC, shape.parts, implementation='reference')
  return {'x_RC': x_RC, 'packed_NPGC': packed}


def _encode(shape, operands, implementation):
  return api.encode_parts(
    operands['x_RC'], shape.parts, implementation=implementation
  )


def _decode_sum(shape, operands, implementation):
  del shape
  return api.decode_sum(operands['packed_NPGC'], implementation=implementation)


KERNELS = {'encode': _encode, 'decode_sum': _decode_sum}


def _time(
  run: Callable[..., jax.Array],
  operands: Mapping[str, jax.Array],
  names: Sequence[str],
  repeats: int,
) -> dict[str, tuple[timing.Spread | None, float | None, str | None]]:
  """Returns {name: (its times, difference to the reference, problem)}."""
  steps: dict[str, Callable[[], Any]] = {}
  for name in names:
    step = jax.jit(functools.partial(run, implementation=name))
    steps[name] = functools.partial(step, operands)
  steps, problems = timing.runnable(steps)
  times = timing.spreads(steps, repeats, calls=4)
  expected = steps['reference']()
  return {
    name: (times[name], float(_difference(step(), expected)), None)
    for name, step in steps.items()
  } | {name: (None, None, problem) for name, problem in problems.items()}


@jax.jit
def _difference(got: jax.Array, expected: jax.Array) -> jax.Array:
  return jnp.max(
    jnp.abs(got.astype(jnp.float32) - expected.astype(jnp.float32))
  )


if __name__ == '__main__':
  report.command(measure)
