"""Writes a mix: mix.json, and a report of one Markdown page and two figures."""

import pathlib
import shlex
from typing import Any

import numpy as np

from kaiju_jax.data import config as data_config
from kaiju_jax.data import mix_file
from kaiju_jax.reporting import figures
from kaiju_jax.runs.corpora import mix as mix_lib
from kaiju_jax.storage import files
from kaiju_jax.storage import folders

FILE = 'report.md'
_WEIGHTS = 'weights.png'
_DISTANCES = 'distances.png'
_UNITS = {
  True: 'Jensen–Shannon divergence, nats',
  False: 'Euclidean distance of the means',
}


def write(settings: mix_lib.Settings, result: mix_lib.Result, out: str) -> None:
  """Writes mix.json, report.md and its figures into a new folder.

  Raises:
    OSError, ValueError: see `folders.write_whole`.
  """
  annealed = mix_lib.anneal_weights(settings)
  sources = [
    data_config.SourceConfig(name, path, float(weight), annealed.get(name, -1))
    for (name, path), weight in zip(settings.sources, result.mix.weights)
  ]
  sources += [
    data_config.SourceConfig(name, path, 0.0)
    for name, path in settings.measured
  ]
  with folders.write_whole(out) as folder:
    mix_file.write(folder / 'mix.json', sources, account(settings, result))
    _write_page(folder, settings, result)


def _write_page(
  folder: pathlib.Path, settings: mix_lib.Settings, result: mix_lib.Result
) -> None:
  """Writes the page and its figures into a folder."""
  figures.save(_weights(result), folder / _WEIGHTS)
  figures.save(_distances(result), folder / _DISTANCES)
  with files.writing(str(folder / FILE)):
    (folder / FILE).write_text(page(settings, result), encoding='utf-8')


def account(
  settings: mix_lib.Settings, result: mix_lib.Result
) -> dict[str, Any]:
  """Returns the settings and results behind the weights, for mix.json."""
  mix = result.mix
  columns = zip(
    result.names, mix.low, mix.high, result.sizes, mix.distances, result.bounds
  )
  return {
    'target': settings.target,
    'embedder': settings.embedder,
    'method': result.method,
    'tokenizer': settings.tokenizer,
    'tokens': settings.tokens,
    'epochs': settings.epochs,
    'resamples': settings.resamples,
    'seed': settings.seed,
    'anneal': settings.anneal,
    'gap': mix.gap,
    'distance': mix.distance,
    'distance_of_all': mix.pooled,
    'found': {
      name: {
        'low': float(low),
        'high': float(high),
        'tokens': int(size),
        'distance': float(distance),
        'bound': float(bound),
      }
      for name, low, high, size, distance, bound in columns
    },
  }


def command(settings: mix_lib.Settings) -> str:
  """Returns the command that makes the mix, without its --out."""
  named = {
    name: value
    for name, value in settings._asdict().items()
    if value != settings._field_defaults.get(name)
  }
  for name in 'sources', 'measured':
    if name in named:
      named[name] = ','.join(f'{one}={path}' for one, path in named[name])
  words = [f'--{name}={value}' for name, value in named.items()]
  return shlex.join(['python', '-m', 'experiments.mix', *words])


def page(settings: mix_lib.Settings, result: mix_lib.Result) -> str:
  """Returns the report as Markdown."""
  mix = result.mix
  documents, tokens = result.target
  share = result.sizes / result.sizes.sum()
  lines = [
    f'# A mix as similar as possible to {settings.target}',
    '',
    f'    {command(settings)}',
    '',
    f'The target holds {documents:,} documents, {tokens:,} tokens. Embedder:'
    f' {settings.embedder}. Method: {result.method}. The weights are at most'
    f' {mix.gap:.2g} away from the best value of the objective'
    f' ({"nats per n-gram" if result.method == "em" else "squared distance"}).',
    '',
    '| source | weight | 95 % interval | bound | share of all text |'
    ' documents | tokens | distance from the target |',
    '|---|---|---|---|---|---|---|---|',
  ]
  for row in np.argsort(-mix.weights, kind='stable'):
    lines.append(
      f'| {result.names[row]} | {mix.weights[row]:.3f} |'
      f' {mix.low[row]:.3f} … {mix.high[row]:.3f} |'
      f' {_format_bound(result.bounds[row])} | {share[row]:.3f} |'
      f' {result.documents[row]:,} | {result.sizes[row]:,} |'
      f' {mix.distances[row]:.4f} |'
    )
  lines += [
    f'| **the mix** | 1 | | | | | | {mix.distance:.4f} |',
    f'| all text as it is | 1 | | | 1 | {result.documents.sum():,} |'
    f' {result.sizes.sum():,} | {mix.pooled:.4f} |',
    '',
    f'Distance: {_UNITS[result.distributions]}. The intervals show how the'
    f' weights vary with the documents at hand ({settings.resamples} resamples'
    ' of target and sources); a source with an interval that begins at 0 may be'
    ' left out.',
    '',
    _epochs(settings, result),
    '',
    f'![Weights with intervals]({_WEIGHTS})',
    '',
    f'![Distances from the target]({_DISTANCES})',
    '',
  ]
  return '\n'.join(lines)


def _format_bound(bound: float) -> str:
  return f'{bound:.3f}' if bound < 1 else 'none'


def _epochs(settings: mix_lib.Settings, result: mix_lib.Result) -> str:
  """Returns a sentence on how often the sources are read."""
  lasts = result.lasts(settings.epochs)
  if not settings.tokens:
    return (
      f'No source is read more than {settings.epochs:g} times in a run of up to'
      f' {lasts:,.0f} tokens; --tokens bounds the weights for a longer one.'
    )
  epochs = result.mix.weights * settings.tokens / result.sizes
  worst = int(np.argmax(epochs))
  return (
    f'In a run of {settings.tokens:,} tokens, {result.names[worst]} is read'
    f' most often, {epochs[worst]:.2f} times; {settings.epochs:g} are allowed.'
  )


def _axes(rows: int):
  drawn = figures.figure(7.5, 1.4 + 0.42 * rows)
  axes = drawn.subplots()
  axes.spines[['top', 'right']].set_visible(False)
  axes.tick_params(colors=figures.INK)
  return drawn, axes


def _weights(result: mix_lib.Result):
  """Draws each weight with its interval, beside its share of all text."""
  mix = result.mix
  order = np.argsort(mix.weights, kind='stable')
  places = np.arange(len(order))
  drawn, axes = _axes(len(order))
  share = (result.sizes / result.sizes.sum())[order]
  axes.barh(
    places, share, color=figures.GREY, height=0.7, label='share of all text'
  )
  weights = mix.weights[order]
  around = weights - mix.low[order], mix.high[order] - weights
  axes.errorbar(
    weights,
    places,
    xerr=around,
    fmt='o',
    color=figures.BLUE,
    capsize=3,
    label='weight, 95 % interval',
  )
  bounded = result.bounds[order] < 1
  axes.plot(
    result.bounds[order][bounded],
    places[bounded],
    '|',
    color=figures.ORANGE,
    ms=14,
    mew=2,
    label='bound',
  )
  axes.set_yticks(places, [result.names[row] for row in order])
  axes.set_xlim(0, None)
  axes.set_xlabel('share of the tokens')
  axes.legend(frameon=False, loc='best')
  return drawn


def _distances(result: mix_lib.Result):
  """Draws the target's distance of each source, of all text and of the mix."""
  mix = result.mix
  order = np.argsort(-mix.distances, kind='stable')
  names = [result.names[row] for row in order]
  values = mix.distances[order]
  drawn, axes = _axes(len(order) + 2)
  labels = [*names, 'all text as it is', 'the mix']
  colors = [figures.GREY] * len(order) + [figures.ORANGE, figures.BLUE]
  axes.barh(labels, [*values, mix.pooled, mix.distance], color=colors)
  axes.set_xlabel(f'distance from the target ({_UNITS[result.distributions]})')
  return drawn
