"""Compares what two models' int8 was calibrated to, tensor by tensor.

A calibration is the scale of each channel of a weight, the limit of the hidden
activations, and the limit of each channel of stored keys and values
(`kv_scale='channel'`). A channel moves by a factor max(a/b, b/a). An outlier
channel is one of more than `kv_channels.OUTLIER` times the median.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import re
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.evaluation.gate import kv_channels
from kaiju_jax.quantization import int8

# Limits are our guess. Weights of one run that are calibrated again have equal
# scales; only limits move then.
MEDIAN, CHANNEL = 1.25, 2.0
_LIMITS = {'hidden_limit', 'k_limit_K', 'v_limit_K'}

Calibration = Mapping[tuple[int, str], np.ndarray]


class Moved(NamedTuple):
  """One tensor's calibration in two models."""

  layer: int  # Its layer; −1 for the tables.
  name: str  # 'attention.k_limit_K', for instance.
  # The median factor of its channels; infinite where only one of the models has
  # such a calibration.
  median: float
  largest: float  # The largest factor of a channel.
  # before, after: the number of outlier channels.
  before: int
  after: int

  @property
  def is_beyond(self) -> bool:
    """Whether it moved beyond the limits, or has more outlier channels."""
    return (
      self.median > MEDIAN or self.largest > CHANNEL or self.after > self.before
    )


def read(params: Any) -> Calibration:
  """Returns a model's calibration: by layer and name, one value per channel.

  Args:
    params: deployed parameters, stacked over the repeats of the layers' block
      (`load.base`). Floats have no calibration.
  """
  blocks = params['blocks']
  found = {}
  for name, layer in blocks.items():
    first = int(re.fullmatch(r'layer_(\d+)', name)[1])
    for path, x_N in _walk(layer):
      for repeat, x in enumerate(x_N):
        found[first + repeat * len(blocks), path] = x.ravel()
  for path, x in _walk(params['embedding']):
    found[-1, path] = x.ravel()
  return dict(sorted(found.items()))


def compare(before: Calibration, after: Calibration) -> list[Moved]:
  """Returns how each tensor moved, by layer.

  Raises:
    ValueError: a tensor has another number of channels.
  """
  found = []
  for layer, name in sorted({*before, *after}):
    ours, theirs = (one.get((layer, name)) for one in (before, after))
    if ours is None or theirs is None:
      counts = (0 if x is None else _count(x) for x in (ours, theirs))
      found.append(Moved(layer, name, np.inf, np.inf, *counts))
      continue
    if ours.shape != theirs.shape:
      raise ValueError(
        f'layer {layer}, {name}: {ours.size} and {theirs.size} channels: only'
        ' models of one shape are compared.'
      )
    tiny = np.finfo(np.float32).tiny
    ratio = np.maximum(ours, tiny) / np.maximum(theirs, tiny)
    factor = np.maximum(ratio, 1 / ratio)
    found.append(
      Moved(
        layer,
        name,
        float(np.median(factor)),
        float(factor.max()),
        _count(ours),
        _count(theirs),
      )
    )
  return found


def _count(x: np.ndarray) -> int:
  """Returns the number of outlier channels."""
  return int((x > kv_channels.OUTLIER * np.median(x)).sum())


def _walk(tree: Any, path: str = '') -> Iterator[tuple[str, np.ndarray]]:
  """Yields (name, scales or limits) of a tree of parameters, float64."""
  for name, x in tree.items():
    inner = f'{path}.{name}' if path else name
    if isinstance(x, int8.Quantized):
      yield inner, np.asarray(x.scales, np.float64)
    elif name in _LIMITS:
      yield inner, np.asarray(x, np.float64)
    elif isinstance(x, Mapping):
      yield from _walk(x, inner)
