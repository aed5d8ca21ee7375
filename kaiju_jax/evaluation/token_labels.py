"""Measures how well a token-level head ranks tokens that are labelled by spans.

AUROC is the probability that a labelled token has a higher score than one in no
span, a tie counting as half. With mean ranks from 1 on, and n labelled of the N
tokens whose labels have weights,

    AUROC = (Σ rank of labelled tokens − n·(n + 1) / 2) / (n·(N − n))

The delay of a span is the number of tokens from its last one to the first one,
at or behind its first, whose score is above a threshold; 0 if that comes before
it ends. Spans that touch count as one. Our guess: at most .1 % of the
unlabelled tokens are above the threshold.

The expected calibration error (Naeini et al. 2015; Guo et al. 2017) is, over
bins of equal width of the probability p that a token is labelled,

    ECE = Σ over bins b of  n_b/N · |mean of p in b − labelled share of b|

A head that was trained with weights w₁ of labelled tokens and w₀ of others
gives their log-odds + log(w₁/w₀), so that p = σ(logit − log(w₁/w₀)).
"""

from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import jax
import numpy as np
from scipy import special
from scipy import stats

from kaiju_jax.data import loader
from kaiju_jax.data import spans
from kaiju_jax.model import batches
from kaiju_jax.model import token_head
from kaiju_jax.model import transformer

# The most of the unlabelled tokens that are above a threshold.
_ABOVE = 1e-3
# The share of the labelled tokens at which false alarms are counted.
RECALL = 0.99
_BINS = 15


class Scored(NamedTuple):
  """The scores of S tokens, document after document."""

  score_SC: np.ndarray
  label_SC: np.ndarray  # Whether each token is in a span.
  # The weight of its label; 0 for a token without a rank.
  weight_SC: np.ndarray
  begin_S: np.ndarray  # Whether each token is a document's first.


class Measured(NamedTuple):
  """How a head ranks the tokens of one dimension."""

  spans: int
  # Number of tokens that are labelled, and whose labels have weights.
  tokens: int
  auroc: float  # See the module.
  threshold: float  # The logit above which a token counts as recognized.
  delays: np.ndarray  # int64 [recognized spans], in tokens.
  error: float  # The expected calibration error.
  # Unlabelled tokens that score at least as high as the lowest of the highest
  # 99 % of the labelled ones, and the number of unlabelled tokens.
  alarms: tuple[int, int]

  def count_within(self, most: int) -> int:
    """Returns the spans that are recognized with a delay of at most `most`."""
    return int((self.delays <= most).sum())


def score(
  model: transformer.Transformer,
  params: Any,
  config: token_head.TokenHeadConfig,
  source: loader.RowSource,
  batch: int,
) -> Scored:
  """Returns a head's scores of all tokens of an epoch's rows.

  Args:
    params: its parameters, with the head's under 'token_head'.
    config: the head's dimensions.
    source: rows whose documents are whole, with labels (`data/spans.py`).
  """
  head = token_head.TokenHead(config)

  @jax.jit
  def logits(params, rows):
    hidden_BLD = batches.hidden(model, {'params': params}, rows)
    return head.apply({'params': params['token_head']}, hidden_BLD)

  parts = zip(*_parts(lambda rows: logits(params, rows), source, batch))
  return Scored(*map(np.concatenate, parts))


def _parts(logits, source, batch: int) -> Iterator[tuple]:
  """Yields the fields of `Scored` of each batch's tokens, without padding."""
  for rows in loader.epoch(source, batch):
    is_token_BL = rows.source_BL >= 0
    begin_BL = np.diff(rows.source_BL, axis=1, prepend=-2) != 0
    yield (
      np.asarray(logits(rows))[is_token_BL],
      rows.extras[spans.LABEL][is_token_BL] > 0,
      rows.extras[spans.WEIGHT][is_token_BL],
      begin_BL[is_token_BL],
    )


def measure(scored: Scored, dimension: int) -> Measured:
  """Returns how a head ranks the tokens of a dimension, an index of C.

  Raises:
    ValueError: no token is labelled, or all are.
  """
  score_S = scored.score_SC[:, dimension]
  label_S = scored.label_SC[:, dimension]
  weight_S = scored.weight_SC[:, dimension]
  known_S = weight_S > 0
  found = auroc(score_S[known_S], label_S[known_S])
  labelled_S = score_S[known_S & label_S]
  other_S = score_S[known_S & ~label_S]
  least = np.sort(labelled_S)[int((1 - RECALL) * len(labelled_S))]
  threshold = np.quantile(score_S[~label_S], 1 - _ABOVE, method='higher')
  delays, count = [], 0
  document_S = np.cumsum(scored.begin_S)
  for first, end in find_runs(label_S, scored.begin_S):
    count += 1
    behind = np.searchsorted(document_S, document_S[first], 'right')
    above = np.flatnonzero(score_S[first:behind] > threshold)
    if len(above):
      delays.append(max(0, first + int(above[0]) - (end - 1)))
  return Measured(
    count,
    int((label_S & known_S).sum()),
    found,
    float(threshold),
    np.array(delays, np.int64),
    _calibration_error(score_S[known_S], label_S[known_S], weight_S[known_S]),
    (int((other_S >= least).sum()), len(other_S)),
  )


def _calibration_error(
  score_S: np.ndarray, label_S: np.ndarray, weight_S: np.ndarray
) -> float:
  """Returns the expected calibration error; see the module."""
  shift = np.log(weight_S[label_S].mean() / weight_S[~label_S].mean())
  p_S = special.expit(score_S.astype(np.float64) - shift)
  bin_S = np.minimum((p_S * _BINS).astype(int), _BINS - 1)
  excess_S = np.bincount(bin_S, p_S - label_S, minlength=_BINS)
  return float(np.abs(excess_S).sum() / len(p_S))


def auroc(score_S: np.ndarray, label_S: np.ndarray) -> float:
  """Returns the area under the curve of true and false positives, exactly.

  Raises:
    ValueError: no token is labelled, or all are; or a score is NaN.
  """
  labelled, total = int(label_S.sum()), len(label_S)
  if not 0 < labelled < total:
    raise ValueError(
      f'{labelled} of {total} tokens are labelled: AUROC needs both kinds.'
    )
  if np.isnan(score_S).any():
    raise ValueError('a score is NaN, which has no rank.')
  ranks_S = stats.rankdata(score_S)
  above = ranks_S[label_S].sum() - labelled * (labelled + 1) / 2
  return float(above / (labelled * (total - labelled)))


def find_runs(
  label_S: np.ndarray, begin_S: np.ndarray
) -> list[tuple[int, int]]:
  """Returns (first, one past the last) of each run of labelled tokens.

  Args:
    label_S: whether each token is labelled.
    begin_S: whether each token is a document's first; it continues no run.
  """
  before_S = np.concatenate([[False], label_S[:-1]]) & ~begin_S
  firsts = np.flatnonzero(label_S & ~before_S)
  goes_on_S = np.concatenate([label_S[1:] & ~begin_S[1:], [False]])
  ends = np.flatnonzero(label_S & ~goes_on_S) + 1
  return list(zip(firsts.tolist(), ends.tolist()))
