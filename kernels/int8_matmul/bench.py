"""Benchmarks int8 matmuls at the presets' shapes, against other matmuls.

    python -m kaiju_jax.kernels.int8_matmul.bench [--repeats=9] [--json=PATH]

It multiplies 8,192 rows of bf16 activations with one device's part of a layer's
weights:

    matmul    quantization of the rows, product and scales, bf16 to bf16
    codes     the product and scales only, for rows that are codes already

The peers are XLA's dot of the same numbers in bf16, which int8 has to beat,
XLA's bare s8 dot to int32, and `torch._int_mm` where torch and a GPU are
present. On a CPU nothing is timed: operations and bytes are counted.
"""

from collections.abc import Callable
from collections.abc import Mapping
import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp

from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import report
from kaiju_jax.kernels import timing
from kaiju_jax.kernels.int8_matmul import api

KERNELS = 'matmul', 'codes'
BF16 = 'bf16 dot'
S8 = 's8 dot'
TORCH = 'torch._int_mm'


class Shape(NamedTuple):
  """A product [rows, contracted] × [contracted, outputs] on one device.

  Attributes:
    rows: tokens.
    contracted: the size of the dimension that x and the weight share.
    outputs: outputs of the weight.
    contract: as for `api.matmul`.
    nonnegative: whether x is the output of a squared ReLU.
  """

  rows: int
  contracted: int
  outputs: int
  contract: str
  nonnegative: bool = False


def _layer(d_model: int, hidden: int, rows: int = 8192) -> dict[str, Shape]:
  """Returns the products of a preset's layer, with a tensor axis of 8."""
  heads, hidden = d_model // 8, hidden // 8
  return {
    'w_in': Shape(rows, d_model, hidden, 'first'),
    'w_out': Shape(rows, hidden, d_model, 'last', nonnegative=True),
    'w_q': Shape(rows, d_model, heads, 'first'),
    'w_o': Shape(rows, heads, d_model, 'last'),
  }


SHAPES = {
  f'{preset} {weight}': shape
  for preset, layer in (
    ('13b', _layer(5120, 24_576)),
    ('34b', _layer(7168, 34_816)),
    ('110b', _layer(12_288, 51_200)),
  )
  for weight, shape in layer.items()
}


def measure(
  repeats: int, shapes: Mapping[str, Shape] = SHAPES
) -> list[report.Row]:
  """Returns a report's row per kernel, shape, implementation and peer.

  Args:
    repeats: rounds, each timing every contender of a shape once.
    shapes: shapes by name.
  """
  platform = dispatch.platform()
  is_timed = platform != 'cpu' or dispatch.interpreting()
  names = [
    name
    for name, places in api.RUNS_ON.items()
    if name != 'reference' and (platform in places or platform == 'cpu')
  ]
  rows = []
  for label, shape in shapes.items():
    runs = _runs(shape, names) if is_timed else {}
    for kernel in KERNELS:
      found, problems = timing.runnable(runs.get(kernel, {}))
      times = timing.spreads(found, repeats, calls=4) if found else {}
      for name in dict.fromkeys([*names, *found, *problems]):
        is_ours = name in names
        rows.append(
          report.Row(
            kernel=f'int8_matmul {kernel}',
            shape=f'{label} {shape[:3]}',
            implementation=name,
            operations=2 * shape.rows * shape.contracted * shape.outputs,
            bytes=bytes_moved(kernel, shape),
            ceiling='int8_matmul',
            max_error=_error(found, name, kernel, shape) if is_ours else None,
            is_peer=not is_ours,
            problem=problems.get(name),
            **report.time_fields(times.get(name)),
          )
        )
  return rows


def bytes_moved(kernel: str, shape: Shape) -> int:
  """Returns the bytes that the kernel reads and writes, scales included."""
  x = shape.rows * shape.contracted * (2 if kernel == 'matmul' else 1)
  scales = 4 * (shape.outputs + (shape.rows if kernel == 'codes' else 0))
  y = 2 * shape.rows * shape.outputs
  return x + shape.contracted * shape.outputs + scales + y


def operands(shape: Shape) -> dict[str, jax.Array]:
  """Returns activations, a coded weight, and the activations' codes."""
  keys = jax.random.split(jax.random.key(0), 3)
  x_RC = jax.random.normal(
    keys[0], (shape.rows, shape.contracted), jnp.bfloat16
  )
  if shape.nonnegative:
    x_RC = jnp.square(jax.nn.relu(x_RC))
  size = shape.contracted, shape.outputs
  w = jax.random.randint(
    keys[1], size if shape.contract == 'first' else size[::-1], -127, 128
  ).astype(jnp.int8)
  scale_O = jax.random.uniform(keys[2], (shape.outputs,), minval=0.5) / 1e3
  codes_RC, scale_R = api.quantize(
    x_RC, nonnegative=shape.nonnegative, implementation='reference'
  )
  return {
    'x_RC': x_RC,
    'w': w,
    'scale_O': scale_O,
    'codes_RC': codes_RC,
    'scale_R': scale_R,
  }


def _runs(shape, names) -> dict[str, dict[str, Callable[[], Any]]]:
  values = operands(shape)
  runs = {kernel: {} for kernel in KERNELS}
  for name in names:
    for kernel in KERNELS:
      step = jax.jit(functools.partial(ours, kernel, shape, name))
      runs[kernel][name] = functools.partial(step, values)
  runs['matmul'][BF16] = functools.partial(
    jax.jit(functools.partial(_dot, shape, jnp.bfloat16)),
    values['x_RC'],
    values['w'].astype(jnp.bfloat16),
  )
  runs['codes'][S8] = functools.partial(
    jax.jit(functools.partial(_dot, shape, jnp.int32)),
    values['codes_RC'],
    values['w'],
  )
  if (product := _torch(shape, values)) is not None:
    runs['codes'][TORCH] = product
  return runs


def ours(
  kernel: str,
  shape: Shape,
  implementation: str,
  values: Mapping[str, jax.Array],
) -> jax.Array:
  """Returns y as one implementation of one of KERNELS computes it.

  Args:
    kernel: one of KERNELS.
    shape: the product's shape.
    implementation: a key of `api.RUNS_ON`.
    values: what `operands` returned.
  """
  is_coded = kernel == 'codes'
  return api.matmul(
    values['codes_RC'] if is_coded else values['x_RC'],
    values['w'],
    values['scale_O'],
    scale_R=values['scale_R'] if is_coded else None,
    contract=shape.contract,
    nonnegative=shape.nonnegative,
    dtype=jnp.bfloat16,
    implementation=implementation,
  ).y_RO


def _dot(shape, dtype, x_RC, w):
  last = 0 if shape.contract == 'first' else 1
  return jax.lax.dot_general(
    x_RC, w, (((1,), (last,)), ((), ())), preferred_element_type=dtype
  )


def _error(found, name, kernel, shape) -> float | None:
  """Returns the largest difference to the reference, over 512 rows."""
  if name not in found:
    return None
  few = shape._replace(rows=min(512, shape.rows))
  values = operands(few)
  results = [
    jax.jit(functools.partial(ours, kernel, few, each))(values)
    for each in (name, 'reference')
  ]
  got, expected = (x.astype(jnp.float32) for x in results)
  return float(jnp.max(jnp.abs(got - expected)))


def _torch(shape, values) -> Callable[[], Any] | None:
  """Returns a call of torch's product of these codes; None without a GPU."""
  try:
    import torch
  except ImportError:
    return None
  if not torch.cuda.is_available():
    return None
  x_RC, w_CO = (
    torch.from_dlpack(x).to('cuda') for x in (values['codes_RC'], values['w'])
  )
  if shape.contract == 'last':
    w_CO = w_CO.T

  def run():
    torch._int_mm(x_RC, w_CO)
    torch.cuda.synchronize()

  return run


if __name__ == '__main__':
  report.command(measure)
