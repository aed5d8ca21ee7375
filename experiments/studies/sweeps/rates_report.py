"""The rates' study as a table, sentences, a JSON file and a figure."""

from collections.abc import Iterator
import math
from typing import Any

import numpy as np

from kaiju_jax.experiments.studies.sweeps import rates
from kaiju_jax.reporting import figures
from kaiju_jax.reporting import report

# The targets: the predicted rate, its loss, and the slope under 'width'.
RATIO, EXCESS, SLOPE = 1.4, 0.005, 0.2
_DIVERGED = 'diverged'


def parts(found: rates.Rates) -> Iterator[report.Table | str]:
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
      ' trusted: see the doubts above, and give other --rates.'
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


def plain(found: rates.Rates) -> dict[str, Any]:
  """Returns the result by name, for `report.plain`."""
  data: dict[str, Any] = {}
  for transfer, study in found.studies.items():
    data[transfer] = {
      'widths': {w: rates.plain(one) for w, one in study.found.items()},
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
        **rates.plain(one.found),
      }
  return data


def draw(result: rates.Rates) -> Any:
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
