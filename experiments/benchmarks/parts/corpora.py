"""Measure the seconds that mixing, selecting and comparing documents take.

    python -m experiments.benchmarks.corpora [--documents=10000] [--words=400]

The documents are random words of a Zipf distribution, half of them in a target
and half in four sources. Reading files is not included.
"""

from collections.abc import Sequence
import dataclasses
import itertools
import time
from typing import Annotated

from kaiju_jax.reporting import report
from kaiju_jax.runs import command
from kaiju_jax.runs import flags

_VOCABULARY = 20_000
_SOURCES = 4


@dataclasses.dataclass(frozen=True)
class Settings:
  """Which documents."""

  # How many documents.
  documents: Annotated[int, flags.Bounds(20)] = 10_000
  # Words of each.
  words: Annotated[int, flags.Bounds(20)] = 400


_FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = _FLAGS.read(argv)
  from kaiju_jax.training import progress

  count, words = settings.documents, settings.words
  rows = []
  steps = list(_steps(_texts(count, words)))
  for name, step in progress.track(steps, 'measuring'):
    begun = time.process_time()
    step()
    rows.append((name, f'{time.process_time() - begun:.1f}'))
  title = f'{count:,} documents of {words:,} words: seconds of the processor'
  report.Report().table(rows, ('step', 'seconds'), title).show()


def _texts(count: int, words: int) -> list[str]:
  import numpy as np

  rng = np.random.default_rng(0)
  shares = 1 / np.arange(5, _VOCABULARY + 5)
  drawn = rng.choice(_VOCABULARY, (count, words), p=shares / shares.sum())
  vocabulary = np.array([f'word{number}' for number in range(_VOCABULARY)])
  return [' '.join(vocabulary[row]) for row in drawn]


def _steps(texts: list[str]):
  """Yields (name, function) of what is measured, in this order."""
  import numpy as np

  from kaiju_jax.data.curation import duplicates
  from kaiju_jax.data.curation import leaks
  from kaiju_jax.data.curation import mixing
  from kaiju_jax.data.curation import selection
  from kaiju_jax.data.curation import similarity

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


if __name__ == '__main__':
  command.run(main)
