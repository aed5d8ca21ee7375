"""Seconds of mixing, selecting and comparing made-up documents."""

from collections.abc import Callable
from collections.abc import Iterator
import itertools
import time
from typing import Any

import numpy as np

from kaiju_jax.data.curation import duplicates
from kaiju_jax.data.curation import leaks
from kaiju_jax.data.curation import mixing
from kaiju_jax.data.curation import selection
from kaiju_jax.data.curation import similarity
from kaiju_jax.reporting import report
from kaiju_jax.training import progress

_VOCABULARY = 20_000
_SOURCES = 4


def measure(count: int, words: int) -> report.Report:
  """Returns the processor's seconds of each step.

  Args:
    count: documents.
    words: of each.
  """
  rows = []
  steps = list(_steps(_texts(count, words)))
  for name, step in progress.track(steps, 'measuring'):
    begun = time.process_time()
    step()
    rows.append((name, f'{time.process_time() - begun:.1f}'))
  page = report.Report()
  title = f'{count:,} documents of {words:,} words: seconds of the processor'
  page.table(rows, ('step', 'seconds'), title=title)
  return page


def _texts(count: int, words: int) -> list[str]:
  rng = np.random.default_rng(0)
  shares = 1 / np.arange(5, _VOCABULARY + 5)
  drawn = rng.choice(_VOCABULARY, (count, words), p=shares / shares.sum())
  vocabulary = np.array([f'word{number}' for number in range(_VOCABULARY)])
  return [' '.join(vocabulary[row]) for row in drawn]


def _steps(texts: list[str]) -> Iterator[tuple[str, Callable[[], Any]]]:
  """Yields (name, function) of what is measured, in this order."""
  vectors = {}
  half = len(texts) // 2

  def embed(embedder):
    vectors[embedder.name] = embedder.embed(texts)

  def mix(name, method):
    ends = np.linspace(half, len(texts), _SOURCES + 1).astype(int)
    target, *sources = (
      mixing.Mean(vectors[name][begin:end], np.ones(end - begin))
      for begin, end in [(0, half), *itertools.pairwise(ends)]
    )
    mixing.mix(method, target, sources, distributions=method == 'em')

  def select():
    counts = similarity.ngram_counts(texts)
    scores = selection.importance(counts[:half], counts[half:])
    selection.choose(scores, half // 10)

  yield 'n-grams', lambda: embed(similarity.Ngrams())
  yield 'em, 200 resamples', lambda: mix('ngrams', 'em')
  yield 'lsa', lambda: embed(similarity.Lsa())
  yield 'least squares, 200 resamples', lambda: mix('lsa', 'least_squares')
  yield 'select by importance, n-grams included', select
  yield 'near-duplicates', lambda: duplicates.find(texts)
  yield (
    'leaks of the first half into the second',
    lambda: leaks.find(texts[:half], texts[half:]),
  )
