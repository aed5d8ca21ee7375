"""Find near-duplicate documents, or evaluation items that training text holds.

    python -m experiments.overlap --documents=texts/books,texts/web \\
        --out=runs/unique
    python -m experiments.overlap --evaluation=exam.jsonl \\
        --training=texts/books,texts/web --out=runs/leaks

--documents: two documents are near-duplicates where the sets of their runs of
five words have a Jaccard similarity of at least --least
(`data/curation/duplicates.py`). The first document of each group is kept, so
name the text that you trust most first. The new folder gets

    kept.jsonl    the documents that are kept
    groups.json   each group: path, name, and likeness to the group's first

--evaluation: an item is leaked if at least half of its rare runs of 13 words
stand in one training document; a run is rare if fewer than 10 documents have it
(`data/curation/leaks.py`). The new folder gets

    leaks.json    the leaked items, each with the document that has most of it;
                  and the items whose runs are all common, for you to judge
    clean.jsonl   the items that are neither
"""

from collections.abc import Sequence
import dataclasses

from absl import app

from kaiju_jax.runs import command
from kaiju_jax.runs import flags


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  # Files, folders or globs of text.
  documents: tuple[str, ...] | None = None
  # With --documents: least Jaccard similarity of near-duplicates.
  least: float = 0.8
  # File, folder or glob; each document is an item.
  evaluation: str | None = None
  # With --evaluation: files, folders or globs of the training text.
  training: tuple[str, ...] | None = None
  # A new folder.
  out: str


FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  if bool(settings.documents) == bool(settings.evaluation):
    raise app.UsageError('either --documents or --evaluation must be given.')
  if settings.evaluation:
    flags.need(training=settings.training)
  from kaiju_jax.data.curation import duplicates
  from kaiju_jax.data.curation import leaks
  from kaiju_jax.storage import folders
  from kaiju_jax.training import progress

  folders.refuse_existing(settings.out)
  if settings.documents:
    result = duplicates.find_in_files(
      settings.documents, settings.least, progress.track
    )
    duplicates.write(result, settings.out)
    print(duplicates.describe(result))
  else:
    result = leaks.find_in_files(
      settings.evaluation, settings.training, progress.track
    )
    leaks.write(result, settings.out)
    print(leaks.describe(result))
  print(f'Written: {settings.out}')


if __name__ == '__main__':
  command.run(main)
