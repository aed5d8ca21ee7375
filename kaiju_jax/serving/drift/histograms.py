"""Histograms of stored codes and of tokens, and how far two of them are apart.

Keys and values with a limit per channel (`kv_scale='channel'`) are stored as
codes of ±127, and 127 is the limit. So a histogram of |code| per channel says
which limit the channel would need, and its last bin how much was cut.

The divergence is KL(window ‖ baseline) in nats: of tokens in hashed buckets,
and of codes in bins that double, as the mean over all channels. Bins and
smoothing are our guess.
"""

from collections.abc import Iterable
import dataclasses
from typing import NamedTuple
from typing import Self

import numpy as np

# Values of |code|: 0…127; 127 is the rail.
LEVELS = 128
RAIL = LEVELS - 1
# Buckets of tokens.
BUCKETS = 256
# Bins of |code| for the divergence: 0, 1, 2, 3–4, … 65–126, and the rail.
_BIN_C = np.ceil(np.log2(np.maximum(np.arange(LEVELS), 1))).astype(int)
_BIN_C += np.arange(LEVELS) > 0
_BIN_C[RAIL] += 1
BINS = int(_BIN_C[RAIL]) + 1
# The share of the baseline that is spread over all bins, so that no bin is
# impossible.
_SMOOTHED = 1e-3
_HASH = np.uint32(2_654_435_761)


class Sample(NamedTuple):
  """What a page says."""

  character: bytes  # Whose text it is (`Text.cache_salt`).
  tokens_S: np.ndarray  # int32.
  codes: np.ndarray  # uint8 [layers, 2, S, K], |code| of keys and of values.


@dataclasses.dataclass
class Counts:
  """Weighted counts of pages."""

  codes: np.ndarray  # float64 [layers, 2, K, LEVELS].
  tokens: np.ndarray  # float64 [BUCKETS].

  @classmethod
  def zeros(cls, layers: int, channels: int) -> Self:
    shape = layers, 2, channels, LEVELS
    return cls(np.zeros(shape), np.zeros(BUCKETS))

  def add(self, other: 'Counts', kept: float = 1.0) -> None:
    """Adds another's counts to a part of these."""
    for own, new in (self.codes, other.codes), (self.tokens, other.tokens):
      own *= kept
      own += new


class Divergence(NamedTuple):
  """KL(window ‖ baseline), nats: of tokens, and of codes per channel."""

  tokens: float
  codes: float


def count(samples: Iterable[Sample], weights: Iterable[float] = ()) -> Counts:
  """Returns the counts of samples, of which there must be one.

  Args:
    samples: pages of one kind of cache.
    weights: of each sample; 1 if there are none.
  """
  samples = list(samples)
  weights = list(weights) or [1.0] * len(samples)
  layers, _, _, channels = samples[0].codes.shape
  found = Counts.zeros(layers, channels)
  offset = np.arange(found.codes.size // LEVELS).reshape(layers, 2, 1, channels)
  for sample, weight in zip(samples, weights, strict=True):
    place = (offset * LEVELS + sample.codes).ravel()
    each = np.bincount(place, minlength=found.codes.size)
    found.codes += weight * each.reshape(found.codes.shape)
    found.tokens += weight * np.bincount(
      bucket(sample.tokens_S), minlength=BUCKETS
    )
  return found


def bucket(tokens_S: np.ndarray) -> np.ndarray:
  """Returns the tokens' buckets; different tokens may share one."""
  return ((tokens_S.astype(np.uint32) * _HASH) >> np.uint32(24)).astype(int)


def bin_codes(codes: np.ndarray) -> np.ndarray:
  """Returns counts [layers, 2, K, LEVELS] in bins [layers, 2, K, BINS]."""
  return codes @ np.eye(BINS)[_BIN_C]


def diverge(window: Counts, baseline: Counts) -> Divergence:
  """Returns how far a window is from a baseline; both have counts."""
  codes = _kl(bin_codes(window.codes), bin_codes(baseline.codes))
  tokens = _kl(window.tokens, baseline.tokens)
  return Divergence(float(tokens), float(codes.mean()))


def _kl(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
  """Returns the divergence along the last axis, with a smoothed baseline."""
  p = found / found.sum(-1, keepdims=True)
  q = expected / expected.sum(-1, keepdims=True)
  q = (1 - _SMOOTHED) * q + _SMOOTHED / q.shape[-1]
  return np.where(p > 0, p * np.log(np.maximum(p, 1e-300) / q), 0).sum(-1)
