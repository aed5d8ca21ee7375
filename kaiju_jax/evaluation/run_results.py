"""Results of runs, as they are compared in an ablation."""

import collections
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import statistics
from typing import Any
from typing import NamedTuple

LAST = 100  # Steps that `loss` is the mean over, of those recorded.
Records = Sequence[Mapping[str, Any]]


class Cut(NamedTuple):
  """Up to where runs are read."""

  unit: str  # 'step' or 'tokens'.
  places: Mapping[str, int]  # {measure: its last place; others have none}.

  def name(self, measure: str) -> str:
    """Returns a measure's place in words."""
    place = f'{self.places[measure]:,.0f}'
    return f'step {place}' if self.unit == 'step' else f'{place} tokens'

  def read(self, records: Records) -> list[dict[str, Any]]:
    """Returns the records, without what `summarize` reads beyond the places."""
    return [
      {
        name: value
        for name, value in record.items()
        if not _is_measure(name)
        or record[self.unit] <= self.places.get(name, -1)
      }
      for record in records
    ]


def find_common(runs: Iterable[Records], unit: str, most: int) -> Cut:
  """Returns each measure's last place, up to `most`, that all runs recorded.

  Only runs that record a measure at all are asked for it.
  """
  places: dict[str, list[set[int]]] = collections.defaultdict(list)
  for records in runs:
    for name in {x for record in records for x in record if _is_measure(x)}:
      places[name].append({r[unit] for r in records if name in r})
  common = {name: set.intersection(*own) for name, own in places.items()}
  last = {
    name: max((x for x in own if x <= most), default=0)
    for name, own in common.items()
  }
  return Cut(unit, {name: place for name, place in last.items() if place})


def _is_measure(name: str) -> bool:
  return name == 'loss' or name.startswith('eval_')


def summarize(records: Records) -> dict[str, float]:
  """Returns the mean 'loss' of a run's end, and the last of each 'eval_…'.

  Args:
    records: the records of metrics.jsonl, in order.
  """
  results = {}
  losses = {r['step']: r['loss'] for r in records if 'loss' in r}
  if losses:
    end = max(losses)
    results['loss'] = statistics.fmean(
      loss for step, loss in losses.items() if step > end - LAST
    )
  for record in records:
    results |= {k: v for k, v in record.items() if k.startswith('eval_')}
  return results


def describe_span(steps: Iterable[int]) -> str:
  """Returns which steps of runs `summarize` means over, in words.

  Args:
    steps: each run's number of steps.
  """
  found = sorted(set(steps))
  if not found or found[0] > LAST:
    return f'mean of the last {LAST} steps'
  if len(found) == 1:
    return f'mean of all {found[0]} steps'
  return f'mean of the last {LAST} steps, or of all if there are fewer'
