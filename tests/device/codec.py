"""Squinch on every kind of bits; tests share the patterns.

Zeros of both signs, subnormals, infinities, NaN and any bits at all, by every
code for elements and headers. Decoding has the definition's bits on every
device. So has encoding, but that the header `ln6` may be one off where two
logarithms differ in their last bits.
"""

from collections.abc import Iterator
import functools
import itertools

import jax.numpy as jnp
import numpy as np

from kaiju_jax.kernels.squinch import api
from kaiju_jax.kernels.squinch import reference
from tests.device import checks

# Two parts of 35 groups, 130 columns: more than a block, and ragged.
SHAPE = 560, 130


def gradients(rows: int, columns: int, seed: int = 0) -> np.ndarray:
  """Returns normal values whose columns differ by octaves."""
  rng = np.random.default_rng(seed)
  octaves = rng.uniform(-25, 25, columns)
  return (rng.standard_normal((rows, columns)) * 2**octaves).astype('f4')


def patterns(rows: int, columns: int) -> np.ndarray:
  """Returns groups of every kind that a float32 knows, then any bits at all."""
  rng = np.random.default_rng(1)
  x_RC = rng.integers(0, 2**32, (rows, columns), np.uint32).view('f4').copy()
  tame = gradients(rows, columns)
  kinds = [
    np.zeros(rows),
    np.full(rows, -0.0),
    1e-42 * np.arange(-4, rows - 4),
    np.full(rows, -np.inf),
    np.where(np.arange(rows) % 8 == 3, np.nan, 1),
    np.full(rows, 0.9),
    np.where(np.arange(rows) % 8 == 5, np.inf, tame[:, 0]),
    np.where(np.arange(rows) % 8 == 2, 3e38, -1),
    1e-9 * tame[:, 1] / np.abs(tame[:, 1]).max(),
    np.repeat(2.0 ** np.arange(-rows // 16, rows // 16), 8)[:rows],
    *tame.T[: columns // 4],
  ]
  for column, kind in enumerate(kinds):
    x_RC[:, column] = kind
  return x_RC


def every_code() -> np.ndarray:
  """Returns planes uint8[6, 256, 256]: each header with each byte."""
  q, byte = np.meshgrid(np.arange(256), np.arange(256), indexing='ij')
  signs = (7 * byte + q) % 256
  return np.stack([q, signs, *[byte] * 4]).astype(np.uint8)


def _encode(elements, header, implementation):
  return lambda x_RC: api.encode_parts(
    x_RC, 2, elements, header, implementation=implementation
  )


def _decode(elements, header, implementation):
  return lambda packed: api.decode_sum(
    packed, elements, header, implementation=implementation
  )


def _parts(dtype):
  if dtype == 'float32':
    return {'': (patterns(*SHAPE),)}
  return {'': ((gradients(*SHAPE) / 2**16).astype(jnp.bfloat16),)}


def _sources():
  return {'': (np.stack([every_code(), every_code()[:, ::-1]]),)}


def make(platform: str, dry: bool) -> Iterator[tuple[str, checks.Check]]:
  """Yields the checks by name, those most worth knowing first.

  Args:
    platform: whose implementations are checked.
    dry: whether only one code is.
  """
  names = checks.list_kernels(api.RUNS_ON, platform)
  codes = list(itertools.product(reference.ELEMENTS, reference.HEADERS))
  for elements, header in codes[: 1 if dry else None]:
    for name in names:
      label = f'{name}, {elements}, {header}'
      for dtype in 'float32', 'bfloat16':
        yield (
          f'squinch encode, {label}: {dtype}',
          checks.Check(
            4,
            name,
            functools.partial(_encode, elements, header),
            functools.partial(_parts, dtype),
            # A byte of a header may be one off.
            0 if header == 'quarter' else 1 / 255,
          ),
        )
      yield (
        f'squinch decode, {label}',
        checks.Check(
          4,
          name,
          functools.partial(_decode, elements, header),
          _sources,
          0,
        ),
      )
