"""Confidence intervals, bounds and tests: the one place that computes them.

Wilson's score interval (1927) holds a proportion p = hits / n. Unlike the
normal approximation it also holds near 0 and 1:

    (p + z²/2n ± z·√(p(1 − p)/n + z²/4n²)) / (1 + z²/n)

Newcombe's interval (1998, method 10) holds the difference of two independent
proportions and is made of their Wilson intervals (l₁, u₁) and (l₂, u₂):

    p₁ − p₂ − √((p₁ − l₁)² + (u₂ − p₂)²)
    p₁ − p₂ + √((u₁ − p₁)² + (p₂ − l₂)²)

If both answer the same questions, and find the same ones hard, the difference
is more certain than that.

Clopper and Pearson's bounds (1934) are exact: with confidence γ, one-sided, a
proportion of which k of n independent trials hit is

    at least  the p with P(X ≥ k | p) = 1 − γ, quantile 1 − γ of Beta(k, n−k+1)
    at most   the p with P(X ≤ k | p) = 1 − γ, quantile γ of Beta(k+1, n−k)

Claims about safety use them, because they are never too narrow.

Means have t intervals, or bootstrap intervals: bias-corrected and accelerated
(BCa; Efron, 1987), or percentiles.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import math
import statistics
from typing import Any
from typing import NamedTuple
from typing import Self

import numpy as np

# scipy is imported where it is used: it takes longer than all else here.

RESAMPLES = 10_000
_Z = 1.959963984540054  # Two-sided 95 % quantile of the normal distribution.


class Interval(NamedTuple):
  """A confidence interval, of 95 % unless said otherwise."""

  low: float
  high: float


class Share(NamedTuple):
  """A proportion; prints itself in percent, with Wilson's interval."""

  hits: int
  count: int

  def __str__(self) -> str:
    if not self.count:
      return '—'
    low, high = wilson(*self)
    share = self.hits / self.count
    return f'{100 * share:.1f} % ({100 * low:.0f} … {100 * high:.0f})'


class Estimate(NamedTuple):
  """A number with its interval; prints itself with two decimals."""

  value: float | None  # The number; None or NaN where nothing was measured.
  # The interval's ends; None or NaN where there is none.
  low: float | None
  high: float | None
  count: int = 0  # The number of values behind it.

  @classmethod
  def read(cls, data: Mapping[str, Any]) -> Self:
    """Returns the estimate of plain data with its fields."""
    return cls(data['value'], data['low'], data['high'])

  def __str__(self) -> str:
    if self.value is None or math.isnan(self.value):
      return '–'
    if self.low is None or math.isnan(self.low):
      return f'{self.value:.2f}'
    return f'{self.value:.2f} ({self.low:.2f}–{self.high:.2f})'


def wilson(hits: int, count: int) -> Interval:
  """Returns the interval of a proportion, within 0 and 1.

  Raises:
    ValueError: more hits than trials, or no trial.
  """
  _check_hits(hits, count)
  p = hits / count
  square = _Z * _Z / count
  middle = p + square / 2
  half = math.sqrt(p * (1 - p) * square + square * square / 4)
  # The ends are 0 and 1 exactly where nothing hits, or all.
  low = 0.0 if hits == 0 else (middle - half) / (1 + square)
  high = 1.0 if hits == count else (middle + half) / (1 + square)
  return Interval(low, high)


def newcombe(
  first: tuple[int, int], second: tuple[int, int]
) -> tuple[float, Interval]:
  """Returns p₁ − p₂ of two (hits, count), and its interval.

  Raises:
    ValueError: see `wilson`.
  """
  (low_1, high_1), (low_2, high_2) = wilson(*first), wilson(*second)
  p_1, p_2 = first[0] / first[1], second[0] / second[1]
  d = p_1 - p_2
  return d, Interval(
    d - math.hypot(p_1 - low_1, high_2 - p_2),
    d + math.hypot(high_1 - p_1, p_2 - low_2),
  )


def at_least(hits: int, count: int, confidence: float) -> float:
  """Returns the exact lower bound of a proportion; 0 where nothing hit.

  Raises:
    ValueError: names the argument, its value and what would be right.
  """
  from scipy import special

  _check_hits(hits, count)
  _check_share('confidence', confidence)
  if not hits:
    return 0.0
  return float(special.betaincinv(hits, count - hits + 1, 1 - confidence))


def at_most(hits: int, count: int, confidence: float) -> float:
  """Returns the exact upper bound; 1 where everything hit.

  Raises:
    ValueError: see `at_least`.
  """
  _check_hits(hits, count)
  return 1 - at_least(count - hits, count, confidence)


def paired_loss(
  lost: int, gained: int, count: int, confidence: float
) -> Interval:
  """Returns exact bounds of (lost − gained) / count, of one sample.

  Each proportion lies within Clopper and Pearson's bounds. With half of the
  error for each, the difference of the bounds holds the loss with the whole
  confidence, however the two depend on each other.

  Args:
    lost: trials that the first alone hits.
    gained: trials that the second alone hits.
    count: all trials.
    confidence: two-sided.
  """
  each = (1 + confidence) / 2
  return Interval(
    at_least(lost, count, each) - at_most(gained, count, each),
    at_most(lost, count, each) - at_least(gained, count, each),
  )


def count_needed(claim: float, confidence: float) -> int:
  """Returns how many trials without a hit prove a proportion ≤ `claim`.

  Raises:
    ValueError: names the argument, its value and what would be right.
  """
  _check_share('claim', claim)
  _check_share('confidence', confidence)
  count = max(1, int(math.log(1 - confidence) / math.log1p(-claim)))
  while at_most(0, count, confidence) > claim:
    count += 1
  return count


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
  from scipy import special

  if not 0 <= rate < claim:
    raise ValueError(f'rate={rate}: must be at least 0, and below {claim}.')
  _check_share('power', power)
  count = count_needed(claim, confidence)
  hits = 0
  # The fewest trials in which so many hits still prove the claim.
  while special.bdtr(hits, count, rate) < power:
    hits += 1
    while at_most(hits, count, confidence) > claim:
      count += 1
  return count


def mcnemar(gained: int, lost: int) -> float:
  """Returns the two-sided p of two counts of discordant pairs, exactly.

  Under equal rates each pair falls on either side with probability ½ (McNemar,
  1947, with the binomial distribution).
  """
  from scipy import special

  count = gained + lost
  half = special.bdtr(min(gained, lost), count, 0.5) if count else 0.5
  return float(min(1.0, 2 * half))


def bootstrap(
  samples: Sequence[np.ndarray],
  statistic: Callable[..., Any],
  method: str = 'BCa',
  seed: int = 0,
  resamples: int = RESAMPLES,
  level: float = 0.95,
) -> Interval:
  """Returns the bootstrap interval of a statistic of paired samples.

  Args:
    samples: arrays [N] whose elements are drawn together.
    statistic: (samples, …, axis) → their statistic along the axis.
    method: 'BCa' or 'percentile'.
    seed: seed of the resampling.
    resamples: their number.
    level: the two-sided confidence.
  """
  from scipy import stats

  found = stats.bootstrap(
    samples,
    statistic,
    paired=len(samples) > 1,
    n_resamples=resamples,
    confidence_level=level,
    method=method,
    rng=np.random.default_rng(seed),
  ).confidence_interval
  return Interval(float(found.low), float(found.high))


def bootstrap_mean(
  values: Sequence[float],
  seed: int = 0,
  resamples: int = RESAMPLES,
  level: float = 0.95,
) -> Estimate:
  """Returns the mean of values with its BCa interval.

  Where all values are equal, to 1e-9, so are the ends: the sample then says
  nothing about how values spread. Fewer than two values have no interval.
  """
  found = np.asarray(values, float)
  if not len(found):
    return Estimate(math.nan, math.nan, math.nan, 0)
  middle, low, high = float(found.mean()), math.nan, math.nan
  if len(found) > 1:
    low = high = middle
    if np.ptp(found) >= 1e-9:
      low, high = bootstrap((found,), np.mean, 'BCa', seed, resamples, level)
  return Estimate(middle, low, high, len(found))


def percentiles(draws: Sequence[float]) -> tuple[float, float]:
  """Returns the 95 % interval of draws, NaN where there are none."""
  if not len(draws):
    return math.nan, math.nan
  low, high = np.quantile(draws, [0.025, 0.975])
  return float(low), float(high)


def mean(values: Sequence[float]) -> float:
  """Returns the mean; NaN for no values."""
  return statistics.fmean(values) if values else math.nan


def spread(values: Sequence[float]) -> float:
  """Returns the sample standard deviation; NaN for fewer than two values."""
  if len(values) < 2 or not all(map(math.isfinite, values)):
    return math.nan
  return statistics.stdev(values)


def half_width(values: Sequence[float]) -> float:
  """Returns half the 95 % t-interval of the mean; NaN for one value."""
  from scipy import special

  if len(values) < 2:
    return math.nan
  t = float(special.stdtrit(len(values) - 1, 0.975))
  return t * spread(values) / math.sqrt(len(values))


@dataclasses.dataclass(frozen=True)
class Difference:
  """A contrast of arms, such as an arm minus its baseline; prints itself."""

  mean: float
  error: float  # Standard error of the mean; NaN for too few seeds.
  freedom: float  # Degrees of freedom of the error.
  seeds: int  # Number of seeds that all arms have.
  how: str  # 'paired', 'Welch', or 'too few' where there is no interval.
  baseline: float = math.nan  # Mean of the baseline over the same seeds.

  @property
  def half_width(self) -> float:
    """Half the width of the 95 % t-interval; NaN for too few seeds."""
    return self._critical(0.05) * self.error

  @property
  def p(self) -> float:
    """The two-sided p of no difference; NaN for too few seeds."""
    from scipy import special

    if not self.error:
      return float(not self.mean)
    return 2 * float(special.stdtr(self.freedom, -abs(self.mean / self.error)))

  def detectable(self, compared: int = 1, power: float = 0.8) -> float:
    """Returns the smallest true difference that the design mostly shows.

    A t-test at level 5 % ÷ `compared` shows it with probability `power` if the
    error is as estimated: δ = λ · error, with the λ for which the noncentral
    t(df, λ) is above the critical t with that probability (Cohen, Statistical
    Power Analysis, 1988, ch. 2; λ ≈ t(1 − α/2) + t(power)).

    Args:
      compared: how many differences share the 5 %, as Holm's first step has it.
      power: the wanted probability.
    """
    from scipy import special

    critical = self._critical(0.05 / compared)
    shift = special.nctdtrinc(self.freedom, 1 - power, critical)
    return float(shift) * self.error

  def _critical(self, level: float) -> float:
    """Returns the two-sided critical t."""
    from scipy import special

    return float(special.stdtrit(self.freedom, 1 - level / 2))

  def __str__(self) -> str:
    return self._show(1.0, '+.4f', none=f' (no interval: {self.how} seeds)')

  @property
  def relative(self) -> str:
    """The difference in % of the baseline, with its interval."""
    return self._show(100 / self.baseline, '+.2f', ' %')

  def _show(self, scale: float, form: str, unit: str = '', none='') -> str:
    """Returns mean and interval, or the mean and `none`."""
    middle, half = scale * self.mean, abs(scale) * self.half_width
    if math.isnan(middle):
      return '–'
    if math.isnan(half):
      return f'{middle:{form}}{unit}{none}'
    return (
      f'{middle:{form}}{unit} ({middle - half:{form}}{unit} …'
      f' {middle + half:{form}}{unit})'
    )


def difference(
  arm: Mapping[int, float], baseline: Mapping[int, float]
) -> Difference:
  """Returns the difference of two arms, each {seed: value}; see `contrast`."""
  pair = {'arm': arm, 'baseline': baseline}
  found = contrast({'arm': 1, 'baseline': -1}, pair)
  seeds = arm.keys() & baseline.keys() if found.seeds else baseline
  return dataclasses.replace(
    found, baseline=mean([baseline[seed] for seed in seeds])
  )


def contrast(
  weights: Mapping[Any, float], values: Mapping[Any, Mapping[int, float]]
) -> Difference:
  """Returns a weighted sum of arms' means.

  Arms with the same seed share their first parameters and the order of their
  data, so that the sums within seeds vary less than the arms' means. Two seeds
  that all arms have are enough for the interval of a paired t-test. Else arms
  of two seeds each have that of Welch's test, for whose degrees of freedom
  Satterthwaite's formula stands (Welch, Biometrika 34, 1947).

  Args:
    weights: {arm: its weight}.
    values: {arm: {seed: value}}.
  """
  arms = [list(values[arm].values()) for arm in weights]
  shared = sorted(set.intersection(*(set(values[arm]) for arm in weights)))
  sums = [sum(weights[x] * values[x][seed] for x in weights) for seed in shared]
  counts = [len(one) - 1 for one in arms]
  if len(sums) > 1 or (sums and min(counts) < 1):
    how = 'paired' if len(sums) > 1 else 'too few'
    error = spread(sums) / math.sqrt(len(sums))
    return Difference(mean(sums), error, len(sums) - 1, len(sums), how)
  middle = sum(w * mean(one) for w, one in zip(weights.values(), arms))
  if min(counts) < 1:
    return Difference(middle, math.nan, math.nan, 0, 'too few')
  parts = [
    (w * spread(one)) ** 2 / len(one) for w, one in zip(weights.values(), arms)
  ]
  total, below = sum(parts), sum(x * x / n for x, n in zip(parts, counts))
  freedom = total**2 / below if below else sum(counts)
  return Difference(middle, math.sqrt(total), freedom, 0, 'Welch')


def holm(ps: Sequence[float]) -> list[float]:
  """Returns p-values corrected for their number (Holm, 1979); NaN stays."""
  order = sorted((p, n) for n, p in enumerate(ps) if not math.isnan(p))
  found, least = list(ps), 0.0
  for rank, (p, n) in enumerate(order):
    least = found[n] = min(1.0, max(least, (len(order) - rank) * p))
  return found


def _check_hits(hits: int, count: int) -> None:
  if count < 1 or not 0 <= hits <= count:
    raise ValueError(
      f'{hits} of {count}: needs at least one trial, and hits in 0…{count}.'
    )


def _check_share(name: str, value: float) -> None:
  if not 0 < value < 1:
    raise ValueError(f'{name}={value}: must lie between 0 and 1.')
