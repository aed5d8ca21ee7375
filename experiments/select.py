"""Choose a source's documents that resemble a target.

    python -m experiments.select --target=exam.jsonl --source=texts/web \\
        --count=10000 --out=runs/selected

Scores every document of the source and draws --count of them without
replacement, the likelier the higher the score; --noise=0 takes the highest
scores. With n-grams the score is a document's log importance weight (DSIR);
with another --embedder it is the cosine to the nearest of 16 centroids of the
target (`data/curation/selection.py`). The new folder gets

    chosen.jsonl   the documents, which data.path and experiments.mix read
    report.md      how the scores lie, with a figure
"""

from collections.abc import Sequence
import dataclasses

from kaiju_jax.data.curation import settings as settings_lib
from kaiju_jax.runs import command
from kaiju_jax.runs import flags


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(settings_lib.SelectionSettings):
  # Seed of the noise.
  seed: flags.NonNegative = 0
  # A new folder.
  out: str


FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  from kaiju_jax.data.curation import selection
  from kaiju_jax.runs import embedders
  from kaiju_jax.storage import folders
  from kaiju_jax.training import progress

  folders.refuse_existing(settings.out)
  selection.check(settings)
  embedder = embedders.parse(settings.embedder)
  result = selection.find(settings, embedder, progress.track)
  selection.write(settings, result, settings.out)
  print(
    f'{len(result.chosen.indices):,} of {len(result.chosen.scores):,} documents'
    f' by {result.method}. Written: {settings.out}/{selection.CHOSEN},'
    f' {settings.out}/report.md'
  )


if __name__ == '__main__':
  command.run(main)
