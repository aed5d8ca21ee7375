"""Differences of two models' next tokens on the same texts.

KL(baseline ‖ candidate) is in nats per token. A token counts for the class of
what it predicts: the first token of a reply belongs to the character.
"""

from collections.abc import Iterable
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from kaiju_jax.evaluation.gate import golden_tokens

ALL = 'all'


class Differences(NamedTuple):
  """The differences at each predicted token of a text."""

  kl_L: np.ndarray  # KL(baseline ‖ candidate), nats.
  # baseline_loss_L, candidate_loss_L: nats.
  baseline_loss_L: np.ndarray
  candidate_loss_L: np.ndarray
  # Where the likeliest token differs, by how many nats the baseline prefers its
  # own to the candidate's; −1 where it is the same.
  margin_L: np.ndarray


class Summary(NamedTuple):
  """The differences of a group of tokens."""

  count: int  # Tokens.
  kl: float  # The mean KL, nats per token.
  kl_p99: float  # The 99th percentile of KL.
  agreement: float  # The share of tokens whose likeliest token is the same.
  # The largest preference of the baseline's, in nats, that the candidate
  # overturned; 0 where none is.
  margin: float
  loss: float  # The candidate's mean loss minus the baseline's, nats per token.


def compare(
  baseline: Iterable[np.ndarray],
  candidate: Iterable[np.ndarray],
  tokens_L: np.ndarray,
) -> Differences:
  """Compares two models' logits of one text.

  Args:
    baseline, candidate: parts [≤ L, V] of the logits, in the same parts.
    tokens_L: the text's tokens.
  """
  parts, done = [], 0
  for ours_LV, theirs_LV in zip(baseline, candidate, strict=True):
    next_L = tokens_L[done + 1 : done + 1 + len(ours_LV)]
    done += len(ours_LV)
    count = len(next_L)
    parts.append(_compare(ours_LV[:count], theirs_LV[:count], next_L))
  return Differences(*map(np.concatenate, zip(*parts)))


def summarize(differences: Sequence[Differences]) -> Summary:
  """Returns the figures of several texts' tokens together."""
  kl, baseline, candidate, margin = (
    np.concatenate(one) for one in zip(*differences)
  )
  is_other = margin >= 0
  return Summary(
    len(kl),
    float(kl.mean()),
    float(np.quantile(kl, 0.99)),
    float((~is_other).mean()),
    float(margin[is_other].max(initial=0.0)),
    float((candidate - baseline).mean()),
  )


def group(
  read: Sequence[tuple[golden_tokens.GoldenTokens, Differences]],
) -> dict[tuple[str, str, str], Summary]:
  """Returns summaries by (class, tier, language), with `ALL` for all of them.

  A language or a tier that all texts have gets no group of its own.
  """
  found: dict[tuple[str, str, str], list[Differences]] = {}
  for text, one in read:
    predicted_L = text.classes_L[1:]
    for index, name in enumerate(golden_tokens.CLASSES):
      part = Differences(*(x[predicted_L == index] for x in one))
      keys = (
        (name, ALL, ALL),
        (name, text.tier, ALL),
        (name, ALL, text.language),
      )
      for key in keys:
        found.setdefault(key, []).append(part)
  tiers, languages = (
    {getattr(text, field) for text, _ in read} for field in ('tier', 'language')
  )
  return {
    key: summarize(parts)
    for key, parts in sorted(found.items())
    if (key[1] == ALL or len(tiers) > 1)
    and (key[2] == ALL or len(languages) > 1)
    and sum(len(one.kl_L) for one in parts)
  }


def _compare(ours_LV, theirs_LV, next_L) -> Differences:
  ours_LV, theirs_LV = (
    special.log_softmax(x.astype(np.float64), axis=-1)
    for x in (ours_LV, theirs_LV)
  )
  with np.errstate(invalid='ignore'):
    terms_LV = np.exp(ours_LV) * (ours_LV - theirs_LV)
  # Where the baseline gives nothing, nothing is lost.
  terms_LV[np.isneginf(ours_LV)] = 0
  at = np.arange(len(next_L))
  own_L, other_L = ours_LV.argmax(-1), theirs_LV.argmax(-1)
  margin_L = ours_LV[at, own_L] - ours_LV[at, other_L]
  return Differences(
    terms_LV.sum(-1),
    -ours_LV[at, next_L],
    -theirs_LV[at, next_L],
    np.where(own_L == other_L, -1.0, margin_L),
  )
