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
import functools
from typing import NamedTuple
import warnings

import numpy as np
from scipy import sparse
from scipy.cluster import vq

from kaiju_jax.data.curation import collections
from kaiju_jax.data.curation import settings as settings_lib
from kaiju_jax.data.curation import similarity
from kaiju_jax.reporting import figures
from kaiju_jax.reporting import report
from kaiju_jax.storage import folders

METHODS = ('importance', 'cosine')
CHOSEN = 'chosen.jsonl'
_CENTROIDS = 16


class Chosen(NamedTuple):
  """The documents that were chosen from a source."""

  indices: np.ndarray  # int64 [k], the documents' numbers, ascending.
  scores: np.ndarray  # float64 [N], the scores of all documents.


def importance(
  target: sparse.csr_array, source: sparse.csr_array
) -> np.ndarray:
  """Returns float64 [N], each document's log of t over r.

  `target` [M, D] and `source` [N, D] are n-gram counts of documents.
  """
  sums = [np.asarray(one.sum(axis=0), np.float64) for one in (target, source)]
  return np.asarray(source @ _log_ratios(*sums), np.float64)


def importance_of_texts(
  target: Sequence[str],
  source: Sequence[str],
  watch: similarity.Watch = similarity.ignore_progress,
) -> np.ndarray:
  """Returns `importance` of the source's texts; reads them twice.

  The n-grams of some thousand texts are in memory at a time.
  """
  sums = [
    sum(
      np.asarray(one.sum(axis=0), np.float64)
      for one in similarity.ngram_blocks(watch(texts))
    )
    for texts in (target, source)
  ]
  ratios = _log_ratios(*sums)
  scores = [one @ ratios for one in similarity.ngram_blocks(watch(source))]
  return np.concatenate(scores)


def _log_ratios(target: np.ndarray, source: np.ndarray) -> np.ndarray:
  """Returns float64 [D], ln t/r of summed n-gram counts; 0 without any."""
  counts = np.stack([target, source])
  pooled = counts.sum(axis=0) / counts.sum()
  totals = counts.sum(axis=1, keepdims=True)
  kinds = np.sum(counts > 0, axis=1, keepdims=True)
  shares = (counts + kinds * pooled) / (totals + kinds)
  seen = pooled > 0
  ratios = np.zeros(len(pooled))
  ratios[seen] = np.log(shares[0, seen] / shares[1, seen])
  return ratios


def cosine(
  target_ND: similarity.Embedded,
  source_ND: similarity.Embedded,
  seed: int = 0,
) -> np.ndarray:
  """Returns float64 [N], each document's log of target over source.

  Args:
    target_ND, source_ND: vectors of the documents.
    seed: of the clustering.
  """
  target_ND, source_ND = _units(target_ND), _units(source_ND)
  rng = np.random.default_rng(seed)
  found_N = _nearest(source_ND, target_ND, rng)
  # A document lies near the centroids that it was averaged into. So the
  # target's own cosines are taken of the half that made no centroid.
  order = rng.permutation(len(target_ND))
  half = max(1, len(order) // 2)
  fitted_ND, other_ND = target_ND[order[:half]], target_ND[order[-half:]]
  own_N = _nearest(other_ND, fitted_ND, rng)
  variance = max((own_N.var() + found_N.var()) / 2, 1e-6)
  apart = max(own_N.mean() - found_N.mean(), 0.0)
  middle = (own_N.mean() + found_N.mean()) / 2
  return (found_N - middle) * apart / variance


def _nearest(vectors_ND, made_of_ND, rng) -> np.ndarray:
  """Returns each vector's cosine to the nearest centroid of `made_of_ND`."""
  distinct_ND = np.unique(made_of_ND, axis=0)
  start = rng.permutation(len(distinct_ND))[:_CENTROIDS]
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
    noise, seed: factor and seed of the Gumbel noise; 0 chooses the k highest.
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


class Selection(NamedTuple):
  """The chosen documents."""

  source: collections.Collection  # The documents to choose from.
  chosen: Chosen  # The indices of the chosen ones, and all scores.
  method: str  # The method that was used.


def check(settings: settings_lib.SelectionSettings) -> None:
  """Refuses wrong flags or files, before any text is read.

  Raises:
    OSError, ValueError: names the flag, its value and what would be right.
  """
  figures.require_figures()
  if settings.method and settings.method not in METHODS:
    raise ValueError(
      f'--method={settings.method}: must be one of {", ".join(METHODS)}.'
    )
  if settings.method == 'importance' and settings.embedder != 'ngrams':
    raise ValueError(
      '--method=importance: counts n-grams and has no use for'
      f' --embedder={settings.embedder}; use cosine.'
    )
  if settings.count < 1:
    raise ValueError(f'--count={settings.count}: must be at least 1.')
  if not 0 <= settings.noise < np.inf:
    raise ValueError(f'--noise={settings.noise}: must be finite, at least 0.')
  collections.refuse_shared(
    settings.target, [('--source', settings.source)], '--target'
  )


def find(
  settings: settings_lib.SelectionSettings,
  embedder: similarity.Embedder,
  track: similarity.Track = similarity.ignore_progress,
) -> Selection:
  """Reads and scores the documents, and chooses among them.

  Raises:
    OSError, ValueError: the text is unusable.
  """
  method = settings.method or (
    'importance' if settings.embedder == 'ngrams' else 'cosine'
  )
  target = collections.collection('target', settings.target, '--target')
  source = collections.collection('source', settings.source, '--source')
  if settings.count > len(source.documents):
    raise ValueError(
      f'--count={settings.count}: must be at most {len(source.documents)}, the'
      f' documents in --source={settings.source!r}.'
    )
  watch = functools.partial(track, what='embedding documents')
  if method == 'importance':
    scores = importance_of_texts(
      collections.Texts(target), collections.Texts(source), watch
    )
  else:
    vectors = embedder.embed(collections.Texts(target, source), watch)
    split = len(target.documents)
    scores = cosine(vectors[:split], vectors[split:], seed=settings.seed)
  chosen = choose(scores, settings.count, settings.noise, settings.seed)
  return Selection(source, chosen, method)


def write(
  settings: settings_lib.SelectionSettings, result: Selection, out: str
) -> None:
  """Writes chosen.jsonl, report.md and scores.png into a new folder.

  Raises:
    OSError, ValueError: see `folders.write_whole`.
  """
  documents, scores = result.source.documents, result.chosen.scores
  with folders.write_whole(out) as folder:
    collections.write_lines(
      folder / CHOSEN,
      (
        (documents[one], {'score': round(float(scores[one]), 6)})
        for one in result.chosen.indices
      ),
    )
    page(settings, result).save(folder)


def page(
  settings: settings_lib.SelectionSettings, result: Selection
) -> report.Report:
  """Returns the report."""
  scores, indices = result.chosen.scores, result.chosen.indices
  order = indices[np.argsort(-scores[indices], kind='stable')]
  best = set(np.argsort(-scores, kind='stable')[: len(indices)].tolist())
  shared = len(best & set(indices.tolist()))
  sizes = np.array([len(x) for x in collections.Texts(result.source)])
  found = report.Report(
    f'{len(indices):,} documents of {settings.source} like {settings.target}'
  )
  found.say(
    f'{len(indices):,} of {len(scores):,} documents,'
    f' {sizes[indices].sum():,} of {sizes.sum():,} characters; the median is'
    f' {np.median(sizes[indices]):,.0f} characters among the chosen and'
    f' {np.median(sizes):,.0f} among all.'
    f' Method: {result.method}. Embedder: {settings.embedder}. Noise:'
    f' {settings.noise:g}, seed {settings.seed}: {shared:,} of them are also'
    f' among the {len(indices):,} highest scores.'
  )
  found.say(
    f'Median score of all documents {np.median(scores):.3f}, of the chosen'
    f' {np.median(scores[indices]):.3f}.'
  )
  found.table(
    [
      (result.source.documents[one].name, f'{scores[one]:.3f}')
      for one in order[:10]
    ],
    ('the highest scores among the chosen', 'score'),
  )
  found.figure('scores.png', _figure(result), 'Scores')
  return found


def _figure(result: Selection):
  scores = result.chosen.scores
  drawn = figures.figure(7.5, 3.6)
  axes = drawn.subplots()
  # A few extreme scores would leave one bar for all the others.
  low, high = np.quantile(scores, [0.005, 0.995])
  edges = np.linspace(low, max(high, low + 1e-6), 61)
  for values, color, label in (
    (scores, figures.GREY, 'all documents'),
    (scores[result.chosen.indices], figures.BLUE, 'chosen'),
  ):
    axes.hist(np.clip(values, low, high), edges, color=color, label=label)
  axes.set_yscale('log')
  axes.set_xlabel(f'score ({result.method})')
  axes.set_ylabel('documents')
  axes.spines[['top', 'right']].set_visible(False)
  axes.legend(frameon=False)
  return drawn
