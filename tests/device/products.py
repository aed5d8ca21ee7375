"""int8 products in both layouts; tests share how the operands are drawn.

Rows of many sizes, a row of zeros and one with a NaN, limits and cuts, codes
and floats, squared ReLU, and the products of the backward pass. Forward codes
and sums are exact: a device that divides float32 as IEEE defines it has the
definition's bits.
"""

from collections.abc import Iterator
import functools

import jax.numpy as jnp
import numpy as np

from kaiju_jax.kernels.int8_matmul import api
from tests.device import checks

# No multiple of any block.
ROWS, CONTRACTED, OUTPUTS = 70, 300, 200
LARGE = 600, 2100, 900
_BACKWARD = {'float32': 1e-4, 'bfloat16': 0.02}


def draw(
  contracted: int = CONTRACTED,
  dtype=jnp.float32,
  nonnegative: bool = False,
  seed: int = 0,
  rows: int = ROWS,
  outputs: int = OUTPUTS,
):
  """Returns x [R, C] of rows of many sizes, w [C, O] and w's scales."""
  rng = np.random.default_rng(seed)
  x = rng.standard_normal((rows, contracted)) * np.exp(
    rng.uniform(-9, 9, (rows, 1))
  )
  x = np.abs(x) if nonnegative else x
  w = rng.integers(-127, 128, (contracted, outputs)).astype(np.int8)
  scale = rng.uniform(0.5, 2, outputs).astype(np.float32)
  return jnp.asarray(x, dtype), w, jnp.asarray(scale)


LIMITS = {
  'none': {},
  'scalar': {'limit': np.float32(0.7)},
  'row': {'limit': np.linspace(0.1, 30, ROWS, dtype=np.float32)},
  'cut': {'cut': np.linspace(0.1, 30, ROWS, dtype=np.float32)},
  'both': {'cut': np.float32(0.7), 'limit': np.float32(0.7)},
}
PRODUCTS = {
  'by the first, nonnegative': (300, True, 'first'),
  'by the first, less than a block': (45, True, 'first'),
  'by the last': (300, False, 'last'),
  'by the last, no block in part': (384, True, 'last'),
}


def _exact(contract, nonnegative, implementation):
  """Returns a function of everything that has the definition's bits."""
  options = {'contract': contract, 'implementation': implementation}
  signed = {'nonnegative': nonnegative}

  def run(x, w, scale, limits, dy):
    free = api.matmul(x, w, scale, keep_codes=True, **signed, **options)
    bound = api.matmul(x, w, scale, **limits, **signed, **options)
    of_codes = api.matmul(
      *(free.codes_RC, w, scale),
      scale_R=free.scale_R,
      dtype=x.dtype,
      relu2=True,
      out_cut=jnp.float32(1234.5),
      **signed,
      **options,
    )
    dx = api.input_gradient(dy, w, scale, rounding='stochastic', **options)
    return free, bound, of_codes.y_RO, dx

  return run


def _backward(contract, nonnegative, implementation):
  options = {'contract': contract, 'implementation': implementation}

  def run(codes, scales, w, scale, dy):
    return (
      api.input_gradient(dy, w, scale, **options),
      api.weight_gradient(
        codes, scales, dy, nonnegative=nonnegative, **options
      ),
    )

  return run


def make(platform: str, dry: bool) -> Iterator[tuple[str, checks.Check]]:
  """Yields the checks by name, those most worth knowing first.

  Args:
    platform: whose implementations are checked.
    dry: whether only one shape is.
  """
  names = checks.list_kernels(api.RUNS_ON, platform)
  shapes = {
    'large, first': (LARGE[1], True, 'first', LARGE[0], LARGE[2]),
    'large, last': (LARGE[1], False, 'last', LARGE[0], LARGE[2]),
    **{name: (*each, ROWS, OUTPUTS) for name, each in PRODUCTS.items()},
  }
  if dry:
    shapes = {name: each for name, each in shapes.items() if each[3] == ROWS}
    shapes = dict(list(shapes.items())[:1])
  for label, shape in shapes.items():
    for dtype in 'bfloat16', 'float32':
      for name in names:
        arguments = functools.partial(_arguments, dtype, *shape)
        calls = {
          'exact parts': (_exact, 0),
          'gradients': (_backward, _BACKWARD[dtype]),
        }
        for part, (call, tolerance) in calls.items():
          yield (
            f'int8 product, {name}, {dtype}, {part}: {label}',
            checks.Check(
              6,
              name,
              functools.partial(call, shape[2], shape[1]),
              functools.partial(arguments, part),
              tolerance,
            ),
          )


def _arguments(dtype, contracted, nonnegative, contract, rows, outputs, part):
  x, w, scale = draw(contracted, dtype, nonnegative, rows=rows, outputs=outputs)
  x, scale = np.array(x), np.array(scale)
  x[3], x[5, 7] = 0, np.nan
  w = w if contract == 'first' else w.T.copy()
  random = np.random.default_rng(1)
  dy = random.standard_normal((rows, outputs)).astype(x.dtype)
  if part == 'gradients':
    codes = random.integers(-127, 128, x.shape).astype(np.int8)
    scales = np.linspace(0.1, 1, rows, dtype=np.float32)
    return {'': (codes, scales, w, scale, dy)}
  limits = {
    'cut': np.linspace(0.1, 30, rows, dtype=np.float32),
    'limit': np.full(rows, 0.7, np.float32),
  }
  return {'': (x, w, scale, limits, dy)}
