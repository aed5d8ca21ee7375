"""Finds the weights of sources that resemble a target."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kaiju_jax.data import mix_file
from kaiju_jax.data import mixing
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.reporting import figures
from kaiju_jax.runs import embedders
from kaiju_jax.runs.corpora import read


class Settings(NamedTuple):
  """The settings of a mix.

  Attributes:
    target: path of the text that the mix should resemble.
    sources: (name, path) of each source.
    embedder: the name of the embedder (`runs/embedders.py`).
    method: one of `mixing.METHODS`; '' for em if the vectors are
      distributions, and least_squares otherwise.
    tokenizer: path of the `tokenizer.json` that counts tokens; '' for bytes.
    tokens: tokens of the run that uses the mix; 0 if unknown, in which case no
      weight is bounded.
    epochs: the most times that a source may be read.
    resamples: the bootstrap's resamples.
    seed: the bootstrap's seed.
    measured: (name, path) of texts that training does not read, but whose
      held-out loss it reports: sources of weight 0. The target may be one.
    anneal: path of another mix.json over the same sources, whose weights apply
      in the annealing stage near a run's end; '' for none.
  """

  target: str
  sources: Sequence[tuple[str, str]]
  embedder: str = 'ngrams'
  method: str = ''
  tokenizer: str = ''
  tokens: int = 0
  epochs: float = 4.0
  resamples: int = 200
  seed: int = 0
  measured: Sequence[tuple[str, str]] = ()
  anneal: str = ''


class Result(NamedTuple):
  """A mix and its sources; arrays have one entry per source.

  Attributes:
    mix: the weights, intervals and distances.
    method: the method that was used.
    distributions: whether the vectors are distributions; it determines the
      distance.
    names: the sources' names.
    documents: the number of documents.
    sizes: the number of tokens.
    bounds: the largest allowed weight.
    target: documents and tokens of the target.
  """

  mix: mixing.Mix
  method: str
  distributions: bool
  names: tuple[str, ...]
  documents: np.ndarray
  sizes: np.ndarray
  bounds: np.ndarray
  target: tuple[int, int]

  def lasts(self, epochs: float) -> float:
    """Returns the tokens after which a source is read `epochs` times."""
    used = self.mix.weights > 0
    return float(np.min(epochs * self.sizes[used] / self.mix.weights[used]))


def check(settings: Settings) -> None:
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
  read.refuse_shared(settings.target, others, '--target')
  for name, path in settings.measured:
    read.refuse_shared(path, others, f'--measured={name}')
  tokenizer_lib.load(settings.tokenizer)
  anneal_weights(settings)


def anneal_weights(settings: Settings) -> dict[str, float]:
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


def find(settings: Settings) -> Result:
  """Reads and embeds the texts, and finds the weights.

  Raises:
    OSError, ValueError: see `check`; or the text is unusable.
  """
  check(settings)
  embedder = embedders.parse(settings.embedder)
  method = settings.method or (
    'em' if embedder.distributions else 'least_squares'
  )
  if method == 'em' and not embedder.distributions:
    raise ValueError(
      '--method=em: needs distributions, as ngrams gives them, and'
      f' --embedder={settings.embedder} gives other vectors; use least_squares.'
    )
  collections = [
    read.collection('target', settings.target, '--target'),
    *(
      read.collection(name, path, f'--sources={name}')
      for name, path in settings.sources
    ),
  ]
  tokenizer = tokenizer_lib.load(settings.tokenizer)
  watch = read.watch('counting tokens')
  tokens = [one.tokens(tokenizer, watch) for one in collections]
  sizes = np.array([one.sum() for one in tokens])
  bounds = mixing.bounds(sizes[1:], settings.tokens, settings.epochs)
  texts = [text for one in collections for text in one.texts]
  vectors = embedder.embed(texts, read.watch('embedding documents'))
  ends = np.cumsum([0, *(len(one.texts) for one in collections)])
  means = [
    mixing.Mean(vectors[begin:end], own)
    for begin, end, own in zip(ends, ends[1:], tokens)
  ]
  return Result(
    mix=mixing.mix(
      method,
      means[0],
      means[1:],
      bounds,
      embedder.distributions,
      settings.resamples,
      settings.seed,
      read.watch('resampling documents'),
    ),
    method=method,
    distributions=embedder.distributions,
    names=tuple(name for name, _ in settings.sources),
    documents=np.diff(ends)[1:],
    sizes=sizes[1:],
    bounds=bounds,
    target=(len(tokens[0]), int(sizes[0])),
  )
