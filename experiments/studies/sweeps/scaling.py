"""Sizes × token counts, the law through them, and a run that it has not seen.

The law (`fits/scaling.py`) is fitted to a grid. Held out is one run
with more parameters and more tokens than all of them. Two contrasts predict it
as well: the law without E, and the loss of the grid's largest run.

N counts the parameters of the layers, without the embedding.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import copy
import math
import pathlib
from typing import NamedTuple

from kaiju_jax.costs import footprint
from kaiju_jax.experiments.studies.sweeps import settings as settings_lib
from kaiju_jax.experiments.studies.sweeps import widths as widths_lib
from kaiju_jax.experiments.studies.sweeps.fits import scaling
from kaiju_jax.runs import grid
from kaiju_jax.training import experiment as experiment_lib


class Cell(NamedTuple):
  """One run of the study: d_model, row tokens and seed."""

  width: int
  tokens: int
  seed: int


class Point(NamedTuple):
  """The runs of one size and length.

  Attributes:
    width: d_model.
    parameters: N.
    tokens: D.
    losses: held-out loss of each seed.
  """

  width: int
  parameters: int
  tokens: int
  losses: tuple[float, ...]

  @property
  def loss(self) -> float:
    """Mean over the seeds."""
    return sum(self.losses) / len(self.losses)


class Study(NamedTuple):
  """The fit and what it predicts.

  Attributes:
    points: what was fitted.
    largest: what was held out.
    fit: the law with E.
    predicted: its loss at `largest`.
    without_e: that of the law without E.
    carried: the loss of the fitted run with most parameters and tokens.
  """

  points: tuple[Point, ...]
  largest: Point
  fit: scaling.Fit
  predicted: float
  without_e: float
  carried: float


def measure(
  experiment: experiment_lib.Experiment,
  settings: settings_lib.Scaling,
  root: pathlib.Path,
  at_once: int | None = None,
) -> Study:
  """Runs the grid and the held-out run, and returns the fit.

  Args:
    experiment: what all runs share; its learning rate is that of its own width.
    settings: what is to be measured.
    root: folder of all workdirs; what is complete there is not run again.
    at_once: processes, as in `grid.run`.

  Raises:
    OSError, ValueError, SystemExit: a run that cannot work or that diverged,
      or see `grid.run`.
  """
  places = *settings.places, settings.largest
  cells = [Cell(*place, seed) for place in places for seed in settings.seeds]
  made = runs(experiment, cells, settings.rate_slope, root)
  losses = grid.losses(made, at_once)
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
  cells: Sequence[Cell],
  slope: float,
  root: pathlib.Path,
) -> dict[Cell, grid.Job]:
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
    one = widths_lib.with_width(copy.deepcopy(experiment), cell.width)
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
  runs: Mapping[Cell, grid.Job], losses: Mapping[Cell, float]
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


def study(points: Sequence[Point], largest: Point) -> Study:
  """Fits the law to `points` and predicts `largest`.

  Raises:
    ValueError: too few points for the law, or a run that diverged.
  """
  columns = (
    [point.parameters for point in points],
    [point.tokens for point in points],
    [point.loss for point in points],
  )
  fitted = scaling.fit(*columns)
  without = scaling.fit(*columns, with_e=False, draws=0)
  place = largest.parameters, largest.tokens
  last = max(points, key=lambda point: (point.parameters, point.tokens))
  return Study(
    tuple(points),
    largest,
    fitted,
    float(fitted.law.predict(*place)),
    float(without.law.predict(*place)),
    last.loss,
  )
