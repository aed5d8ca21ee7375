"""Exact bounds of what a candidate loses on questions that both were asked.

The baseline alone is right in `lost` of n questions, and the candidate alone in
`gained`; all others say nothing about a difference. The loss is a difference of
two proportions of one sample,

    loss = P(only the baseline) − P(only the candidate),

and each lies within Clopper and Pearson's bounds (`serving/safety/exact.py`).
With half of the error for each, the difference of the bounds holds the loss
with the whole confidence, however the two depend on each other.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kaiju_jax.serving.safety import exact

CONFIDENCE = 0.95


class Loss(NamedTuple):
  """A candidate's loss of right answers.

  Attributes:
    count: questions.
    baseline, candidate: questions that each has right.
    lost: those that the baseline alone has right.
    gained: those that the candidate alone has right.
  """

  count: int
  baseline: int
  candidate: int
  lost: int
  gained: int

  @property
  def value(self) -> float:
    """The loss, as a fraction of the questions."""
    return (self.lost - self.gained) / self.count

  @property
  def low(self) -> float:
    """The lower bound of the loss, with confidence `CONFIDENCE`."""
    each = (1 + CONFIDENCE) / 2
    return exact.at_least(self.lost, self.count, each) - exact.at_most(
      self.gained, self.count, each
    )

  @property
  def high(self) -> float:
    """The upper bound of the loss, with confidence `CONFIDENCE`."""
    return -self._replace(lost=self.gained, gained=self.lost).low


def compare(baseline: Sequence[bool], candidate: Sequence[bool]) -> Loss:
  """Returns the loss, from which questions each has right.

  Raises:
    ValueError: no question, or not the same number of answers.
  """
  ours, theirs = np.asarray(baseline, bool), np.asarray(candidate, bool)
  if ours.shape != theirs.shape or not ours.size:
    raise ValueError(
      f'{ours.size} and {theirs.size} answers: must be as many, and at least 1.'
    )
  return Loss(
    ours.size,
    int(ours.sum()),
    int(theirs.sum()),
    int((ours & ~theirs).sum()),
    int((theirs & ~ours).sum()),
  )
