"""Sizes × token counts, the law through them, and a run that it has not seen.

The law (`fits/scaling.py`) is fitted to a grid. Held out is one run
with more parameters and more tokens than all of them. Two contrasts predict it
as well: the law without E, and the loss of the grid's largest run.

N counts the parameters of the layers, without the embedding.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import copy
import math
import pathlib
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.costs import footprint
from kaiju_jax.experiments.studies.sweeps import study as study_lib
from kaiju_jax.experiments.studies.sweeps.fits import scaling as fits
from kaiju_jax.reporting import figures
from kaiju_jax.reporting import report
from kaiju_jax.runs import grid
from kaiju_jax.training import experiment as experiment_lib


class SizeCell(NamedTuple):
  """One run of the study: d_model, row tokens and seed."""

  width: int
  tokens: int
  seed: int


class Point(NamedTuple):
  """The runs of one size and length."""

  width: int  # d_model.
  parameters: int  # N.
  tokens: int  # D.
  losses: tuple[float, ...]  # Held-out loss of each seed.

  @property
  def loss(self) -> float:
    """Mean over the seeds."""
    return sum(self.losses) / len(self.losses)


class SizeStudy(NamedTuple):
  """The fit and what it predicts."""

  points: tuple[Point, ...]  # What was fitted.
  largest: Point  # What was held out.
  fit: fits.Fit  # The law with E.
  predicted: float  # Its loss at `largest`.
  without_e: float  # That of the law without E.
  carried: float  # The loss of the fitted run with most parameters and tokens.


def measure(
  experiment: experiment_lib.Experiment,
  settings: study_lib.Scaling,
  root: pathlib.Path,
) -> SizeStudy:
  """Runs the grid and the held-out run, and returns the fit.

  Args:
    experiment: what all runs share; its learning rate is that of its own width.
    settings: what is to be measured.
    root: folder of all workdirs; what is complete there is not run again.

  Raises:
    OSError, ValueError, SystemExit: a run that cannot work or that diverged,
      or see `grid.run`.
  """
  places = *settings.places, settings.largest
  cells = [
    SizeCell(*place, seed) for place in places for seed in settings.seeds
  ]
  made = runs(experiment, cells, settings.rate_slope, root)
  losses = grid.losses(made, settings, root)
  if diverged := [
    made[cell].name for cell, x in losses.items() if not math.isfinite(x)
  ]:
    raise ValueError(
      f'{"; ".join(diverged)}: diverged, and no law fits that. Try a lower'
      ' --config.optimizer.learning_rate with another --out.'
    )
  found = points(made, losses)
  return study(
    [found[place] for place in settings.places], found[settings.largest]
  )


def runs(
  experiment: experiment_lib.Experiment,
  cells: Sequence[SizeCell],
  slope: float,
  root: pathlib.Path,
) -> dict[SizeCell, grid.Job]:
  """Returns the run of each cell.

  Args:
    experiment: what all runs share.
    cells: the study's cells.
    slope: the learning rate goes with width to this power.
    root: folder of all workdirs.

  Raises:
    ValueError: see `widths.with_width`.
  """
  made = {}
  for cell in cells:
    one = study_lib.with_width(copy.deepcopy(experiment), cell.width)
    ratio = cell.width / experiment.model.d_model
    rate = one.optimizer.learning_rate * ratio**slope
    one.optimizer.learning_rate = float(f'{rate:.4g}')
    one.loop.tokens = cell.tokens
    one.seed = cell.seed
    name = f'width {cell.width}, {cell.tokens:,} tokens'
    folder = (
      root / f'width{cell.width}' / f'tokens{cell.tokens}' / f'seed{cell.seed}'
    )
    made[cell] = grid.Job(name, one, folder)
  return made


def points(
  runs: Mapping[SizeCell, grid.Job], losses: Mapping[SizeCell, float]
) -> dict[tuple[int, int], Point]:
  """Returns {(width, tokens): point} of complete runs."""
  made = {}
  for cell, run in runs.items():
    own = [loss for one, loss in losses.items() if one[:2] == cell[:2]]
    made[cell[:2]] = Point(cell.width, _size(run), run.tokens, tuple(own))
  return made


def _size(run: grid.Job) -> int:
  return footprint.count(
    [
      one
      for one in footprint.parameters(run.experiment.model)
      if one.family != 'embedding'
    ]
  )


def study(points: Sequence[Point], largest: Point) -> SizeStudy:
  """Fits the law to `points` and predicts `largest`.

  Raises:
    ValueError: too few points for the law, or a run that diverged.
  """
  columns = (
    [point.parameters for point in points],
    [point.tokens for point in points],
    [point.loss for point in points],
  )
  fitted = fits.fit(*columns)
  without = fits.fit(*columns, with_e=False, draws=0)
  place = largest.parameters, largest.tokens
  last = max(points, key=lambda point: (point.parameters, point.tokens))
  return SizeStudy(
    tuple(points),
    largest,
    fitted,
    float(fitted.law.predict(*place)),
    float(without.law.predict(*place)),
    last.loss,
  )


TARGET = 0.02  # Relative error of the prediction.


def parts(study: SizeStudy) -> Iterator[report.Table | str]:
  """Yields what is printed: tables, and sentences."""
  yield report.Table(
    [
      *(_row(p, _predicted(study, p)) for p in study.points),
      _row(study.largest, study.predicted),
    ],
    ('width', 'N', 'D', 'loss', 'law', 'difference'),
    'Held-out loss: measured and fitted; the last is held out',
  )
  law = study.fit.law
  yield (
    f'L = {law.e:.3f} + {law.a:.3g} / N^{law.alpha:.3f}'
    f' + {law.b:.3g} / D^{law.beta:.3f}'
  )
  yield '95 %: ' + ', '.join(
    '{} {:.3g}…{:.3g}'.format(name, *study.fit.interval(name))
    for name in law._fields
  )
  for doubt in study.fit.doubts:
    yield f'Not to be trusted: {doubt}.'
  low, high = study.fit.predict_interval(
    study.largest.parameters, study.largest.tokens
  )
  error = _error(study, study.predicted)
  yield (
    f'Held out: {study.predicted:.4f} predicted ({low:.4f}…{high:.4f}),'
    f' {study.largest.loss:.4f} measured: {error:+.2%}'
    f' ({report.verdict(f"{TARGET:.0%}", abs(error) <= TARGET)}).'
    f' Without E {_error(study, study.without_e):+.2%}, the largest fitted run'
    f' carried over {_error(study, study.carried):+.2%}.'
  )


def _predicted(study: SizeStudy, point: Point) -> float:
  return float(study.fit.law.predict(point.parameters, point.tokens))


def _row(point: Point, law: float) -> list[str]:
  return [
    str(point.width),
    f'{point.parameters:,}',
    f'{point.tokens:,}',
    f'{point.loss:.4f}',
    f'{law:.4f}',
    f'{law / point.loss - 1:+.2%}',
  ]


def _error(study: SizeStudy, predicted: float) -> float:
  return predicted / study.largest.loss - 1


def plain(study: SizeStudy) -> dict[str, Any]:
  """Returns the result by name, for `report.plain`."""
  fit, largest = study.fit, study.largest
  return {
    'points': study.points,
    'largest': largest,
    'law': fit.law,
    'law_95': {name: fit.interval(name) for name in fit.law._fields},
    'doubts': fit.doubts,
    'predicted': study.predicted,
    'predicted_95': fit.predict_interval(largest.parameters, largest.tokens),
    'without_e': study.without_e,
    'carried': study.carried,
  }


def draw(study: SizeStudy) -> Any:
  """Returns loss over tokens per size, with the law, and the residuals."""
  drawn = figures.figure(10, 4.4)
  curves, left = drawn.subplots(1, 2, width_ratios=(3, 2))
  sizes = sorted({p.parameters for p in (*study.points, study.largest)})
  tokens = np.geomspace(
    min(point.tokens for point in study.points), study.largest.tokens, 50
  )
  for colour, size in zip(figures.PALETTE, sizes):
    own = [point for point in study.points if point.parameters == size]
    curves.plot(
      [point.tokens for point in own],
      [point.loss for point in own],
      'o',
      color=colour,
      label=f'N = {size:,}',
    )
    curves.plot(tokens, study.fit.law.predict(size, tokens), color=colour)
  largest = study.largest
  curves.plot(
    largest.tokens, largest.loss, 's', color='black', label='held out'
  )
  curves.set_ylabel('held-out loss (nats per token)')
  curves.legend(frameon=False, fontsize=8)
  for colour, size in zip(figures.PALETTE, sizes):
    pairs = [
      (point.tokens, 100 * residual)
      for point, residual in zip(study.points, study.fit.residuals)
      if point.parameters == size
    ]
    if pairs:
      left.plot(*zip(*pairs), 'o-', color=colour, linewidth=1)
  error = -100 * _error(study, study.predicted)
  left.plot(largest.tokens, error, 's', color='black')
  left.axhline(0, color=figures.FAINT, linewidth=1)
  left.set_ylabel('measured above the law (%)')
  ticks = sorted({point.tokens for point in (*study.points, largest)})
  for axes in curves, left:
    axes.set_xscale('log')
    labels = [f'{count / 1e6:.3g}' for count in ticks]
    figures.label_ticks(axes.xaxis, ticks, labels)
    axes.set_xlabel('training tokens, millions')
  return drawn
