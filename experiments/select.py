"""Chooses a source's documents that resemble a target.

    python -m experiments.select --target=exam.jsonl --source=texts/web \\
        --count=10000 --out=runs/selected

scores every document of the source and draws --count of them without
replacement, the likelier the higher the score; --noise=0 takes the highest
scores. With n-grams the score is a document's log importance weight (DSIR);
with another --embedder it is the cosine to the nearest of 16 centroids of the
target (`kaiju_jax/data/curation/selection.py`). The new folder gets

    chosen.jsonl   the documents, which data.path and experiments.mix read
    report.md      how the scores lie, with a figure
"""

from collections.abc import Sequence

from absl import flags

from kaiju_jax.runs import command

_TARGET = flags.DEFINE_string(
  'target', None, 'File, folder or glob of text to resemble.'
)
_SOURCE = flags.DEFINE_string(
  'source', None, 'File, folder or glob of the documents to choose from.'
)
_COUNT = flags.DEFINE_integer('count', None, 'How many documents are chosen.')
_OUT = flags.DEFINE_string('out', None, 'A new folder.')
_EMBEDDER = flags.DEFINE_string(
  'embedder',
  'ngrams',
  'ngrams, lsa, npy:FILE, model:WORKDIR or t5:FOLDER; see experiments.mix.',
)
_METHOD = flags.DEFINE_string(
  'method',
  '',
  'importance or cosine; by default importance for ngrams, and cosine for'
  ' other embedders.',
)
_NOISE = flags.DEFINE_float('noise', 1.0, 'Factor of the Gumbel noise.')
_SEED = flags.DEFINE_integer('seed', 0, 'Seed of the noise.', lower_bound=0)


def main(argv: Sequence[str]) -> None:
  command.check(argv, _TARGET, _SOURCE, _COUNT, _OUT)
  from kaiju_jax.data.curation import selection
  from kaiju_jax.runs import embedders
  from kaiju_jax.storage import folders
  from kaiju_jax.training import progress

  settings = selection.SelectionSettings(
    target=_TARGET.value,
    source=_SOURCE.value,
    count=_COUNT.value,
    embedder=_EMBEDDER.value,
    method=_METHOD.value,
    noise=_NOISE.value,
    seed=_SEED.value,
  )
  folders.refuse_existing(_OUT.value)
  selection.check(settings)
  embedder = embedders.parse(settings.embedder)
  result = selection.find(settings, embedder, progress.track)
  selection.write(settings, result, _OUT.value)
  print(
    f'{len(result.chosen.indices):,} of {len(result.chosen.scores):,} documents'
    f' by {result.method}. Written: {_OUT.value}/{selection.CHOSEN},'
    f' {_OUT.value}/report.md'
  )


if __name__ == '__main__':
  command.run(main)
