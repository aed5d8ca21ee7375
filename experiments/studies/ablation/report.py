"""The report of an ablation or a comparison, made from metrics.jsonl."""

import collections
from collections.abc import Mapping
from collections.abc import Sequence
import math
import os
import pathlib
import platform
import shlex
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.costs import step_time
from kaiju_jax.evaluation import run_results
from kaiju_jax.experiments.studies.ablation import effects
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
  cut: run_results.Cut | None = None

  @property
  def enters(self) -> bool:
    """Whether it enters the figures: if finished, or cut where it has been."""
    return self.status == 'finished' or self.cut is not None

  @property
  def arm(self) -> str:
    return self.job.arm

  @property
  def seed(self) -> int:
    return self.job.experiment.seed

  def records(self) -> list[dict[str, Any]]:
    """Returns the records of metrics.jsonl, none where there is no file.

    Where they are cut, later ones are without their results.
    """
    try:
      found = metrics.read(self.job.folder)
    except FileNotFoundError:
      return []
    return found if self.cut is None else self.cut.read(found)


def write(root: pathlib.Path, **given: Any) -> pathlib.Path:
  """Writes the page into `root`, and returns its path; see `make`."""
  root.mkdir(parents=True, exist_ok=True)
  return make(root, **given).save(root)


def make(
  root: pathlib.Path,
  *,
  title: str,
  command: Sequence[str],
  runs: Sequence[Outcome],
  baselines: Mapping[str, str],
  draws: bool = True,
) -> report.Report:
  """Returns the report.

  Only runs that are finished, or cut, enter means, differences and effects, and
  figures if there are any.

  Args:
    root: the folder that paths of logs begin at.
    title: heading of the page.
    command: the command that made the page.
    runs: all planned runs.
    baselines: {arm: the arm that it is compared with}.
    draws: whether it has figures.
  """
  records = {(r.arm, r.seed): r.records() for r in runs}
  finished = [r for r in runs if r.enters]
  cut = next((r.cut for r in runs if r.cut), None)
  arms = list(dict.fromkeys(r.arm for r in runs))
  measured = {
    (r.arm, r.seed): run_results.summarize(records[r.arm, r.seed])
    for r in finished
  }
  span = run_results.describe_span(
    max((x['step'] for x in records[r.arm, r.seed] if 'loss' in x), default=0)
    for r in finished
  )
  lost = collections.Counter(
    r.arm for r in runs if r.status.startswith('diverged') and not r.enters
  )
  page = report.Report(title).say('```', shlex.join(command), '```')
  fields, factors = _settings(page, runs, baselines)
  page.data |= {'fields': fields, 'baselines': baselines, 'measures': {}}
  page.data['places'] = cut.places if cut else {}
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
    page.data['measures'][measure] = values
    heading = _heading(measure, span, cut and cut.name(measure))
    page.add(f'## {heading}', _comparison(values, baselines, lost))
    page.say(*(_TERMS[x] for x in (measure,) if x in _TERMS))
    if factors:
      page.add(effects.table(factors, values))
    if draws and measure in ('loss', 'eval_loss'):
      shown = [r for r in finished or runs if records[r.arm, r.seed]]
      curves = _draw_curves(
        {arm: [r for r in shown if r.arm == arm] for arm in arms}, measure
      )
      text = f'{heading}: over tokens, seconds and FLOPs'
      page.figure(f'{measure}_curves.png', curves, text)
    if draws and measure == 'loss':
      final = _draw_final(values, heading)
      page.figure('final_loss.png', final, f'{heading}, by arm')
  page.add('## Runs', _run_table(root, runs, records))
  page.add('## How the figures come about', _method())
  commands = (shlex.join(run.command) for run in runs)
  page.add('## Commands').say('```', *commands, '```')
  page.add('## Environment', _environment(finished))
  return page


def _settings(
  page: report.Report, runs: Sequence[Outcome], baselines: Mapping[str, str]
) -> tuple[dict[str, Any], list[effects.Factor]]:
  """Adds the fields that differ; returns them, and factors of a full grid."""
  experiments = {}
  for run in runs:
    if ', with another ' not in run.status:
      experiments.setdefault(run.arm, run.job.experiment)
  if len(experiments) < 2:
    return {}, []
  first = next(iter(experiments))
  first = baselines.get(first, first)
  baseline = first if first in experiments else next(iter(experiments))
  fields = effects.list_fields(experiments, baseline)
  if fields:
    rows = [
      (arm, *(str(values[arm]) for values in fields.values()))
      for arm in experiments
    ]
    left = len(fields) + 1
    page.add('## Fields that differ').table(rows, ('arm', *fields), left=left)
  return fields, effects.find_factors(fields, baseline)


# What the columns and headings of a page need explained.
_TERMS = {
  'loss': (
    '`detectable` is the smallest true difference that so many seeds of such a'
    ' spread show in four of five comparisons.'
  ),
  'eval_rms_lse': (
    'The log-sum-exp of a query’s attention logits: the root mean square over'
    ' layers, heads and tokens.'
  ),
}


def _heading(measure: str, span: str, place: str | None) -> str:
  if measure == 'loss':
    return f'Training loss, {span}' + (f' up to {place}' if place else '')
  name = measure.removeprefix('eval_').replace('_', ' ')
  return f'{name}, at {place}' if place else f'{name}, last evaluation'


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
  compared = {
    arm: statistics.difference(of_seed, values.get(baselines[arm], {}))
    for arm, of_seed in values.items()
    if baselines.get(arm, arm) != arm
  }
  judged = zip(*effects.judge(list(compared.values())))
  found = dict(zip(compared, judged))
  rows = []
  for arm, of_seed in values.items():
    numbers = list(of_seed.values())
    row = [
      arm,
      str(len(numbers)) + (f', {lost[arm]} diverged' if lost[arm] else ''),
      report.Number(statistics.mean(numbers)) if numbers else None,
      report.Number(statistics.spread(numbers)) if len(numbers) > 1 else None,
    ]
    if arm not in found:
      rows.append([*row, '', '', '', '', ''])
      continue
    d, seeds, *others = found[arm]
    relative = d.relative if d.baseline else ''
    rows.append([*row, f'{baselines[arm]} ({seeds})', d, relative, *others])
  columns = (
    *('arm', 'seeds', 'mean', 'sd', 'against (paired seeds)'),
    *('difference (95 % interval)', 'relative', *effects.JUDGED),
  )
  return report.Table(rows, columns)


def _run_table(root, runs, records) -> report.Table:
  rows = []
  for run in runs:
    mine = records[run.arm, run.seed]
    last = max((r['step'] for r in mine), default=0)
    rates = [r['tokens_per_second'] for r in mine if 'tokens_per_second' in r]
    middle = sorted(rates)[len(rates) // 2] if rates else math.nan
    log = run.job.log
    rows.append(
      [
        run.arm,
        str(run.seed),
        run.status,
        str(last),
        report.number(middle, ',.0f'),
        f'`{os.path.relpath(log, root)}`' if log.exists() else None,
      ]
    )
  columns = 'arm', 'seed', 'status', 'last step', 'median tokens/s', 'log'
  return report.Table(rows, columns)


def _method() -> str:
  return (
    'The mean and the sample standard deviation (sd) are over the finished'
    ' seeds, at a step over those that came there; a seed that diverged is'
    ' counted beside them. The training loss of a run is the mean over its last'
    f' {run_results.LAST} steps, or over all if it has fewer, of those that'
    ' loop.log_every recorded. A difference is'
    ' paired: arm minus baseline on the same seed, that is on the same first'
    ' parameters and order of data. Where fewer than two seeds pair, it is'
    ' the difference of the means, with Welch’s interval. Intervals are two-'
    ' sided 95 % t-intervals; a relative value is in units of the baseline’s'
    ' mean. p is of no difference, corrected by Holm’s method (1979) for all'
    ' rows of the table; intervals are not corrected. The detectable effect'
    ' is the smallest true difference that a t-test with these seeds and'
    ' this spread shows with a probability of 80 %, at the level 5 % ÷ rows:'
    ' λ times the standard error, with the λ of the noncentral t'
    ' distribution (Cohen, Statistical Power Analysis, 1988, ch. 2). A main'
    ' effect is the difference of a level from the baseline’s, as a mean'
    ' over the levels of all other factors; an interaction is the difference'
    ' of two such differences. Seconds are tokens ÷ tokens/s from the first'
    ' record on, without evaluations. FLOPs are those of the matmuls and'
    ' attention of whole steps, with layers that are computed again.'
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


def _draw_curves(runs: Mapping[str, Sequence[Outcome]], measure: str) -> Any:
  """Draws a loss three times: a thin line per seed, a thick one for the mean.

  Args:
    runs: {arm: its runs}.
    measure: 'loss' or 'eval_loss'.
  """
  figure = figures.figure(13, 5)
  panels = figure.subplots(1, 3, sharey=True)
  later = []
  span = 1
  for index, (arm, own) in enumerate(runs.items()):
    style = figures.style(index)
    curves = []
    for run in own:
      places, loss = _curve(run, measure)
      if not len(loss):
        continue
      span = max(1, len(loss) // 50)
      loss = _running_mean(loss, span)
      places = places[:, span - 1 :]
      curves.append((places, loss))
      for axes, place in zip(panels, places):
        axes.plot(place, loss, **style, linewidth=0.6, alpha=0.35)
      later.append(loss[len(loss) // 10 :])
    if not curves:
      continue
    shortest = min(len(loss) for _, loss in curves)
    places, average = (
      np.mean([one[..., :shortest] for one in each], axis=0)
      for each in zip(*curves)
    )
    for axes, place in zip(panels, places):
      label = arm if axes is panels[0] else None
      axes.plot(place, average, **style, linewidth=1.6, label=label)
  finite = np.concatenate(later) if later else np.array([])
  finite = finite[np.isfinite(finite)]
  if finite.size:
    # The first tenth of a run, or a peak, would squash what the arms differ in.
    low, high = finite.min(), np.percentile(finite, 99)
    margin = 0.05 * (high - low) or 0.05
    panels[0].set_ylim(low - margin, high + margin)
  smoothed = f', running mean of {span} records' if span > 1 else ''
  kind = 'training' if measure == 'loss' else 'held-out'
  panels[0].set_ylabel(f'{kind} loss (nats per token){smoothed}')
  panels[1].set_title('Mean over seeds, and each seed (thin)')
  for axes, name in zip(panels, ('tokens', 'seconds', 'FLOPs')):
    axes.set_xlabel(name)
    axes.grid(alpha=0.3)
  columns = min(4, len(runs), 160 // max(map(len, runs), default=1))
  figure.legend(loc='outside lower center', ncols=max(1, columns))
  return figure


def _curve(run: Outcome, measure: str) -> tuple[np.ndarray, np.ndarray]:
  """Returns [tokens, seconds, FLOPs] × records, and the losses."""
  records = run.records()
  points = {r['tokens']: r[measure] for r in records if measure in r}
  tokens = np.array(list(points), float)
  timed = [(r['tokens'], r.get('tokens_per_second')) for r in records]
  last = seconds = 0.0
  clock = []
  for at, rate in timed:
    if rate and clock:
      seconds += (at - last) / rate
    if rate or not clock:
      clock.append((at, seconds))
      last = at
  experiment = run.job.experiment
  flops = step_time.operations(
    experiment.model, 1.0, experiment.data.length, step_time.ARMS[0]
  )
  places = np.array(
    [
      tokens,
      np.interp(tokens, *zip(*clock)) if len(clock) > 1 else tokens * math.nan,
      tokens * sum(flops.values()),
    ]
  )
  return places, np.array(list(points.values()), float)


def _running_mean(values, span: int):
  return np.convolve(values, np.full(span, 1 / span), mode='valid')


def _draw_final(values: Mapping[str, Mapping[int, float]], title: str) -> Any:
  """Draws each arm's final loss: a dot per seed, a bar at the mean."""
  figure = figures.figure(9, 1.5 + 0.4 * len(values))
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
  figure.suptitle(title, fontsize='large')
  axes.grid(axis='x', alpha=0.3)
  figure.legend(loc='outside right upper')
  return figure
