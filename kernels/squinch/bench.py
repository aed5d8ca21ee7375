"""Squinch's kernels on the presets' gradients, in bytes/s.

It is one device's gradient of a layer's weights (13b on 64 devices, 34b on 128,
110b on 512): encoding bf16 in parts for their owners, and summing the parts
that one owner receives, beside a copy of as many bytes.
"""

from collections.abc import Iterator
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from kaiju_jax.kernels import benchmark
from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.squinch import api
from kaiju_jax.kernels.squinch import blocks


class Shape(NamedTuple):
  """A weight's gradient on one device."""

  parts: int  # Number of owners, and of the sources that an owner sums.
  rows: int  # All of D.
  columns: int  # The device's share of the other dimensions.


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
FIRST = '13b hidden', '110b hidden', '34b hidden', '13b keys'
TINY = Shape(2, 64, 64)


def subjects(label: str, shape: Shape) -> Iterator[benchmark.Subject]:
  """Yields both directions, with every implementation of the platform.

  On a CPU, where none is timed, the contenders are those of all platforms.
  """
  platform = dispatch.platform()
  for kernel, run in KERNELS.items():
    runs = {
      name: jax.jit(functools.partial(run, shape, implementation=name))
      for name, places in api.RUNS_ON.items()
      if platform in places or platform == 'cpu'
    }

    def error(made, step, runs=runs):
      return benchmark.largest_difference(step(made), runs['reference'](made))

    yield benchmark.Subject(
      kernel=f'squinch {kernel}',
      shape=f'{label} {tuple(shape)}',
      # Not counted, because bytes bound the time.
      operations=0,
      bytes=bytes_moved(kernel, shape),
      make=functools.partial(operands, shape),
      contenders={
        name: benchmark.Contender(
          step, error=functools.partial(error, step=step)
        )
        for name, step in runs.items()
      },
    )


def default(shape: Shape) -> str:
  """Returns the platform's implementation at a shape."""
  groups = shape.rows // (8 * shape.parts)
  return blocks.implementation(
    dispatch.platform(), shape.parts, groups, shape.columns
  )


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
