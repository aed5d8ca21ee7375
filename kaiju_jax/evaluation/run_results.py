"""Measures runs for comparison, such as the arms of an ablation."""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import statistics
from typing import Any

LAST = 100


def summarize(
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
  """Returns which steps of runs `summarize` means over, in words.

  Args:
    steps: each run's number of steps.
    last: as in `summarize`.
  """
  found = sorted(set(steps))
  if not found or found[0] > last:
    return f'mean of the last {last} steps'
  if len(found) == 1:
    return f'mean of all {found[0]} steps'
  return f'mean of the last {last} steps, or of all if there are fewer'
