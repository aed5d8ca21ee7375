"""The best learning rate of several widths, and of the next one before it runs.

Every width is trained at every rate of a grid. The line through the optima
(`fits/optimum.py`) predicts the rate of a wider model, which is then
trained at that rate, at half and twice as much, and as a contrast at the
narrowest width's best rate.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import copy
import math
import pathlib
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.experiments.studies.sweeps import study as study_lib
from kaiju_jax.experiments.studies.sweeps.fits import optimum
from kaiju_jax.reporting import figures
from kaiju_jax.reporting import report
from kaiju_jax.runs import grid
from kaiju_jax.training import experiment as experiment_lib

_AROUND = 0.5, 1.0, 2.0  # Times the predicted rate: what is tried beside it.


class RateCell(NamedTuple):
  """One run of the study."""

  transfer: str  # `optimizer.transfer`.
  width: int  # d_model.
  rate: float  # Learning rate.
  seed: int  # The run's.


class WidthLosses(NamedTuple):
  """The losses of one width, and their optimum."""

  rates: list[float]  # float[R], rising.
  losses: np.ndarray  # float[S, R].
  optimum: optimum.Optimum  # The parabola's.


class RateStudy(NamedTuple):
  """All widths of one kind of transfer."""

  found: dict[int, WidthLosses]  # {width: what its losses say}.
  # Through the optima; None where one is not to be trusted.
  line: optimum.Line | None
  kept: float  # The narrowest width's best rate.


class Prediction(NamedTuple):
  """The next width: what was predicted and what was measured."""

  rate: float  # The predicted one.
  found: WidthLosses  # Its own losses and optimum.
  ratio: float  # Predicted / measured optimum.
  # Relative loss at the predicted rate over the measured optimum's.
  excess: float
  kept: float  # The same at the narrowest width's best rate.


class Rates(NamedTuple):
  """The whole of it, by transfer."""

  studies: dict[str, RateStudy]  # What the widths say.
  # How the next width did, where all optima are trusted.
  predictions: dict[str, Prediction]
  width: int  # The next one.

  def list_found(self, transfer: str) -> dict[int, WidthLosses]:
    """Returns {width: what its losses say}, the next one's last."""
    ahead = self.predictions.get(transfer)
    own = self.studies[transfer].found
    return own if ahead is None else {**own, self.width: ahead.found}


def measure(
  experiment: experiment_lib.Experiment,
  settings: study_lib.RateGrid,
  root: pathlib.Path,
) -> Rates:
  """Runs the grid, then the next width, and returns both.

  A transfer with an optimum that is not to be trusted gets no prediction.

  Args:
    experiment: what all runs share.
    settings: what is to be measured.
    root: folder of all workdirs; what is complete there is not run again.

  Raises:
    OSError, ValueError, SystemExit: a run that cannot work, or see
      `grid.run`.
  """

  def losses(cells):
    made = runs(experiment, cells, settings.widths[0], root)
    return grid.losses(made, settings, root)

  grid_losses = losses(
    cells(settings.transfer, settings.widths, settings.rates, settings.seeds)
  )
  studies = {
    transfer: study(grid_losses, transfer, settings.widths, settings.factor)
    for transfer in settings.transfer
  }
  trusted = {t: one for t, one in studies.items() if one.line is not None}
  ahead = []
  for transfer, one in trusted.items():
    rates = list_trials(one.line, settings.predict, one.kept)
    ahead += cells([transfer], [settings.predict], rates, settings.seeds)
  found = losses(ahead)
  predictions = {
    transfer: prediction(found, transfer, settings.predict, one)
    for transfer, one in trusted.items()
  }
  return Rates(studies, predictions, settings.predict)


def cells(
  transfers: Iterable[str],
  widths: Iterable[int],
  rates: Iterable[float],
  seeds: Sequence[int],
) -> list[RateCell]:
  """Returns the whole grid."""
  return [
    RateCell(transfer, width, rate, seed)
    for transfer in transfers
    for width in widths
    for rate in rates
    for seed in seeds
  ]


def runs(
  experiment: experiment_lib.Experiment,
  cells: Sequence[RateCell],
  base: int,
  root: pathlib.Path,
) -> dict[RateCell, grid.Job]:
  """Returns the run of each cell, below `root`.

  `base` is the narrowest width, at which 'width' changes no hidden matrix.

  Raises:
    ValueError: see `widths.with_width`.
  """
  made = {}
  for cell in cells:
    one = study_lib.with_width(copy.deepcopy(experiment), cell.width)
    one.optimizer.learning_rate = cell.rate
    one.optimizer.transfer = cell.transfer
    one.optimizer.transfer_base = base
    one.seed = cell.seed
    name = f'{cell.transfer} {cell.width} at {cell.rate:g}'
    folder = (
      root
      / cell.transfer
      / f'width{cell.width}'
      / f'rate{cell.rate:g}'
      / f'seed{cell.seed}'
    )
    made[cell] = grid.Job(name, one, folder)
  return made


def find_optimum(
  losses: Mapping[RateCell, float], transfer: str, width: int, factor: float
) -> WidthLosses:
  """Returns the optimum of one width; `factor` as in `optimum.optimum`."""
  own = {c: x for c, x in losses.items() if c[:2] == (transfer, width)}
  rates = sorted({cell.rate for cell in own})
  seeds = sorted({cell.seed for cell in own})
  table = np.array(
    [[own[RateCell(transfer, width, r, s)] for r in rates] for s in seeds]
  )
  fitted = optimum.optimum(np.log(rates), table, factor)
  return WidthLosses(rates, table, fitted)


def study(
  losses: Mapping[RateCell, float],
  transfer: str,
  widths: Sequence[int],
  factor: float,
) -> RateStudy:
  """Returns the optima of all widths, and the line if all are trusted."""
  all_found = {w: find_optimum(losses, transfer, w, factor) for w in widths}
  optima = [one.optimum for one in all_found.values()]
  is_trusted = not any(one.doubts for one in optima)
  return RateStudy(
    all_found,
    optimum.line(widths, optima) if is_trusted else None,
    math.exp(optima[0].log_rate),
  )


def list_trials(line: optimum.Line, width: int, kept: float) -> list[float]:
  """Returns the rates, rising, at which the next width runs."""
  rate = predict(line, width)
  return sorted({*(_round(rate * x) for x in _AROUND), _round(kept)})


def predict(line: optimum.Line, width: int) -> float:
  """Returns the rate that the line predicts, to three digits."""
  return _round(math.exp(line.predict(width)))


def prediction(
  losses: Mapping[RateCell, float],
  transfer: str,
  width: int,
  study: RateStudy,
) -> Prediction:
  """Returns how the next width did; `losses` holds its cells."""
  rate = predict(study.line, width)
  measured = find_optimum(losses, transfer, width, factor=2.0)
  means = dict(zip(measured.rates, measured.losses.mean(0)))
  best = measured.optimum.loss
  return Prediction(
    rate,
    measured,
    rate / math.exp(measured.optimum.log_rate),
    float(means[rate]) / best - 1,
    float(means[_round(study.kept)]) / best - 1,
  )


def _plain_width(found: WidthLosses) -> dict[str, Any]:
  """Returns a width's result by name, for `report.plain`."""
  best = found.optimum
  low, high = best.interval()
  return {
    'rates': found.rates,
    'losses': found.losses,
    'best_rate': math.exp(best.log_rate),
    'best_rate_95': [math.exp(low), math.exp(high)],
    'best_loss': best.loss,
    'doubts': best.doubts,
  }


def _round(rate: float) -> float:
  return float(f'{rate:.3g}')


# The targets: the predicted rate, its loss, and the slope under 'width'.
RATIO, EXCESS, SLOPE = 1.4, 0.005, 0.2
_DIVERGED = 'diverged'


def parts(found: Rates) -> Iterator[report.Table | str]:
  """Yields what is printed: a table, and sentences."""
  yield report.Table(
    [
      _row(transfer, width, one.optimum, found.width)
      for transfer in found.studies
      for width, one in found.list_found(transfer).items()
    ],
    ('transfer', 'width', 'best rate', '95 %', 'loss', 'doubts'),
    'Best learning rate by width',
  )
  for transfer, study in found.studies.items():
    yield from _sentences(
      transfer, study, found.predictions.get(transfer), found.width
    )


def _row(transfer: str, width: int, best, predicted: int) -> list[str]:
  low, high = best.interval()
  return [
    transfer,
    f'{width}' + (' (predicted)' if width == predicted else ''),
    f'{math.exp(best.log_rate):.2e}',
    'one seed' if math.isnan(low) else _range(low, high),
    f'{best.loss:.4f}' if math.isfinite(best.loss) else _DIVERGED,
    '; '.join(best.doubts),
  ]


def _range(low: float, high: float) -> str:
  return f'{math.exp(low):.2e}…{math.exp(high):.2e}'


def _sentences(transfer, study, prediction, width) -> Iterator[str]:
  if study.line is None:
    yield (
      f'{transfer}: nothing is predicted, because an optimum is not to be'
      ' trusted: see the doubts above, and give other --'
    )
    return
  low, high = study.line.slope_interval()
  interval = '' if math.isnan(low) else f' ({low:+.2f}…{high:+.2f}, 95 %)'
  slope = f'{transfer}: ln rate changes by {study.line.b:+.2f} per ln width'
  verdict = ''
  if transfer == 'width':
    verdict = (
      f': one rate serves all (target |b| ≤ {SLOPE:g} met)'
      if abs(study.line.b) <= SLOPE
      else f': one rate does NOT serve all (target |b| ≤ {SLOPE:g} MISSED)'
    )
  yield f'{slope}{interval}{verdict}.'
  if prediction.found.optimum.doubts:
    yield (
      f'{transfer}: the optimum of width {width} is not to be trusted:'
      f' {"; ".join(prediction.found.optimum.doubts)}.'
    )
  ratio = max(prediction.ratio, 1 / prediction.ratio)
  near = report.verdict(f'{RATIO:g}', ratio <= RATIO)
  cheap = report.verdict(f'{EXCESS:.1%}', prediction.excess <= EXCESS)
  yield (
    f'{transfer}: width {width} predicted at {prediction.rate:.2e}, measured at'
    f' {math.exp(prediction.found.optimum.log_rate):.2e}: a factor of'
    f' {ratio:.2f} ({near}); loss {_over(prediction.excess)} over the'
    f' optimum ({cheap}). At the narrowest width’s rate'
    f' {study.kept:.2e}: {_over(prediction.kept)}.'
  )


def _over(excess: float) -> str:
  return f'{excess:+.2%}' if math.isfinite(excess) else _DIVERGED


def plain(found: Rates) -> dict[str, Any]:
  """Returns the result by name, for `report.plain`."""
  data: dict[str, Any] = {}
  for transfer, study in found.studies.items():
    data[transfer] = {
      'widths': {w: _plain_width(one) for w, one in study.found.items()},
      'slope': None if study.line is None else study.line.b,
      'narrowest_rate': study.kept,
    }
    if (one := found.predictions.get(transfer)) is not None:
      data[transfer]['predicted'] = {
        'width': found.width,
        'rate': one.rate,
        'ratio': one.ratio,
        'excess': one.excess,
        'narrowest_excess': one.kept,
        **_plain_width(one.found),
      }
  return data


def draw(result: Rates) -> Any:
  """Returns loss over rate per width, and the optima over the width."""
  studies, width = result.studies, result.width
  drawn = figures.figure(4.4 * (len(studies) + 1), 4.2)
  *curves, line = drawn.subplots(1, len(studies) + 1)
  for axes, transfer in zip(curves, studies):
    found = result.list_found(transfer)
    for colour, (one_width, one) in zip(figures.PALETTE, found.items()):
      axes.plot(
        one.rates,
        one.losses.mean(0),
        'o-' if one_width != width else 's--',
        color=colour,
        markersize=4,
        linewidth=1,
        label=f'width {one_width}',
      )
      axes.plot(
        np.exp(one.optimum.log_rate),
        one.optimum.loss,
        '*' if not one.optimum.doubts else 'x',
        color=colour,
        markersize=12,
      )
    optima = [one.optimum.loss for one in found.values()]
    if finite := [loss for loss in optima if math.isfinite(loss)]:
      axes.set_ylim(min(finite) * 0.985, max(finite) * 1.12)
    axes.set_xscale('log')
    axes.minorticks_off()
    axes.set_title(f'transfer {transfer}; ★ fitted optimum', fontsize=10)
    axes.set_xlabel('learning rate')
    axes.set_ylabel('held-out loss (nats per token)')
    axes.legend(frameon=False, fontsize=8)
  for colour, (transfer, study) in zip(figures.PALETTE, studies.items()):
    _optima(
      line, colour, transfer, study, result.predictions.get(transfer), width
    )
  line.set_xscale('log')
  line.set_yscale('log')
  widths = [*next(iter(studies.values())).found, width]
  figures.label_ticks(line.xaxis, widths, widths)
  line.set_xlabel('width d_model')
  line.set_ylabel('best learning rate')
  line.set_title('line through the optima; ■ measured', fontsize=10)
  line.legend(frameon=False, fontsize=8)
  return drawn


def _optima(axes, colour, transfer, study, prediction, width) -> None:
  widths = list(study.found)
  best = [np.exp(one.optimum.log_rate) for one in study.found.values()]
  axes.plot(widths, best, 'o', color=colour, label=transfer)
  if study.line is None:
    return
  ends = np.geomspace(widths[0], width, 20)
  axes.plot(ends, np.exp(study.line.predict(ends)), color=colour, linewidth=1)
  axes.plot(
    width,
    np.exp(prediction.found.optimum.log_rate),
    's',
    color=colour,
    markersize=7,
  )
