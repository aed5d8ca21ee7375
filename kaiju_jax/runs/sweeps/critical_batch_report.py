"""The critical batch as tables, sentences, a JSON file and a figure."""

from collections.abc import Iterator
from collections.abc import Mapping
import math
import pathlib
from typing import Any

import rich.table

from kaiju_jax.evaluation import paired
from kaiju_jax.runs import report
from kaiju_jax.runs.sweeps import critical_batch
from kaiju_jax.storage import files

# The targets of the run that follows the schedule.
EXCESS, FEWER = 0.003, 0.3

Arms = Mapping[str, critical_batch.Arm]


def parts(study: critical_batch.Study) -> Iterator[rich.table.Table | str]:
  """Yields what is printed: tables, and sentences."""
  found = study.found
  table = rich.table.Table(title='Relative loss over the small batch')
  table.add_column('tokens so far')
  first = next(iter(found.values()))
  for multiple in first.excess:
    table.add_column(f'{multiple} ×', justify='right')
  table.add_column(f'largest within {study.epsilon:.2%}')
  for place, one in found.items():
    table.add_row(
      f'{place.fraction:.3f}',
      *(
        _percent(excess, one.half_width[multiple])
        for multiple, excess in one.excess.items()
      ),
      f'{one.largest} ×',
    )
  yield table
  for place, one in found.items():
    for doubt in one.doubts:
      yield f'At {place.fraction:.3f}, not sure: {doubt}.'
  yield f'Schedule: --config.optimizer.batch={study.batch!r}'
  if study.arms is None:
    yield 'No runs from the beginning: not asked for, or one batch throughout.'
    return
  yield from _arms(study.arms)


def _arms(arms: Arms) -> Iterator[rich.table.Table | str]:
  small = arms['small']
  table = rich.table.Table(title='From the beginning, on equal tokens')
  for name in ('arm', 'steps', 'loss', 'over small'):
    table.add_column(name)
  for name, arm in arms.items():
    excess = arm.excess(small)
    table.add_row(
      name,
      f'{arm.steps:,}',
      f'{paired.mean(list(arm.losses.values())):.4f}',
      '' if name == 'small' else _percent(excess.mean, excess.half_width),
    )
  yield table
  scheduled, large = (
    arms[name].excess(small).mean for name in ('schedule', 'large')
  )
  fewer = 1 - arms['schedule'].steps / small.steps
  yield (
    f'With the schedule {scheduled:+.2%} (target {EXCESS:.1%},'
    f' {_verdict(scheduled <= EXCESS)}) in {fewer:.0%} fewer steps (target'
    f' {FEWER:.0%}, {_verdict(fewer >= FEWER)}); the largest batch from the'
    f' beginning {large:+.2%}'
    f' ({"further off" if large > scheduled else "NOT further off"}).'
  )


def _verdict(is_met: bool) -> str:
  return 'met' if is_met else 'MISSED'


def _percent(value: float, half_width: float) -> str:
  text = f'{value:+.2%}'
  if value and not math.isnan(half_width):
    text += f' ± {half_width:.2%}'
  return text


def write(
  root: pathlib.Path, study: critical_batch.Study
) -> tuple[pathlib.Path, pathlib.Path]:
  """Writes critical_batch.json and critical_batch.png; returns their paths."""
  page = root / 'critical_batch.json', root / 'critical_batch.png'
  data: dict[str, Any] = {
    'epsilon': study.epsilon,
    'schedule': study.batch,
    'places': [
      {
        **place._asdict(),
        'largest': one.largest,
        'excess': {str(m): _finite(x) for m, x in one.excess.items()},
        'half_width': {str(m): _finite(x) for m, x in one.half_width.items()},
        'doubts': list(one.doubts),
      }
      for place, one in study.found.items()
    ],
    'arms': study.arms
    and {
      name: {
        'steps': arm.steps,
        'losses': {str(s): _finite(x) for s, x in arm.losses.items()},
      }
      for name, arm in study.arms.items()
    },
  }
  files.write_json(page[0], data)
  report.save(draw(study), page[1])
  return page


def draw(study: critical_batch.Study) -> Any:
  """Returns the branches' losses over m, and the arms' over their steps."""
  drawn = report.figure(9, 4)
  branches, runs = drawn.subplots(1, 2)
  for colour, (place, one) in zip(report.PALETTE, study.found.items()):
    multiples = list(one.excess)
    branches.errorbar(
      multiples,
      [100 * one.excess[m] for m in multiples],
      [100 * (_finite(one.half_width[m]) or 0) for m in multiples],
      fmt='o-',
      color=colour,
      capsize=3,
      linewidth=1,
      label=f'after {place.fraction:.0%} of the tokens',
    )
  branches.axhline(
    100 * study.epsilon, color=report.FAINT, linestyle=':', label='ε'
  )
  branches.set_xscale('log', base=2)
  branches.set_xlabel('times the batch, √ times the rate')
  branches.set_ylabel('loss over the small batch (%)')
  branches.legend(frameon=False, fontsize=8)
  for colour, (name, arm) in zip(report.PALETTE, (study.arms or {}).items()):
    mean = paired.mean(list(arm.losses.values()))
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


def _finite(value: float) -> float | None:
  return float(value) if math.isfinite(value) else None
