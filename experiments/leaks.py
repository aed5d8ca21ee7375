"""Finds the items of an evaluation set that stand in training text.

    python -m experiments.leaks --evaluation=exam.jsonl \\
        --training=texts/books,texts/web --out=runs/leaks

An item is leaked if at least half of its rare runs of 13 words stand in one
training document; a run is rare if fewer than 10 documents have it
(`kaiju_jax/data/curation/leaks.py`). The new folder gets

    leaks.json    the leaked items, each with the document that has most of it;
                  and the items whose runs are all common, for you to judge
    clean.jsonl   the items that are neither
"""

from collections.abc import Sequence

from absl import flags

from kaiju_jax.runs import command

_EVALUATION = flags.DEFINE_string(
  'evaluation', None, 'File, folder or glob; each document is an item.'
)
_TRAINING = flags.DEFINE_list(
  'training', None, 'Files, folders or globs of training text.'
)
_OUT = flags.DEFINE_string('out', None, 'A new folder.')


def main(argv: Sequence[str]) -> None:
  command.check(argv, _EVALUATION, _TRAINING, _OUT)
  from kaiju_jax.data.curation import leaks
  from kaiju_jax.storage import folders
  from kaiju_jax.training import progress

  folders.refuse_existing(_OUT.value)
  result = leaks.find_in_files(
    _EVALUATION.value, _TRAINING.value, progress.track
  )
  leaks.write(result, _OUT.value)
  leaked = int(result.found.find_leaked().sum())
  common = int(result.found.common.sum())
  print(
    f'{leaked:,} of {len(result.items.texts):,} items are leaked, {common:,}'
    f' have common runs only. Written: {_OUT.value}/{leaks.LEAKS},'
    f' {_OUT.value}/{leaks.CLEAN}'
  )


if __name__ == '__main__':
  command.run(main)
