"""Means, medians and drops of persona scores, with their intervals.

The unit is a conversation, for its turns are not independent. The median is at
least m if at least half of all conversations score m or more, which Clopper and
Pearson's lower bound of that share shows.
"""

from collections.abc import Sequence
import math

import numpy as np

from kaiju_jax.reporting import statistics

# One-sided confidence of claims, and the power of `least_drop`.
CONFIDENCE, POWER = 0.95, 0.8


def share_at_least(values: Sequence[float], limit: float) -> float:
  """Returns a bound, at `CONFIDENCE`, of the share of values ≥ `limit`."""
  hits = sum(value >= limit for value in values)
  return statistics.at_least(hits, len(values), CONFIDENCE)


def rectified_mean(
  judged: Sequence[float], labelled: Sequence[tuple[float, float]]
) -> statistics.Estimate:
  """Returns the mean that human raters would give, from a judge's scores.

  It is the judge's mean plus the mean of (human − judge) on the conversations
  that people rated, with the variances added (prediction-powered inference,
  Angelopoulos et al., 2023).

  Args:
    judged: the judge's scores of all conversations.
    labelled: (human's, judge's) scores of those that people rated.

  Raises:
    ValueError: fewer than two of either.
  """
  from scipy import special

  judged = np.asarray(judged, float)
  pairs = np.asarray(labelled, float).reshape(-1, 2)
  if len(judged) < 2 or len(pairs) < 2:
    raise ValueError(
      f'{len(judged)} judged and {len(pairs)} labelled conversations: at least'
      ' two of each are needed.'
    )
  error = pairs[:, 0] - pairs[:, 1]
  middle = judged.mean() + error.mean()
  variance = judged.var(ddof=1) / len(judged) + error.var(ddof=1) / len(error)
  half = special.stdtrit(len(error) - 1, 0.975) * math.sqrt(variance)
  return statistics.Estimate(
    float(middle), float(middle - half), float(middle + half), len(judged)
  )


def least_drop(differences: Sequence[float]) -> float:
  """Returns the smallest true drop that so many pairs show, at `POWER`.

  It is (z₀.₉₅ + z_power) · sd / √n; NaN for fewer than two pairs.
  """
  from scipy import special

  found = np.asarray(differences, float)
  if len(found) < 2:
    return math.nan
  quantiles = special.ndtri(CONFIDENCE) + special.ndtri(POWER)
  return float(quantiles * found.std(ddof=1) / math.sqrt(len(found)))
