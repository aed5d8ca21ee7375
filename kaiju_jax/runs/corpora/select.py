"""Chooses the documents of a source that resemble a target most."""

from typing import NamedTuple

import numpy as np

from kaiju_jax.data import selection
from kaiju_jax.data import similarity
from kaiju_jax.reporting import figures
from kaiju_jax.runs import embedders
from kaiju_jax.runs.corpora import read
from kaiju_jax.storage import files
from kaiju_jax.storage import folders

METHODS = ('importance', 'cosine')
CHOSEN = 'chosen.jsonl'


class Settings(NamedTuple):
  """The settings of a selection.

  Attributes:
    target: path of the text that the documents should resemble.
    source: path of the documents to choose from.
    count: the number of documents to choose.
    embedder: the name of the embedder (`runs/embedders.py`).
    method: one of METHODS; '' for importance with n-grams, and cosine with
      other embedders.
    noise: factor of the Gumbel noise.
    seed: the seed of the noise and of the clustering.
  """

  target: str
  source: str
  count: int
  embedder: str = 'ngrams'
  method: str = ''
  noise: float = 1.0
  seed: int = 0


class Result(NamedTuple):
  """The chosen documents.

  Attributes:
    source: the documents to choose from.
    chosen: the indices of the chosen ones, and all scores.
    method: the method that was used.
  """

  source: read.Collection
  chosen: selection.Chosen
  method: str


def check(settings: Settings) -> None:
  """Refuses wrong flags or files, before any text is read.

  Raises:
    OSError, ValueError: names the flag, its value and what would be right.
  """
  figures.require_figures()
  if settings.method and settings.method not in METHODS:
    raise ValueError(
      f'--method={settings.method}: must be one of {", ".join(METHODS)}.'
    )
  if settings.method == 'importance' and settings.embedder != 'ngrams':
    raise ValueError(
      '--method=importance: counts n-grams and has no use for'
      f' --embedder={settings.embedder}; use cosine.'
    )
  if settings.count < 1:
    raise ValueError(f'--count={settings.count}: must be at least 1.')
  if not 0 <= settings.noise < np.inf:
    raise ValueError(f'--noise={settings.noise}: must be finite, at least 0.')
  read.refuse_shared(
    settings.target, [('--source', settings.source)], '--target'
  )


def find(settings: Settings) -> Result:
  """Reads and scores the documents, and chooses among them.

  Raises:
    OSError, ValueError: see `check`; or the text is unusable.
  """
  check(settings)
  embedder = embedders.parse(settings.embedder)
  method = settings.method or (
    'importance' if settings.embedder == 'ngrams' else 'cosine'
  )
  target = read.collection('target', settings.target, '--target')
  source = read.collection('source', settings.source, '--source')
  if settings.count > len(source.texts):
    raise ValueError(
      f'--count={settings.count}: must be at most {len(source.texts)}, the'
      f' documents in --source={settings.source!r}.'
    )
  texts = [*target.texts, *source.texts]
  split = len(target.texts)
  watch = read.watch('embedding documents')
  if method == 'importance':
    counts = similarity.ngram_counts(texts, watch=watch)
    scores = selection.importance(counts[:split], counts[split:])
  else:
    vectors = embedder.embed(texts, watch)
    scores = selection.cosine(
      vectors[:split], vectors[split:], seed=settings.seed
    )
  chosen = selection.choose(
    scores, settings.count, settings.noise, settings.seed
  )
  return Result(source, chosen, method)


def write(settings: Settings, result: Result, out: str) -> None:
  """Writes chosen.jsonl, report.md and scores.png into a new folder.

  Raises:
    OSError, ValueError: see `folders.write_whole`.
  """
  documents, scores = result.source.documents, result.chosen.scores
  with folders.write_whole(out) as folder:
    read.write_lines(
      folder / CHOSEN,
      (
        (documents[one], {'score': round(float(scores[one]), 6)})
        for one in result.chosen.indices
      ),
    )
    figures.save(_figure(result), folder / 'scores.png')
    with files.writing(str(folder / 'report.md')):
      (folder / 'report.md').write_text(
        page(settings, result), encoding='utf-8'
      )


def page(settings: Settings, result: Result) -> str:
  """Returns the report as Markdown."""
  scores, indices = result.chosen.scores, result.chosen.indices
  order = indices[np.argsort(-scores[indices], kind='stable')]
  best = set(np.argsort(-scores, kind='stable')[: len(indices)].tolist())
  shared = len(best & set(indices.tolist()))
  sizes = np.array([len(text) for text in result.source.texts])
  lines = [
    f'# {len(indices):,} documents of {settings.source} like {settings.target}',
    '',
    f'{len(indices):,} of {len(scores):,} documents,'
    f' {sizes[indices].sum():,} of {sizes.sum():,} characters; the median is'
    f' {np.median(sizes[indices]):,.0f} characters among the chosen and'
    f' {np.median(sizes):,.0f} among all.'
    f' Method: {result.method}. Embedder: {settings.embedder}. Noise:'
    f' {settings.noise:g}, seed {settings.seed}: {shared:,} of them are also'
    f' among the {len(indices):,} highest scores.',
    '',
    f'Median score of all documents {np.median(scores):.3f}, of the chosen'
    f' {np.median(scores[indices]):.3f}.',
    '',
    '| the highest scores among the chosen | score |',
    '|---|---|',
    *(
      f'| {result.source.documents[one].name} | {scores[one]:.3f} |'
      for one in order[:10]
    ),
    '',
    '![Scores](scores.png)',
    '',
  ]
  return '\n'.join(lines)


def _figure(result: Result):
  scores = result.chosen.scores
  drawn = figures.figure(7.5, 3.6)
  axes = drawn.subplots()
  # A few extreme scores would leave one bar for all the others.
  low, high = np.quantile(scores, [0.005, 0.995])
  edges = np.linspace(low, max(high, low + 1e-6), 61)
  for values, color, label in (
    (scores, figures.GREY, 'all documents'),
    (scores[result.chosen.indices], figures.BLUE, 'chosen'),
  ):
    axes.hist(np.clip(values, low, high), edges, color=color, label=label)
  axes.set_yscale('log')
  axes.set_xlabel(f'score ({result.method})')
  axes.set_ylabel('documents')
  axes.spines[['top', 'right']].set_visible(False)
  axes.legend(frameon=False)
  return drawn
