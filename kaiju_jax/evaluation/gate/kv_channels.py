"""Codes at the rail and outlier channels of stored keys and values.

A code of ±127 is at the rail: by definition the largest value of each token
where scales are per token, a clipped value where limits are per channel. An
outlier channel's largest value is more than `OUTLIER` times that of the median
channel: it takes the codes of all others.
"""

from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.quantization import int8

OUTLIER = 20.0
NAMES = 'keys', 'values'


class Channels(NamedTuple):
  """The stored values of one layer's keys or values."""

  # The share of codes of ±127 beyond those that the format puts there; None for
  # floats.
  at_rail: float | None
  outliers: int  # The number of outlier channels.
  largest: float  # The largest channel over the median one.


class Counter:
  """Adds up texts' keys and values."""

  def __init__(self):
    self._rail: dict[tuple[int, str], list[int]] = {}
    self._largest: dict[tuple[int, str], np.ndarray] = {}

  def add(self, stored: dict[int, tuple[Any, Any]], count: int) -> None:
    """Adds a text.

    Args:
      stored: by layer, keys and values [U, L, K]; see `reader.Reading`.
      count: tokens of the text, without padding.
    """
    for owner, pair in stored.items():
      for name, x in zip(NAMES, pair):
        self._add((owner, name), x, count)

  def summarize(self) -> dict[tuple[int, str], Channels]:
    """Returns figures by (layer, 'keys' or 'values')."""
    found = {}
    for key, largest in self._largest.items():
      relative = largest / max(float(np.median(largest)), np.finfo(float).tiny)
      rail = self._rail.get(key)
      found[key] = Channels(
        rail[0] / rail[1] if rail else None,
        int((relative > OUTLIER).sum()),
        float(relative.max()),
      )
    return found

  def _add(self, key, x, count: int) -> None:
    values = x
    if isinstance(x, int8.Quantized):
      codes_ULK = np.asarray(x.codes)[:, :count].astype(np.int16)
      at_rail = int((np.abs(codes_ULK) == int8.MAX_CODE).sum())
      scales = np.asarray(x.scales)
      if scales.ndim == 2:
        scales = scales[:, :count, None]
        # The largest of each token stands there by definition.
        at_rail -= int(np.prod(codes_ULK.shape[:2]))
      rail = self._rail.setdefault(key, [0, 0])
      rail[0] += at_rail
      rail[1] += codes_ULK.size
      values = codes_ULK * scales
    largest = np.abs(np.asarray(values, np.float32)[:, :count]).max(1).ravel()
    before = self._largest.setdefault(key, largest)
    self._largest[key] = np.maximum(before, largest)
