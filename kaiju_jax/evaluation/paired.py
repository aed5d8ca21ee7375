"""Measures a run, and compares two arms of an ablation seed by seed.

An arm is one variant of an experiment. Two arms with the same seed share their
first parameters and the order of their data, so that the differences within
seeds vary less than the arms' means. With d_s the difference at seed s, over n
seeds,

    mean(d) ± t(0.975, n - 1) · sd(d) / √n

holds the true mean difference in 95 of 100 ablations, if the d_s are about
normal.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import math
import statistics
from typing import Any

LAST = 100


def measures(
  records: Sequence[Mapping[str, Any]], last: int = LAST
) -> dict[str, float]:
  """Returns a run's results.

  Args:
    records: the records of metrics.jsonl, in order.
    last: how many steps at the run's end `loss` is the mean over. Only recorded
      steps count; loop.log_every=1 records each.

  Returns:
    The mean as 'loss', and the last value of each 'eval_…'.
  """
  results = {}
  losses = {r['step']: r['loss'] for r in records if 'loss' in r}
  if losses:
    end = max(losses)
    results['loss'] = statistics.fmean(
      loss for step, loss in losses.items() if step > end - last
    )
  for record in records:
    results |= {k: v for k, v in record.items() if k.startswith('eval_')}
  return results


def describe_span(steps: Iterable[int], last: int = LAST) -> str:
  """Returns which steps of runs `measures` means over, in words.

  Args:
    steps: each run's number of steps.
    last: as in `measures`.
  """
  found = sorted(set(steps))
  if not found or found[0] > last:
    return f'mean of the last {last} steps'
  if len(found) == 1:
    return f'mean of all {found[0]} steps'
  return f'mean of the last {last} steps, or of all if there are fewer'


def mean(values: Sequence[float]) -> float:
  """Returns the mean; NaN for no values."""
  return statistics.fmean(values) if values else math.nan


def spread(values: Sequence[float]) -> float:
  """Returns the sample standard deviation; NaN for fewer than two values."""
  if len(values) < 2 or not all(map(math.isfinite, values)):
    return math.nan
  return statistics.stdev(values)


@dataclasses.dataclass(frozen=True)
class Difference:
  """An arm minus its baseline, over the seeds that both have.

  Attributes:
    mean: mean of the differences.
    half_width: half the width of the 95 % interval around the mean; NaN for
      fewer than two seeds.
    baseline: mean of the baseline over the same seeds.
    seeds: number of seeds.
  """

  mean: float
  half_width: float
  baseline: float
  seeds: int


def difference(
  arm: Mapping[int, float], baseline: Mapping[int, float]
) -> Difference:
  """Returns the paired difference of two arms, each {seed: value}."""
  seeds = sorted(arm.keys() & baseline.keys())
  differences = [arm[seed] - baseline[seed] for seed in seeds]
  return Difference(
    mean(differences),
    half_width(differences),
    mean([baseline[seed] for seed in seeds]),
    len(seeds),
  )


def half_width(values: Sequence[float]) -> float:
  """Returns half the 95 % t-interval of the mean; NaN for one value."""
  if len(values) < 2:
    return math.nan
  # Here, because scipy takes longer to import than everything above.
  from scipy import special

  t = float(special.stdtrit(len(values) - 1, 0.975))
  return t * spread(values) / math.sqrt(len(values))
