"""The scaling study as tables, sentences, a JSON file and a figure."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from kaiju_jax.experiments.studies.sweeps import scaling
from kaiju_jax.reporting import figures
from kaiju_jax.reporting import report

TARGET = 0.02  # Relative error of the prediction.


def parts(study: scaling.Study) -> Iterator[report.Table | str]:
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


def _predicted(study: scaling.Study, point: scaling.Point) -> float:
  return float(study.fit.law.predict(point.parameters, point.tokens))


def _row(point: scaling.Point, law: float) -> list[str]:
  return [
    str(point.width),
    f'{point.parameters:,}',
    f'{point.tokens:,}',
    f'{point.loss:.4f}',
    f'{law:.4f}',
    f'{law / point.loss - 1:+.2%}',
  ]


def _error(study: scaling.Study, predicted: float) -> float:
  return predicted / study.largest.loss - 1


def plain(study: scaling.Study) -> dict[str, Any]:
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


def draw(study: scaling.Study) -> Any:
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
