"""The critical batch as tables, sentences, a JSON file and a figure."""

from collections.abc import Iterator
from collections.abc import Mapping
import math
from typing import Any

import numpy as np

from kaiju_jax.experiments.studies.sweeps import critical_batch
from kaiju_jax.reporting import figures
from kaiju_jax.reporting import report
from kaiju_jax.reporting import statistics

# The targets of the run that follows the schedule.
EXCESS, FEWER = 0.003, 0.3
_DIVERGED = 'diverged'

Arms = Mapping[str, critical_batch.Arm]


def parts(study: critical_batch.Study) -> Iterator[report.Table | str]:
  """Yields what is printed: tables, and sentences."""
  found = study.found
  first = next(iter(found.values()))
  yield report.Table(
    [
      (
        f'{place.fraction:.3f}',
        *(
          _percent(excess, one.half_width[multiple])
          for multiple, excess in one.excess.items()
        ),
        f'{one.largest} ×',
      )
      for place, one in found.items()
    ],
    (
      'share of tokens so far',
      *(f'{multiple} ×' for multiple in first.excess),
      f'largest within {study.epsilon:.2%}',
    ),
    'Relative loss over the small batch',
  )
  for place, one in found.items():
    for doubt in one.doubts:
      yield f'At {place.fraction:.3f}, not sure: {doubt}.'
  yield f'Schedule: --config.optimizer.batch={study.batch!r}'
  if study.arms is None:
    yield 'No runs from the beginning: not asked for, or one batch throughout.'
    return
  yield from _arms(study.arms)


def _arms(arms: Arms) -> Iterator[report.Table | str]:
  small = arms['small']
  rows = []
  for name, arm in arms.items():
    excess = arm.excess(small)
    loss = statistics.mean(list(arm.losses.values()))
    shown = f'{loss:.4f}' if math.isfinite(loss) else _DIVERGED
    over = _percent(excess.mean, excess.half_width)
    over = '' if name == 'small' else over
    rows.append((name, f'{arm.steps:,}', shown, over))
  yield report.Table(
    rows,
    ('arm', 'steps', 'loss', 'over small'),
    'From the beginning, on equal tokens',
  )
  scheduled, large = (
    arms[name].excess(small).mean for name in ('schedule', 'large')
  )
  fewer = 1 - arms['schedule'].steps / small.steps
  loss = report.verdict(f'{EXCESS:.1%}', scheduled <= EXCESS)
  steps = report.verdict(f'{FEWER:.0%}', fewer >= FEWER)
  yield (
    f'With the schedule {_percent(scheduled)} ({loss}) in {fewer:.0%} fewer'
    f' steps ({steps}); the largest batch from the'
    f' beginning {_percent(large)}'
    f' ({"NOT further off" if large <= scheduled else "further off"}).'
  )


def _percent(value: float, half_width: float = math.nan) -> str:
  if not math.isfinite(value):
    return _DIVERGED
  text = f'{value:+.2%}'
  if value and not math.isnan(half_width):
    text += f' ± {half_width:.2%}'
  return text


def plain(study: critical_batch.Study) -> dict[str, Any]:
  """Returns the result by name, for `report.plain`."""
  return {
    'epsilon': study.epsilon,
    'schedule': study.batch,
    'places': [
      {
        **place._asdict(),
        'largest': one.largest,
        'excess': one.excess,
        'half_width': one.half_width,
        'doubts': one.doubts,
      }
      for place, one in study.found.items()
    ],
    'arms': study.arms
    and {
      name: {'steps': arm.steps, 'losses': arm.losses}
      for name, arm in study.arms.items()
    },
  }


def draw(study: critical_batch.Study) -> Any:
  """Returns the branches' losses over m, and the arms' over their steps."""
  drawn = figures.figure(9, 4)
  branches, runs = drawn.subplots(1, 2)
  for colour, (place, one) in zip(figures.PALETTE, study.found.items()):
    multiples = list(one.excess)
    branches.errorbar(
      multiples,
      [100 * one.excess[m] for m in multiples],
      [100 * np.nan_to_num(one.half_width[m]) for m in multiples],
      fmt='o-',
      color=colour,
      capsize=3,
      linewidth=1,
      label=f'after {place.fraction:.0%} of the tokens',
    )
  branches.axhline(
    100 * study.epsilon, color=figures.FAINT, linestyle=':', label='ε'
  )
  branches.set_xscale('log', base=2)
  branches.set_xlabel('times the batch, √ times the rate')
  branches.set_ylabel('loss over the small batch (%)')
  branches.legend(frameon=False, fontsize=8)
  for colour, (name, arm) in zip(figures.PALETTE, (study.arms or {}).items()):
    mean = statistics.mean(list(arm.losses.values()))
    runs.plot(arm.steps, mean, 'o', color=colour, label=name)
    runs.plot(
      [arm.steps] * len(arm.losses),
      list(arm.losses.values()),
      '.',
      color=colour,
    )
  runs.set_xlabel('steps, on equal tokens')
  runs.set_ylabel('held-out loss (nats per token)')
  if study.arms:
    runs.legend(frameon=False, fontsize=8)
  return drawn
