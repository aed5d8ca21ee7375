"""Finds the weights of sources whose mix is most similar to a target.

A mix of sources with weights w (shares of its tokens: w ≥ 0, Σ w = 1) has the
vector Σ_s w_s μ_s, where μ_s is the mean of a source's document vectors,
weighted by the documents' tokens. There are two objectives:

    em             max Σ_j t_j ln Σ_s w_s p_sj, over distributions of n-grams:
                   the target t is most likely under the mix. Expectation
                   maximization, w_s ← w_s Σ_j t_j p_sj / Σ_r w_r p_rj
    least_squares  min ‖μ_t − Σ_s w_s μ_s‖², over any vectors

and, for comparison, `proportional`: each source's share of all tokens.

A bound w_s ≤ c_s limits how often a source is read. An EM step is then w_s =
min(c_s, λ r_s), where r_s is the step without bounds and λ makes the sum 1.
This maximizes Σ_s r_s ln w_s within the bounds, so that no step lowers the
likelihood. Least squares is solved exactly, by active sets: each source is at
0, at its bound, or free.

Both problems are convex, and each solution has a certificate. With g the
gradient of what is minimized,

    gap(w) = g·w − min_v g·v        v over all weights that are allowed

is an upper bound on how far w is above the optimum, and is 0 only there.

Intervals come from the Bayesian bootstrap (Rubin 1981): every document of the
target and the sources gets a weight drawn from Exp(1), and the problem is
solved again. Unlike a draw with replacement, this leaves no document out, and
so no n-gram of a source.

The fewer n-grams a source has, the noisier is its p_s. EM averages the noise
away by spreading the weights, so that a weight that should be 0 becomes some
hundredths. The intervals do not show this bias; least squares has less of it.

From the sources: a mix "as similar as possible to the task being optimized
for". Our guess: both objectives, and the bound.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kaiju_jax.data.curation import similarity

METHODS = ('em', 'least_squares', 'proportional')
_EPSILON = 1e-12
# Smaller moves of the weights are rounding errors.
_SETTLED = 1e-9


class Mean(NamedTuple):
  """Documents of one collection, to be averaged."""

  vectors: similarity.Embedded  # Float [N, D], one row per document.
  tokens: np.ndarray  # [N], the weight of each document in the mean, positive.

  def compute(self, draws_RN: np.ndarray | None = None) -> np.ndarray:
    """Returns float64 [R, D], the mean under each row of document weights.

    Args:
      draws_RN: factors on the documents' weights; None for ones, with R = 1.
    """
    weights = np.asarray(self.tokens, np.float64)[None]
    if draws_RN is not None:
      weights = weights * draws_RN
    weights = weights / weights.sum(axis=1, keepdims=True)
    return np.asarray((self.vectors.T @ weights.T).T, np.float64)


class Solved(NamedTuple):
  """Weights, and a bound on their distance from the optimum."""

  weights: np.ndarray  # float64 [S].
  gap: float  # The most by which the objective could still improve.


class Mix(NamedTuple):
  """The weights of a mix with their uncertainty."""

  weights: np.ndarray  # float64 [S].
  # float64 [S], the 95 % bootstrap interval of each weight.
  low: np.ndarray
  high: np.ndarray
  gap: float  # See `Solved`.
  # float64 [S], the distance of each source alone from the target.
  distances: np.ndarray
  distance: float  # The distance of the mix from the target.
  pooled: float  # The distance of all sources' text together.


def bounds(sizes: Sequence[int], tokens: int, epochs: float) -> np.ndarray:
  """Returns float64 [S], the largest weight that each source may have.

  Args:
    sizes: tokens of each source.
    tokens: tokens of the run; 0 where they are not known, for no bounds.
    epochs: how often a source may be read.

  Raises:
    ValueError: all sources together are too small.
  """
  sizes = np.asarray(sizes, np.float64)
  if not tokens:
    return np.ones(len(sizes))
  if sizes.sum() * epochs < tokens:
    raise ValueError(
      f'--tokens={tokens:,}: all sources hold {int(sizes.sum()):,} tokens, and'
      f' {epochs:g} epochs of them are fewer; give more text, more --epochs or'
      ' fewer tokens.'
    )
  return np.minimum(1, sizes * epochs / tokens)


def solve(
  method: str,
  target_D: np.ndarray,
  means_SD: np.ndarray,
  bounds_S: np.ndarray | None = None,
  start_S: np.ndarray | None = None,
) -> Solved:
  """Returns the weights of the sources.

  Args:
    method: 'em' or 'least_squares'.
    target_D, means_SD: float64, means of the target and of each source.
    bounds_S: largest weights, with a sum of at least 1; None for ones.
    start_S: where EM begins; by default at equal weights.
  """
  if bounds_S is None:
    bounds_S = np.ones(len(means_SD))
  if method == 'em':
    return em(target_D, means_SD, bounds_S, start_S)
  return least_squares(target_D, means_SD, bounds_S)


def em(
  target_D: np.ndarray,
  means_SD: np.ndarray,
  bounds_S: np.ndarray,
  start_S: np.ndarray | None = None,
  tolerance: float = 1e-6,
  most: int = 5000,
) -> Solved:
  """Returns the most likely weights; the gap is in nats per n-gram.

  Buckets that no source has are ignored: they say nothing about the weights.
  """
  seen_D = (target_D > 0) & np.any(means_SD > 0, axis=0)
  target_D, means_SD = target_D[seen_D], means_SD[:, seen_D]
  weights_S = fill(np.ones(len(means_SD)), bounds_S)
  if start_S is not None:
    # A weight of 0 never grows again.
    weights_S = fill(0.9 * start_S + 0.1 * weights_S, bounds_S)
  gap = np.inf
  for _ in range(most):
    mix_D = weights_S @ means_SD
    gain_S = means_SD @ (target_D / np.maximum(mix_D, 1e-300))
    gap = float(_best(gain_S, bounds_S) @ gain_S - weights_S @ gain_S)
    if gap <= tolerance:
      break
    weights_S = fill(weights_S * gain_S, bounds_S)
  return Solved(weights_S, max(gap, 0.0))


def least_squares(
  target_D: np.ndarray, means_SD: np.ndarray, bounds_S: np.ndarray
) -> Solved:
  """Returns the weights of the nearest mix; the gap is in squared distance."""
  # Because Σ w = 1, the difference is Σ w_s (μ_s − μ_t).
  apart_SD = means_SD - target_D
  products_SS = apart_SD @ apart_SD.T
  scale = np.trace(products_SS) / len(products_SS) or 1.0
  products_SS = products_SS / scale
  weights_S = fill(np.ones(len(means_SD)), bounds_S)
  free_S = np.ones(len(weights_S), bool)
  for _ in range(100 * len(weights_S)):
    move_S = _to_the_best(products_SS, weights_S, free_S)
    if np.max(np.abs(move_S)) > _SETTLED:
      weights_S, free_S = _move(weights_S, move_S, bounds_S, free_S)
      continue
    released = _find_released(products_SS, weights_S, bounds_S, free_S)
    if released is None:
      break
    free_S[released] = True
  gradient_S = 2 * scale * (products_SS @ weights_S)
  best_S = _best(-gradient_S, bounds_S)
  gap = float(gradient_S @ (weights_S - best_S))
  return Solved(weights_S, max(gap, 0.0))


def _to_the_best(products_SS, weights_S, free_S) -> np.ndarray:
  """Returns the move of the free weights to their optimum; its sum is 0."""
  free = np.flatnonzero(free_S)
  move_S = np.zeros(len(weights_S))
  if len(free) < 2:
    return move_S
  system = np.ones((len(free) + 1, len(free) + 1))
  system[:-1, :-1] = products_SS[np.ix_(free, free)]
  system[-1, -1] = 0
  gradient = products_SS[free] @ weights_S
  solution, *_ = np.linalg.lstsq(system, np.append(-gradient, 0), rcond=1e-13)
  move_S[free] = solution[:-1]
  return move_S


def _move(weights_S, move_S, bounds_S, free_S):
  """Moves up to the first bound; a weight that reaches one becomes fixed."""
  with np.errstate(divide='ignore', invalid='ignore'):
    room_S = np.where(
      move_S > _EPSILON,
      (bounds_S - weights_S) / move_S,
      np.where(move_S < -_EPSILON, weights_S / -move_S, np.inf),
    )
  first = int(np.argmin(room_S))
  if room_S[first] >= 1:
    return np.clip(weights_S + move_S, 0, bounds_S), free_S
  weights_S = np.clip(weights_S + room_S[first] * move_S, 0, bounds_S)
  weights_S[first] = bounds_S[first] if move_S[first] > 0 else 0.0
  free_S = free_S.copy()
  free_S[first] = False
  return weights_S, free_S


def _find_released(products_SS, weights_S, bounds_S, free_S) -> int | None:
  """Returns the fixed source that would gain most if free; None without any."""
  gradient_S = products_SS @ weights_S
  if np.any(free_S):
    level = np.mean(gradient_S[free_S])
  else:
    # Every weight is at a bound. Any level will do that separates the gradients
    # at the upper bounds from those at 0, if there is one.
    at_top = weights_S >= bounds_S - _EPSILON
    level = np.max(gradient_S[at_top]) if np.any(at_top) else np.inf
  # Positive where moving off the bound, into the allowed range, helps.
  gain_S = np.where(weights_S > 0.5 * bounds_S, 1, -1) * (gradient_S - level)
  gain_S[free_S] = -np.inf
  best = int(np.argmax(gain_S))
  return best if gain_S[best] > 1e-10 else None


def fill(shares_S: np.ndarray, bounds_S: np.ndarray) -> np.ndarray:
  """Returns min(bound, λ · share) with the λ for which the sum is 1."""
  weights_S = shares_S / shares_S.sum()
  full_S = np.zeros(len(shares_S), bool)
  while np.any(over_S := (weights_S > bounds_S) & ~full_S):
    full_S |= over_S
    left = 1 - bounds_S[full_S].sum()
    rest = shares_S[~full_S].sum()
    weights_S = np.where(
      full_S, bounds_S, shares_S * (left / rest if rest > 0 else 0.0)
    )
  # The rest goes to sources below their bounds, in proportion to the room.
  short = 1 - weights_S.sum()
  if short > _EPSILON:
    room_S = bounds_S - weights_S
    weights_S = weights_S + short * room_S / room_S.sum()
  return weights_S


def _best(gain_S: np.ndarray, bounds_S: np.ndarray) -> np.ndarray:
  """Returns the allowed weights with the largest gain·weights."""
  weights_S = np.zeros(len(gain_S))
  left = 1.0
  for source in np.argsort(-gain_S):
    weights_S[source] = min(left, bounds_S[source])
    left -= weights_S[source]
  return weights_S


def distance(
  target_D: np.ndarray, mean_D: np.ndarray, distributions: bool
) -> float:
  """Returns the distance of a mean from the target; 0 where they are equal.

  For distributions it is the Jensen–Shannon divergence in nats, between 0 and
  ln 2, which stays finite where a source lacks n-grams of the target. Otherwise
  it is the Euclidean distance.
  """
  if not distributions:
    return float(np.linalg.norm(target_D - mean_D))
  middle_D = (target_D + mean_D) / 2
  apart = (_entropy(target_D) + _entropy(mean_D)) / 2
  return max(0.0, _entropy(middle_D) - apart)


def _entropy(shares_D: np.ndarray) -> float:
  shares_D = shares_D[shares_D > 0]
  return float(-np.sum(shares_D * np.log(shares_D)))


def mix(
  method: str,
  target: Mean,
  sources: Sequence[Mean],
  bounds_S: np.ndarray | None = None,
  distributions: bool = True,
  resamples: int = 200,
  seed: int = 0,
  watch: similarity.Watch = similarity.ignore_progress,
) -> Mix:
  """Returns the most similar mix, and the bootstrap intervals of its weights.

  Args:
    method: one of METHODS.
    target, sources: their documents.
    bounds_S: largest weights; None for ones.
    distributions: whether the vectors are distributions, which `em` needs.
    resamples, seed: R resamples of the bootstrap, and its seed.
    watch: shows progress over the resamples.
  """
  target_D = target.compute()[0]
  means_SD = np.concatenate([source.compute() for source in sources])
  sizes_S = np.array([np.sum(source.tokens) for source in sources], np.float64)
  shares_S = sizes_S / sizes_S.sum()
  if method == 'proportional':
    best, found = Solved(shares_S, 0.0), [shares_S]
  else:
    best = solve(method, target_D, means_SD, bounds_S)
    target_RD, *means_RD = _resample(target, sources, resamples, seed)
    found = []
    for nth in watch(range(resamples)):
      drawn_SD = np.stack([mean_RD[nth] for mean_RD in means_RD])
      solved = solve(method, target_RD[nth], drawn_SD, bounds_S, best.weights)
      found.append(solved.weights)
  low_S, high_S = np.quantile(found, [0.025, 0.975], axis=0)

  def apart(mean_D):
    return distance(target_D, mean_D, distributions)

  return Mix(
    weights=best.weights,
    low=np.minimum(low_S, best.weights),
    high=np.maximum(high_S, best.weights),
    gap=best.gap,
    distances=np.array([apart(mean_D) for mean_D in means_SD]),
    distance=apart(best.weights @ means_SD),
    pooled=apart(shares_S @ means_SD),
  )


def _resample(
  target: Mean, sources: Sequence[Mean], resamples: int, seed: int
) -> list[np.ndarray]:
  """Returns resampled means of the target and of each source, [R, D] each."""
  rng = np.random.default_rng(seed)
  return [
    one.compute(rng.exponential(size=(resamples, len(one.tokens))))
    for one in (target, *sources)
  ]
