"""Writes an ablation's report, a page and two figures, from metrics.jsonl."""

import collections
from collections.abc import Mapping
from collections.abc import Sequence
import math
import pathlib
import platform
import shlex
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.evaluation import run_results
from kaiju_jax.reporting import figures
from kaiju_jax.reporting import report
from kaiju_jax.reporting import statistics
from kaiju_jax.runs import grid
from kaiju_jax.runs import pool
from kaiju_jax.storage import files
from kaiju_jax.training.records import metrics


class Outcome(NamedTuple):
  """The outcome of one run."""

  job: grid.Job  # The run.
  # 'finished', 'diverged at step …', 'failed (…)', 'stopped' or 'not run'.
  status: str
  # The command that trains it, as a reader would type it.
  command: tuple[str, ...]

  @property
  def arm(self) -> str:
    return self.job.arm

  @property
  def seed(self) -> int:
    return self.job.experiment.seed

  def records(self) -> list[dict[str, Any]]:
    """Returns the records of metrics.jsonl, none where there is no file."""
    try:
      return metrics.read(self.job.folder)
    except FileNotFoundError:
      return []


def write(
  root: pathlib.Path,
  *,
  title: str,
  command: Sequence[str],
  runs: Sequence[Outcome],
  baselines: Mapping[str, str],
) -> pathlib.Path:
  """Writes report.md and its figures into `root`; returns the page's path.

  Only finished runs enter means, differences and figures.

  Args:
    root: folder of the workdirs.
    title: heading of the page.
    command: the command that made the page.
    runs: all planned runs.
    baselines: {arm: the arm that it is compared with}.
  """
  root.mkdir(parents=True, exist_ok=True)
  records = {(r.arm, r.seed): r.records() for r in runs}
  finished = [r for r in runs if r.status == 'finished']
  arms = list(dict.fromkeys(r.arm for r in runs))
  measured = {
    (r.arm, r.seed): run_results.summarize(records[r.arm, r.seed])
    for r in finished
  }
  span = run_results.describe_span(
    max((one['step'] for one in records[r.arm, r.seed]), default=0)
    for r in finished
  )
  lost = collections.Counter(
    r.arm for r in runs if r.status.startswith('diverged')
  )
  page = report.Report(title).say('```', shlex.join(command), '```')
  # The training loss first: False sorts before True.
  for measure in sorted(
    {m for values in measured.values() for m in values},
    key=lambda measure: (measure != 'loss', measure),
  ):
    values = {
      arm: {
        seed: results[measure]
        for (a, seed), results in measured.items()
        if a == arm and measure in results
      }
      for arm in arms
    }
    heading = _heading(measure, span)
    page.add(f'## {heading}', _comparison(values, baselines, lost))
    if measure == 'loss':
      curves = _draw_curves(
        {
          arm: [records[r.arm, r.seed] for r in finished if r.arm == arm]
          for arm in arms
        },
      )
      page.figure('loss_curves.png', curves, 'Training loss over tokens')
      final = _draw_final(values, heading)
      page.figure('final_loss.png', final, f'{heading}, by arm')
  page.add('## Runs', _run_table(root, runs, records))
  page.add('## How the figures come about', _method())
  commands = (shlex.join(run.command) for run in runs)
  page.add('## Commands').say('```', *commands, '```')
  page.add('## Environment', _environment(finished))
  return page.save(root)


def _heading(measure: str, span: str) -> str:
  if measure == 'loss':
    return f'Training loss, {span}'
  return f'{measure.removeprefix("eval_").replace("_", " ")}, last evaluation'


def _comparison(
  values: Mapping[str, Mapping[int, float]],
  baselines: Mapping[str, str],
  lost: collections.Counter[str],
) -> report.Table:
  """Returns the table of one measure.

  Args:
    values: {arm: {seed: value}}.
    baselines: as in `write`.
    lost: {arm: how many of its seeds diverged}.
  """
  rows = []
  for arm, of_seed in values.items():
    numbers = list(of_seed.values())
    row = [
      arm,
      str(len(numbers)) + (f', {lost[arm]} diverged' if lost[arm] else ''),
      _number(statistics.mean(numbers)) if numbers else '–',
      _number(statistics.spread(numbers)) if len(numbers) > 1 else '–',
    ]
    baseline = baselines.get(arm, arm)
    if baseline == arm:
      rows.append([*row, '', '', ''])
      continue
    d = statistics.difference(of_seed, values.get(baseline, {}))
    rows.append(
      [
        *row,
        f'{baseline} ({d.seeds})',
        d,
        d.relative if d.baseline else '',
      ]
    )
  columns = (
    *('arm', 'seeds', 'mean', 'sd', 'against (paired seeds)'),
    *('difference (95 % interval)', 'relative'),
  )
  return report.Table(rows, columns)


def _number(value: float) -> str:
  return f'{value:.4f}' if math.isfinite(value) else 'not finite'


def _run_table(root, runs, records) -> report.Table:
  rows = []
  for run in runs:
    mine = records[run.arm, run.seed]
    last = max((r['step'] for r in mine), default=0)
    rates = [r['tokens_per_second'] for r in mine if 'tokens_per_second' in r]
    log = run.job.log
    rows.append(
      [
        run.arm,
        str(run.seed),
        run.status,
        str(last),
        f'{sorted(rates)[len(rates) // 2]:,.0f}' if rates else '–',
        f'`{log.relative_to(root)}`' if log.exists() else '–',
      ]
    )
  columns = 'arm', 'seed', 'status', 'last step', 'median tokens/s', 'log'
  return report.Table(rows, columns)


def _method() -> str:
  return (
    'The mean and the sample standard deviation (sd) are over the finished'
    ' seeds; a seed that diverged is counted beside them. The training loss of'
    f' a run is the mean over its last {run_results.LAST} steps, or over all if'
    ' it has fewer, of those that loop.log_every recorded. A'
    ' difference is paired: arm minus baseline on the same seed, that is on'
    ' the same first'
    ' parameters and order of data; its interval is a two-sided 95 % t-interval'
    ' over the seeds, and its relative value is in units of the'
    ' baseline’s mean. No correction is made for comparing many arms.'
  )


def _environment(runs: Sequence[Outcome]) -> report.Table | str:
  """Returns a table of the runs' environments; differing values side by side.

  Cores are those of the whole ablation, which its runs shared.
  """
  found = [
    files.read_json(path)
    for path in (run.job.folder / 'environment.json' for run in runs)
    if path.exists()
  ]
  if not found:
    return 'No run left an environment.json.'
  left_out = ('command', 'date', 'earlier')
  names = [name for name in found[0] if name not in left_out]
  rows = [
    ['system', f'{platform.system()} {platform.machine()}'],
    ['cores', str(pool.count_cores())],
  ]
  for name in names:
    values = dict.fromkeys(_format(each.get(name)) for each in found)
    rows.append([name.replace('_', ' '), '; '.join(values)])
  dates = sorted(each['date'] for each in found if 'date' in each)
  if dates:
    rows.append(['dates', f'{dates[0]} … {dates[-1]}'])
  return report.Table(rows, ('', ''))


def _format(value: Any) -> str:
  if isinstance(value, list):
    return ', '.join(map(_format, value))
  if isinstance(value, dict):
    return ' '.join(map(_format, value.values()))
  return str(value)


def _draw_curves(
  records: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]],
) -> Any:
  """Draws loss over tokens: a thin line per seed, a thick one for the mean."""
  figure = figures.figure(9, 5)
  axes = figure.add_subplot()
  later = []
  span = 1
  for index, (arm, runs) in enumerate(records.items()):
    style = figures.style(index)
    curves = []
    for run in runs:
      points = {r['tokens']: r['loss'] for r in run if 'loss' in r}
      if not points:
        continue
      tokens = np.array(list(points), dtype=float)
      loss = np.array(list(points.values()), dtype=float)
      span = max(1, len(loss) // 50)
      loss = _running_mean(loss, span)
      tokens = tokens[span - 1 :]
      curves.append((tokens, loss))
      axes.plot(tokens, loss, **style, linewidth=0.6, alpha=0.35)
      later.append(loss[len(loss) // 10 :])
    if not curves:
      continue
    shortest = min(len(loss) for _, loss in curves)
    average = np.mean([loss[:shortest] for _, loss in curves], axis=0)
    axes.plot(
      curves[0][0][:shortest], average, **style, linewidth=1.6, label=arm
    )
  finite = np.concatenate(later) if later else np.array([])
  finite = finite[np.isfinite(finite)]
  if finite.size:
    # The first tenth of a run, or a peak, would squash what the arms differ in.
    low, high = finite.min(), np.percentile(finite, 99)
    margin = 0.05 * (high - low) or 0.05
    axes.set_ylim(low - margin, high + margin)
  axes.set_xlabel('tokens')
  smoothed = f', running mean of {span} records' if span > 1 else ''
  axes.set_ylabel(f'training loss (nats per token){smoothed}')
  axes.set_title('Training loss: mean over seeds, and each seed (thin)')
  axes.grid(alpha=0.3)
  figure.legend(loc='outside right upper')
  return figure


def _running_mean(values, span: int):
  return np.convolve(values, np.full(span, 1 / span), mode='valid')


def _draw_final(values: Mapping[str, Mapping[int, float]], title: str) -> Any:
  """Draws each arm's final loss: a dot per seed, a bar at the mean."""
  figure = figures.figure(8, 1.5 + 0.4 * len(values))
  axes = figure.add_subplot()
  seeds = sorted({seed for of_seed in values.values() for seed in of_seed})
  for index, seed in enumerate(seeds):
    places = [i for i, v in enumerate(values.values()) if seed in v]
    axes.scatter(
      [v[seed] for v in values.values() if seed in v],
      places,
      color=f'C{index % 10}',
      s=28,
      label=f'seed {seed}',
      zorder=3,
    )
  means = [statistics.mean(list(v.values())) for v in values.values()]
  axes.scatter(
    means,
    range(len(means)),
    marker='|',
    color='black',
    s=260,
    label='mean',
    zorder=2,
  )
  axes.set_yticks(range(len(values)), list(values))
  axes.set_ylim(len(values) - 0.5, -0.5)
  axes.set_xlabel('training loss (nats per token)')
  axes.set_ylabel('arm')
  axes.set_title(title)
  axes.grid(axis='x', alpha=0.3)
  figure.legend(loc='outside right upper')
  return figure
