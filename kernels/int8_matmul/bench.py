"""int8 matmuls at the presets' shapes, against other matmuls.

8,192 rows of bf16 activations with one device's part of a layer's weights:

    matmul    quantization of the rows, product and scales, bf16 to bf16
    codes     the product and scales only, for rows that are codes already

The peers are XLA's dot of the same numbers in bf16, which int8 has to beat,
XLA's bare s8 dot to int32, and `torch._int_mm` where torch is installed.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import functools
import importlib.util
from typing import NamedTuple

import jax
import jax.numpy as jnp

from kaiju_jax.kernels import benchmark
from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.int8_matmul import api
from kaiju_jax.kernels.int8_matmul import blocks

KERNELS = 'matmul', 'codes'
BF16 = 'bf16 dot'
S8 = 's8 dot'
TORCH = 'torch._int_mm'


class Shape(NamedTuple):
  """A product [rows, contracted] × [contracted, outputs] on one device."""

  rows: int  # Tokens.
  contracted: int  # The size of the dimension that x and the weight share.
  outputs: int  # Outputs of the weight.
  contract: str  # As for `api.matmul`.
  nonnegative: bool = False  # Whether x is the output of a squared ReLU.


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
FIRST = '110b w_in', '110b w_out', '13b w_in', '13b w_out', '13b w_q'
TINY = Shape(32, 64, 128, 'first')


def subjects(label: str, shape: Shape) -> Iterator[benchmark.Subject]:
  """Yields both kernels, with the platform's implementations and the peers."""
  platform = dispatch.platform()
  dots = {'matmul': {BF16: jnp.bfloat16}, 'codes': {S8: jnp.int32}}
  for kernel in KERNELS:
    contenders = {
      name: benchmark.Contender(
        jax.jit(functools.partial(ours, kernel, shape, name)),
        error=functools.partial(_error, kernel, shape, name),
      )
      for name, places in api.RUNS_ON.items()
      if name != 'reference' and (platform in places or platform == 'cpu')
    }
    if benchmark.is_timed():
      for name, dtype in dots[kernel].items():
        contenders[name] = benchmark.Contender(
          jax.jit(functools.partial(_dot, shape, dtype)),
          functools.partial(_dotted, kernel),
          is_peer=True,
        )
      if kernel == 'codes' and importlib.util.find_spec('torch'):
        contenders[TORCH] = benchmark.Contender(
          _torch, functools.partial(_on_torch, shape), is_peer=True
        )
    yield benchmark.Subject(
      kernel=f'int8_matmul {kernel}',
      shape=f'{label} {shape[:3]}',
      operations=2 * shape.rows * shape.contracted * shape.outputs,
      bytes=bytes_moved(kernel, shape),
      make=functools.partial(operands, shape),
      contenders=contenders,
      ceiling='int8_matmul',
    )


def default(shape: Shape) -> str:
  """Returns the platform's implementation at a shape."""
  del shape
  return blocks.implementation()


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


def _dotted(kernel, made):
  """Returns the operands of a peer's dot of the same numbers."""
  if kernel == 'codes':
    return made['codes_RC'], made['w']
  return made['x_RC'], made['w'].astype(jnp.bfloat16)


def _dot(shape, dtype, x_RC, w):
  last = 0 if shape.contract == 'first' else 1
  return jax.lax.dot_general(
    x_RC, w, (((1,), (last,)), ((), ())), preferred_element_type=dtype
  )


def _error(kernel, shape, name, made) -> float:
  """Returns the largest difference to the reference, over 512 rows."""
  del made
  few = shape._replace(rows=min(512, shape.rows))
  values = operands(few)
  got, expected = (
    jax.jit(functools.partial(ours, kernel, few, each))(values)
    for each in (name, 'reference')
  )
  return benchmark.largest_difference(got, expected)


def _on_torch(shape, made):
  """Returns the codes as tensors on the GPU, without a copy."""
  import torch

  x_RC, w_CO = (
    torch.from_dlpack(made[name]).to('cuda') for name in ('codes_RC', 'w')
  )
  return x_RC, w_CO if shape.contract == 'first' else w_CO.T


def _torch(x_RC, w_CO) -> None:
  import torch

  torch._int_mm(x_RC, w_CO)
  torch.cuda.synchronize()
