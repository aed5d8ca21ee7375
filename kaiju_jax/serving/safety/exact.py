"""Exact confidence bounds of a proportion, computed from a sample.

Clopper and Pearson (1934): if k of n independent trials hit, the true
proportion is, one-sided and with confidence γ,

    at least  the p with P(X ≥ k | p) = 1 − γ, quantile 1 − γ of Beta(k, n−k+1)
    at most   the p with P(X ≤ k | p) = 1 − γ, quantile γ of Beta(k+1, n−k)

Claims about safety use these bounds because they are never too narrow, unlike
Wilson's interval (`reporting/statistics.py`).
"""

import math

import scipy.special


def at_least(hits: int, trials: int, confidence: float) -> float:
  """Returns the lower bound of the proportion; 0 where nothing hit.

  Raises:
    ValueError: names the argument, its value and what would be right.
  """
  _check(hits, trials, confidence)
  if not hits:
    return 0.0
  return float(
    scipy.special.betaincinv(hits, trials - hits + 1, 1 - confidence)
  )


def at_most(hits: int, trials: int, confidence: float) -> float:
  """Returns the upper bound of the proportion; 1 where everything hit.

  Raises:
    ValueError: see `at_least`.
  """
  _check(hits, trials, confidence)
  return 1 - at_least(trials - hits, trials, confidence)


def count_needed(claim: float, confidence: float) -> int:
  """Returns how many trials without a hit prove a proportion ≤ `claim`.

  Raises:
    ValueError: names the argument, its value and what would be right.
  """
  for name, value in ('claim', claim), ('confidence', confidence):
    if not 0 < value < 1:
      raise ValueError(f'{name}={value}: must lie between 0 and 1.')
  trials = max(1, int(math.log(1 - confidence) / math.log1p(-claim)))
  while at_most(0, trials, confidence) > claim:
    trials += 1
  return trials


def count_for_power(
  rate: float, claim: float, confidence: float, power: float
) -> int:
  """Returns how many trials prove a proportion ≤ `claim` most of the time.

  Args:
    rate: the true proportion, below `claim`.
    claim: the proportion to prove.
    confidence: of the bound.
    power: the wanted probability that the bound proves it.

  Raises:
    ValueError: names the argument, its value and what would be right.
  """
  if not 0 <= rate < claim:
    raise ValueError(f'rate={rate}: must be at least 0, and below {claim}.')
  if not 0 < power < 1:
    raise ValueError(f'power={power}: must lie between 0 and 1.')
  trials = count_needed(claim, confidence)
  hits = 0
  # The fewest trials in which so many hits still prove the claim.
  while scipy.special.bdtr(hits, trials, rate) < power:
    hits += 1
    while at_most(hits, trials, confidence) > claim:
      trials += 1
  return trials


def _check(hits: int, trials: int, confidence: float) -> None:
  if trials < 1 or not 0 <= hits <= trials:
    raise ValueError(
      f'{hits} of {trials}: needs at least one trial, and hits in 0…{trials}.'
    )
  if not 0 < confidence < 1:
    raise ValueError(f'confidence={confidence}: must lie between 0 and 1.')
