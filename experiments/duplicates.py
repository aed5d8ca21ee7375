"""Finds near-duplicates among documents, and writes what is left without them.

    python -m experiments.duplicates --documents=texts/books,texts/web \\
        --out=runs/unique

Two documents are near-duplicates where the sets of their runs of five words
have a Jaccard similarity of at least 0.8 (`data/curation/duplicates.py`). The
first document of each group is kept, so name the text that you trust most
first. The new folder gets

    kept.jsonl    the documents that are kept
    groups.json   each group: path, name, and likeness to the group's first
"""

from collections.abc import Sequence

from absl import flags

from kaiju_jax.runs import command

_DOCUMENTS = flags.DEFINE_list(
  'documents', None, 'Files, folders or globs of text.'
)
_OUT = flags.DEFINE_string('out', None, 'A new folder.')
_LEAST = flags.DEFINE_float(
  'least', 0.8, 'Least Jaccard similarity of near-duplicates.'
)


def main(argv: Sequence[str]) -> None:
  command.check(argv, _DOCUMENTS, _OUT)
  from kaiju_jax.data.curation import duplicates
  from kaiju_jax.storage import folders
  from kaiju_jax.training import progress

  folders.refuse_existing(_OUT.value)
  result = duplicates.find_in_files(
    _DOCUMENTS.value, _LEAST.value, progress.track
  )
  duplicates.write(result, _OUT.value)
  total, kept = len(result.found.group), len(result.found.list_kept())
  print(
    f'{kept:,} of {total:,} documents are kept; {total - kept:,} are'
    f' near-duplicates in {len(result.found.groups()):,} groups. Written:'
    f' {_OUT.value}/{duplicates.KEPT}, {_OUT.value}/{duplicates.GROUPS}'
  )


if __name__ == '__main__':
  command.run(main)
