"""The types of numbers in a GGUF file, and how rows of them become floats.

A row of a quantized type is a sequence of blocks of 32 or 256 numbers, each
with a scale of its own. The `gguf` package makes floats of them.
"""

import functools
from typing import Any

import numpy as np

# {a type's number in the file: its name}.
NAMES = {
  0: 'F32',
  1: 'F16',
  2: 'Q4_0',
  3: 'Q4_1',
  6: 'Q5_0',
  7: 'Q5_1',
  8: 'Q8_0',
  12: 'Q4_K',
  13: 'Q5_K',
  14: 'Q6_K',
  30: 'BF16',
}
# {name: (numbers, bytes) of a block}.
SIZES = {
  'Q4_0': (32, 18),
  'Q4_1': (32, 20),
  'Q5_0': (32, 22),
  'Q5_1': (32, 24),
  'Q8_0': (32, 34),
  'Q4_K': (256, 144),
  'Q5_K': (256, 176),
  'Q6_K': (256, 210),
}


def dequantize(raw: np.ndarray, dtype: str) -> np.ndarray:
  """Returns float32 rows.

  Args:
    raw: [rows, bytes] uint8, whole blocks.
    dtype: a name of `SIZES`.

  Raises:
    ValueError: the `gguf` package is not installed.
  """
  quants, kinds = _package()
  return quants.dequantize(raw, kinds[dtype])


@functools.cache
def _package() -> tuple[Any, Any]:
  """Returns the package's functions and its enumeration of types."""
  try:
    import gguf
  except ImportError as error:
    raise ValueError(
      "quantized GGUF weights need gguf: pip install 'kaiju_jax[gguf]'."
    ) from error
  return gguf.quants, gguf.GGMLQuantizationType
