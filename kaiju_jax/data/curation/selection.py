"""Draws documents of a source that resemble a target, without replacement.

A document has one of two scores:

    importance  Σ_j n_j ln(t_j / r_j), with its n-gram counts n and the n-gram
                distributions t of the target and r of the source: how much more
                likely the document is in the target (DSIR, arXiv 2302.03169)
    cosine      c to the nearest of 16 centroids of the target's vectors, as
                the same logarithm for two normal distributions of one
                variance: (c − (m_t + m_r)/2) · (m_t − m_r)/σ²

The k documents with the largest score + noise · G are chosen, where the G are
independent Gumbel variables. This draws k documents without replacement, one
after another in proportion to exp(score / noise). With noise 0 it would choose
only the documents that resemble the target most, which are much alike.

An importance grows in magnitude with the document's length. Among documents
that are less likely in the target than in the source, short ones therefore come
first. Compare documents of similar length; the report gives the lengths of the
chosen ones.

Our guess: the noise of 1, the 16 centroids, and the weight of a cosine. So that
no ratio is infinite, both distributions of n-grams are smoothed with the pooled
distribution. The share of the pool grows with the variety of the n-grams
(Witten and Bell 1991).
"""

from collections.abc import Sequence
from typing import NamedTuple
import warnings

import numpy as np
from scipy import sparse
from scipy.cluster import vq

from kaiju_jax.data import similarity

CENTROIDS = 16


class Chosen(NamedTuple):
  """The documents that were chosen from a source."""

  indices: np.ndarray  # int64 [k], the documents' numbers, ascending.
  scores: np.ndarray  # float64 [N], the scores of all documents.


def importance(
  target: sparse.csr_array, source: sparse.csr_array
) -> np.ndarray:
  """Returns float64 [N], each document's log of t over r.

  Args:
    target: [M, D], n-gram counts of the target's documents.
    source: [N, D], n-gram counts of the source's documents.
  """
  counts = np.stack(
    [np.asarray(one.sum(axis=0), np.float64) for one in (target, source)]
  )
  pooled = counts.sum(axis=0) / counts.sum()
  totals = counts.sum(axis=1, keepdims=True)
  kinds = np.sum(counts > 0, axis=1, keepdims=True)
  shares = (counts + kinds * pooled) / (totals + kinds)
  seen = pooled > 0
  ratios = np.zeros(len(pooled))
  ratios[seen] = np.log(shares[0, seen] / shares[1, seen])
  return np.asarray(source @ ratios, np.float64)


def cosine(
  target_ND: similarity.Embedded,
  source_ND: similarity.Embedded,
  centroids: int = CENTROIDS,
  seed: int = 0,
) -> np.ndarray:
  """Returns float64 [N], each document's log of target over source.

  Args:
    target_ND: vectors of the target's documents.
    source_ND: vectors of the source's documents.
    centroids: most centroids; fewer where the target has fewer documents.
    seed: seed of the clustering.
  """
  target_ND, source_ND = _units(target_ND), _units(source_ND)
  rng = np.random.default_rng(seed)
  found_N = _nearest(source_ND, target_ND, centroids, rng)
  # A document lies near the centroids that it was averaged into. So the
  # target's own cosines are taken of the half that made no centroid.
  order = rng.permutation(len(target_ND))
  half = max(1, len(order) // 2)
  fitted_ND, other_ND = target_ND[order[:half]], target_ND[order[-half:]]
  own_N = _nearest(other_ND, fitted_ND, centroids, rng)
  variance = max((own_N.var() + found_N.var()) / 2, 1e-6)
  apart = max(own_N.mean() - found_N.mean(), 0.0)
  middle = (own_N.mean() + found_N.mean()) / 2
  return (found_N - middle) * apart / variance


def _nearest(vectors_ND, made_of_ND, centroids: int, rng) -> np.ndarray:
  """Returns each vector's cosine to the nearest centroid of `made_of_ND`."""
  distinct_ND = np.unique(made_of_ND, axis=0)
  start = rng.permutation(len(distinct_ND))[:centroids]
  with warnings.catch_warnings():
    # A cluster that loses all its documents keeps its centroid.
    warnings.simplefilter('ignore', UserWarning)
    centers_CD, _ = vq.kmeans2(made_of_ND, distinct_ND[start], minit='matrix')
  return np.max(vectors_ND @ _units(centers_CD).T, axis=1)


def _units(vectors_ND: similarity.Embedded) -> np.ndarray:
  """Returns float64 rows of length 1; rows of zeros stay."""
  if sparse.issparse(vectors_ND):
    vectors_ND = vectors_ND.toarray()
  vectors_ND = np.asarray(vectors_ND, np.float64)
  lengths = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
  return vectors_ND / np.maximum(lengths, 1e-12)


def choose(
  scores: Sequence[float],
  count: int,
  noise: float = 1.0,
  seed: int = 0,
  field: str = '--count',
) -> Chosen:
  """Returns `count` documents, drawn in proportion to exp(score / noise).

  Args:
    scores: one per document.
    count: k, how many are chosen.
    noise: the factor of the Gumbel noise; 0 for the k highest scores.
    seed: seed of the noise.
    field: the name of `count` in errors.

  Raises:
    ValueError: a count below 1 or above the documents, or a negative noise.
  """
  scores = np.asarray(scores, np.float64)
  if not 1 <= count <= len(scores):
    raise ValueError(
      f'{field}={count}: must be 1…{len(scores)}, the documents of the source.'
    )
  if not noise >= 0:
    raise ValueError(f'--noise={noise}: must be at least 0.')
  rng = np.random.default_rng(seed)
  noisy = scores + noise * rng.gumbel(size=len(scores))
  chosen = np.argpartition(-noisy, count - 1)[:count]
  return Chosen(np.sort(chosen), scores)
