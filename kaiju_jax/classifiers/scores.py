"""A classifier's scores of labelled texts, and their margins over thresholds.

The classifier is the gate, the token-level head, or both as a server runs them
on a prompt. It has a score per dimension. A text's margin is the largest
distance, over dimensions and in logits, of its scores above the thresholds that
are served to a tier; from 0 on the text is refused.
"""

from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import numpy as np
import scipy.special

from kaiju_jax.classifiers import hidden_states
from kaiju_jax.classifiers import rows as rows_lib
from kaiju_jax.classifiers import train_gate
from kaiju_jax.classifiers import train_head
from kaiju_jax.classifiers import two_sets
from kaiju_jax.serving.safety import moderation
from kaiju_jax.serving.safety import thresholds


class Scores(NamedTuple):
  """A classifier's scores of labelled texts."""

  version: str  # The classifier's version.
  rows: rows_lib.Rows  # N texts; label 0 says whether a text is adversarial.
  # By stage ('gate', 'head'), the thresholds that are served and float64 [N, C]
  # probabilities.
  stages: Mapping[str, tuple[thresholds.Stage, np.ndarray]]

  def margins(self, tier: str) -> np.ndarray:
    """Returns float64 [N], each text's margin; infinite for a score of NaN."""
    found = []
    for stage, score_NC in self.stages.values():
      high_C = np.array([x.high for x in stage.for_tier(tier).limits])
      margin_NC = scipy.special.logit(score_NC) - scipy.special.logit(high_C)
      found.append(np.where(np.isnan(score_NC), np.inf, margin_NC).max(axis=1))
    return np.max(found, axis=0)

  def find_refused(self, tier: str) -> np.ndarray:
    """Returns bool [N], the texts that the served thresholds refuse."""
    found = []
    for stage, score_NC in self.stages.values():
      high_C = [x.high for x in stage.for_tier(tier).limits]
      found.append((~(score_NC < np.array(high_C))).any(axis=1))
    return np.any(found, axis=0)

  def join(self, other: 'Scores') -> 'Scores':
    """Returns the scores of both, the other's behind these."""
    rows = self.rows.rows + other.rows.rows
    return Scores(
      self.version,
      rows_lib.Rows(self.rows.names, rows),
      {
        name: (stage, np.concatenate([score_NC, other.stages[name][1]]))
        for name, (stage, score_NC) in self.stages.items()
      },
    )

  def of_tier(self, tier: str) -> np.ndarray:
    """Returns bool [N], the texts that speak for a tier."""
    return np.array([tier in row.tiers for row in self.rows.rows], bool)

  @property
  def is_adversarial_N(self) -> np.ndarray:
    """The texts' label, bool [N]."""
    return self.rows.label_NC[:, 0]

  def sides(self) -> dict[str, np.ndarray]:
    """Returns bool [N] by the name of a set: the texts that belong to it."""
    return {
      two_sets.ADVERSARIAL: self.is_adversarial_N,
      two_sets.BENIGN: ~self.is_adversarial_N,
    }


def score(
  version: moderation.Version,
  rows: rows_lib.Rows,
  which: str = 'gate',
  reader: hidden_states.Reader | None = None,
  head: Any = None,
) -> Scores:
  """Returns a classifier's scores.

  With the head alone, a text counts in its less favourable role, prompt or
  reply, as in the head's certificate. With both stages it is a prompt, because
  the gate reads no replies.

  Args:
    version: a folder's gate and thresholds.
    rows: the texts; label 0 says which are adversarial.
    which: 'gate', 'head' or 'both'.
    reader: of the model whose hidden states the head reads; None for 'gate'.
    head: the head's parameters and config; None for 'gate'.

  Raises:
    ValueError: the folder has no thresholds for this head.
  """
  stages = {}
  if which != 'head':
    score_NC = train_gate.score_rows(version.gate, rows)
    stages['gate'] = version.policy.gate, score_NC
  if which != 'gate':
    if reader is None or head is None or version.policy.head is None:
      raise ValueError(
        f'{version.folder}: has no thresholds of a token-level head, or no'
        ' model is given.'
      )
    params, config = head
    found = moderation.head_version(params, config.names)
    thresholds.check_classifier(
      version.policy.head, 'head', found, config.names
    )
    read = train_head.read(reader, head, rows)
    score_NC = (
      read.highest('prompt') if which == 'both' else read.take_worst().score_NC
    )
    stages['head'] = version.policy.head, score_NC
  name = ' '.join(stage.version for stage, _ in stages.values())
  return Scores(name, rows, stages)
