"""Weighs the sources that flags name, so that their mix resembles a target.

The new folder gets mix.json, which training reads, and a report.
"""

import dataclasses
import functools
import shlex
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.data import config as data_config
from kaiju_jax.data import mix_file
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.data.curation import collections
from kaiju_jax.data.curation import mixing
from kaiju_jax.data.curation import settings as settings_lib
from kaiju_jax.data.curation import similarity
from kaiju_jax.reporting import figures
from kaiju_jax.reporting import report
from kaiju_jax.storage import folders

_UNITS = {
  True: 'Jensen–Shannon divergence, nats',
  False: 'Euclidean distance of the means',
}


class MixedSources(NamedTuple):
  """A mix and its sources; arrays have one entry per source."""

  mix: mixing.Mix  # The weights, intervals and distances.
  method: str  # The method that was used.
  # Whether the vectors are distributions; it determines the distance.
  distributions: bool
  names: tuple[str, ...]  # The sources' names.
  documents: np.ndarray  # The number of documents.
  sizes: np.ndarray  # The number of tokens.
  bounds: np.ndarray  # The largest allowed weight.
  target: tuple[int, int]  # Documents and tokens of the target.

  def lasts(self, epochs: float) -> float:
    """Returns the tokens after which a source is read `epochs` times."""
    used = self.mix.weights > 0
    return float(np.min(epochs * self.sizes[used] / self.mix.weights[used]))


def check(settings: settings_lib.MixSettings) -> None:
  """Refuses wrong flags or files, before any text is read.

  Raises:
    OSError, ValueError: names the flag, its value and what would be right.
  """
  figures.require_figures()
  names = set()
  for flag, listed in (
    ('sources', settings.sources),
    ('measured', settings.measured),
  ):
    for name, path in listed:
      if name in names:
        raise ValueError(f'--{flag}: {name!r} is the name of two sources.')
      names.add(name)
      if not path or not name or '/' in name:
        raise ValueError(
          f'--{flag}: {name}={path} must be NAME=PATH, without / in the name.'
        )
  if not settings.target:
    raise ValueError(
      '--target is missing; must be a file, folder or glob of text.'
    )
  if settings.method and settings.method not in mixing.METHODS:
    raise ValueError(
      f'--method={settings.method}: must be one of {", ".join(mixing.METHODS)}.'
    )
  for name, value, least in (
    ('tokens', settings.tokens, 0),
    ('resamples', settings.resamples, 2),
  ):
    if value < least:
      raise ValueError(f'--{name}={value}: must be at least {least}.')
  if not 0 < settings.epochs < np.inf:
    raise ValueError(
      f'--epochs={settings.epochs}: must be positive and finite.'
    )
  others = [(f'--sources={name}', path) for name, path in settings.sources]
  collections.refuse_shared(settings.target, others, '--target')
  for name, path in settings.measured:
    collections.refuse_shared(path, others, f'--measured={name}')
  tokenizer_lib.load(settings.tokenizer)
  anneal_weights(settings)


def anneal_weights(settings: settings_lib.MixSettings) -> dict[str, float]:
  """Returns each source's weight in the annealing stage; {} for no stage."""
  if not settings.anneal:
    return {}
  try:
    found = mix_file.read(settings.anneal)
  except (OSError, ValueError) as error:
    raise type(error)(f'--anneal: {error}') from error
  weights = {one.name: one.weight for one in found if one.weight}
  names = {name for name, _ in settings.sources}
  if strange := sorted(weights.keys() - names):
    raise ValueError(
      f'--anneal={settings.anneal}: gives weight to {", ".join(strange)}, which'
      f' --sources does not name; it names {", ".join(sorted(names))}.'
    )
  return {name: weights.get(name, 0.0) for name in names}


def find(
  settings: settings_lib.MixSettings,
  embedder: similarity.Embedder,
  track: similarity.Track = similarity.ignore_progress,
) -> MixedSources:
  """Reads and embeds the texts, and finds the weights.

  Raises:
    OSError, ValueError: the text is unusable.
  """
  method = settings.method or (
    'em' if embedder.distributions else 'least_squares'
  )
  if method == 'em' and not embedder.distributions:
    raise ValueError(
      '--method=em: needs distributions, as ngrams gives them, and'
      f' --embedder={settings.embedder} gives other vectors; use least_squares.'
    )
  given = [
    collections.collection('target', settings.target, '--target'),
    *(
      collections.collection(name, path, f'--sources={name}')
      for name, path in settings.sources
    ),
  ]
  tokenizer = tokenizer_lib.load(settings.tokenizer)
  tokens = [one.tokens(tokenizer, track) for one in given]
  sizes = np.array([one.sum() for one in tokens])
  bounds = mixing.bounds(sizes[1:], settings.tokens, settings.epochs)
  watch = functools.partial(track, what='embedding documents')
  vectors = embedder.embed(collections.Texts(*given), watch)
  ends = np.cumsum([0, *(len(one.documents) for one in given)])
  means = [
    mixing.Mean(vectors[begin:end], own)
    for begin, end, own in zip(ends, ends[1:], tokens)
  ]
  return MixedSources(
    mix=mixing.mix(
      method,
      means[0],
      means[1:],
      bounds,
      embedder.distributions,
      settings.resamples,
      settings.seed,
      functools.partial(track, what='resampling documents'),
    ),
    method=method,
    distributions=embedder.distributions,
    names=tuple(name for name, _ in settings.sources),
    documents=np.diff(ends)[1:],
    sizes=sizes[1:],
    bounds=bounds,
    target=(len(tokens[0]), int(sizes[0])),
  )


def write(
  settings: settings_lib.MixSettings, result: MixedSources, out: str
) -> None:
  """Writes mix.json, report.md and its figures into a new folder.

  Raises:
    OSError, ValueError: see `folders.write_whole`.
  """
  annealed = anneal_weights(settings)
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
    page(settings, result).save(folder)


def account(
  settings: settings_lib.MixSettings, result: MixedSources
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


def command(settings: settings_lib.MixSettings) -> str:
  """Returns the command that makes the mix, without its --out."""
  named = {
    one.name: getattr(settings, one.name)
    for one in dataclasses.fields(settings_lib.MixSettings)
    if getattr(settings, one.name) != one.default
  }
  for name in 'sources', 'measured':
    if name in named:
      named[name] = ','.join(f'{one}={path}' for one, path in named[name])
  words = [f'--{name}={value}' for name, value in named.items()]
  return shlex.join(['python', '-m', 'experiments.mix', *words])


def page(
  settings: settings_lib.MixSettings, result: MixedSources
) -> report.Report:
  """Returns the report."""
  mix = result.mix
  documents, tokens = result.target
  share = result.sizes / result.sizes.sum()
  found = report.Report(f'A mix as similar as possible to {settings.target}')
  found.say(f'    {command(settings)}')
  found.say(
    f'The target holds {documents:,} documents, {tokens:,} tokens. Embedder:'
    f' {settings.embedder}. Method: {result.method}. The weights are at most'
    f' {mix.gap:.2g} away from the best value of the objective'
    f' ({"nats per n-gram" if result.method == "em" else "squared distance"}).'
  )
  rows = [
    (
      result.names[row],
      f'{mix.weights[row]:.3f}',
      f'{mix.low[row]:.3f} … {mix.high[row]:.3f}',
      f'{result.bounds[row]:.3f}' if result.bounds[row] < 1 else 'none',
      f'{share[row]:.3f}',
      f'{result.documents[row]:,}',
      f'{result.sizes[row]:,}',
      f'{mix.distances[row]:.4f}',
    )
    for row in np.argsort(-mix.weights, kind='stable')
  ]
  everything = f'{result.documents.sum():,}', f'{result.sizes.sum():,}'
  found.table(
    [
      *rows,
      ('**the mix**', 1, '', '', '', '', '', f'{mix.distance:.4f}'),
      ('all text as it is', 1, '', '', 1, *everything, f'{mix.pooled:.4f}'),
    ],
    (
      *('source', 'weight', '95 % interval', 'bound', 'share of all text'),
      *('documents', 'tokens', 'distance from the target'),
    ),
  )
  found.say(
    f'Distance: {_UNITS[result.distributions]}. The intervals show how the'
    f' weights vary with the documents at hand ({settings.resamples} resamples'
    ' of target and sources); a source with an interval that begins at 0 may be'
    ' left out.'
  )
  found.say(_epochs(settings, result))
  found.figure('weights.png', _weights(result), 'Weights with intervals')
  text = 'Distances from the target'
  found.figure('distances.png', _distances(result), text)
  return found


def _epochs(settings: settings_lib.MixSettings, result: MixedSources) -> str:
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


def _weights(result: MixedSources):
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


def _distances(result: MixedSources):
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


def parse_source(flag: str, text: str) -> tuple[str, str]:
  """Returns the name and the path of NAME=PATH.

  Raises:
    ValueError: names the flag and the text.
  """
  name, equals, path = text.partition('=')
  if not equals or not name or not path:
    raise ValueError(f'--{flag}: {text!r} is not NAME=PATH.')
  return name, path


def tabulate(result: MixedSources) -> report.Report:
  """Returns the weights with intervals, sizes and distances."""
  mix = result.mix
  rows = [
    (
      name,
      f'{mix.weights[row]:.3f}',
      f'{mix.low[row]:.3f} … {mix.high[row]:.3f}',
      f'{result.sizes[row]:,}',
      f'{mix.distances[row]:.4f}',
    )
    for row, name in enumerate(result.names)
  ]
  rows.append(('the mix', 1, '', '', f'{mix.distance:.4f}'))
  rows.append(('all text as it is', '', '', '', f'{mix.pooled:.4f}'))
  columns = 'source', 'weight', '95 % interval', 'tokens', 'distance'
  return report.Report().table(rows, columns)
