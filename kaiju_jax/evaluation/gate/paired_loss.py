"""Exact bounds of the right answers that a candidate loses, by question.

The baseline alone is right in `lost` of n questions, and the candidate alone in
`gained`; all others say nothing about a difference. The loss is

    P(only the baseline) − P(only the candidate).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kaiju_jax.reporting import statistics

CONFIDENCE = 0.95


class PairedLoss(NamedTuple):
  """A candidate's loss of right answers."""

  count: int  # Questions.
  # baseline, candidate: questions that each has right.
  baseline: int
  candidate: int
  lost: int  # Those that the baseline alone has right.
  gained: int  # Those that the candidate alone has right.

  @property
  def value(self) -> float:
    """The loss, as a fraction of the questions."""
    return (self.lost - self.gained) / self.count

  @property
  def low(self) -> float:
    """The lower bound of the loss, with confidence `CONFIDENCE`."""
    return self._bounds().low

  @property
  def high(self) -> float:
    """The upper bound of the loss, with confidence `CONFIDENCE`."""
    return self._bounds().high

  def _bounds(self) -> statistics.Interval:
    return statistics.paired_loss(
      self.lost, self.gained, self.count, CONFIDENCE
    )


def compare(baseline: Sequence[bool], candidate: Sequence[bool]) -> PairedLoss:
  """Returns the loss, from which questions each has right.

  Raises:
    ValueError: no question, or not the same number of answers.
  """
  ours, theirs = np.asarray(baseline, bool), np.asarray(candidate, bool)
  if ours.shape != theirs.shape or not ours.size:
    raise ValueError(
      f'{ours.size} and {theirs.size} answers: must be as many, and at least 1.'
    )
  return PairedLoss(
    ours.size,
    int(ours.sum()),
    int(theirs.sum()),
    int((ours & ~theirs).sum()),
    int((theirs & ~ours).sum()),
  )
