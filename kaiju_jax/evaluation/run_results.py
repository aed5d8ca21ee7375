"""Results of runs, as they are compared in an ablation."""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import statistics
from typing import Any

LAST = 100


def summarize(
  records: Sequence[Mapping[str, Any]], last: int = LAST
) -> dict[str, float]:
  """Returns the mean 'loss' of a run's end, and the last of each 'eval_…'.

  Args:
    records: the records of metrics.jsonl, in order.
    last: how many steps `loss` is the mean over, of those that are recorded.
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
  """
  found = sorted(set(steps))
  if not found or found[0] > last:
    return f'mean of the last {last} steps'
  if len(found) == 1:
    return f'mean of all {found[0]} steps'
  return f'mean of the last {last} steps, or of all if there are fewer'
