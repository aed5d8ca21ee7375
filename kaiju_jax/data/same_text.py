"""Refuses to resume a run whose text changed since its checkpoint.

A row's number names its place in an order that is drawn over all documents. So
one more line in a file moves every row, and a resumed run would repeat some and
miss others. A checkpoint therefore holds, for each source, counts and hashes of
its training and held-out text, and, for sources of few files, a sum per file.
"""

from collections.abc import Mapping
import re
from typing import Any
import zlib

import numpy as np

from kaiju_jax.data import text

# A checkpoint holds a sum per file for sources of at most this many files.
_MOST_FILES = 1000
# The most files that an error names.
_NAMED = 5
# {key of a corpus in a description: its name in errors}.
_PARTS = {'training': 'Training', 'held_out': 'Held out'}
# The suffix of a document that is part of a file: its line, its chunk, or the
# beginning or end of one of these (`holdout.read`).
_PART = re.compile(r'(#\d+)+$')


def describe(
  training: text.Corpus,
  held_out: text.Corpus | None = None,
  teacher: str = '',
) -> dict[str, Any]:
  """Returns a description that distinguishes a source's text, for JSON.

  `teacher` is a hash of the targets that are read beside it; '' for none.
  """
  if training.record is None:
    described = _describe(training, held_out)
  else:  # Of a store.
    described = dict(training.record['described'])
  if teacher:
    described['teacher'] = teacher
  return described


def _describe(
  training: text.Corpus, held_out: text.Corpus | None
) -> dict[str, Any]:
  described = {'training': _counts(training)}
  if held_out is not None:
    described['held_out'] = _counts(held_out)
  files = set()
  for corpus in (training, held_out):
    for name in () if corpus is None else corpus.names:
      files.add(_file(name))
      if len(files) > _MOST_FILES:
        return described
  return described | {'files': _files(training, held_out)}


def check(saved: Any, now: Mapping[str, Mapping[str, Any]]) -> None:
  """Refuses text that differs from the checkpoint's.

  Args:
    saved: the checkpoint's descriptions; None in a checkpoint of an earlier
      version, which recorded no text and is not checked.
    now: {source: what `describe` returned}; '' is the source `data.path`.

  Raises:
    ValueError: names the first source that differs, its counts then and now,
      and its files that changed.
  """
  if saved is None:
    return
  for name, own in now.items():
    then = saved.get(name) if isinstance(saved, Mapping) else None
    if not isinstance(then, Mapping):
      changes = ['The checkpoint has no record of it.']
    elif all(then.get(part) == own.get(part) for part in _PARTS):
      _check_teacher(then, own)
      continue
    else:
      changes = [*_count_changes(then, own), *_files_changed(then, own)]
    field = f'data.sources, {name!r}' if name else 'data.path'
    raise ValueError(
      f'{field}: the text is not what it was at the checkpoint.'
      f' {" ".join(changes)} A run goes on with the text that it began with:'
      ' restore it, or begin another run in a new --workdir.'
    )


def _check_teacher(then: Mapping[str, Any], own: Mapping[str, Any]) -> None:
  # Checkpoints of an earlier version have no record of it.
  if then.get('teacher', own.get('teacher')) != own.get('teacher'):
    raise ValueError(
      'data.teacher: holds targets of another teacher, or sampled otherwise,'
      ' than at the checkpoint. Restore that store, or begin another run in a'
      ' new --workdir.'
    )


def _counts(corpus: text.Corpus) -> dict[str, Any]:
  return {
    'documents': len(corpus.names),
    'tokens': len(corpus.tokens),
    'digest': text.digest(corpus),
  }


def _files(*corpora: text.Corpus | None) -> dict[str, list[int]]:
  """Returns {file: [documents, sum]}, in the order of the documents."""
  files: dict[str, list[int]] = {}
  for corpus in corpora:
    for index, name in enumerate(() if corpus is None else corpus.names):
      begin, end = corpus.begins[index : index + 2]
      found = files.setdefault(_file(name), [0, 0])
      value = zlib.crc32(np.ascontiguousarray(corpus.tokens[begin:end]))
      if index in corpus.parents:
        parents = np.asarray(corpus.parents[index], np.int64)
        value = zlib.crc32(parents, value)
      found[0] += 1
      found[1] = zlib.crc32(value.to_bytes(4, 'little'), found[1])
  return files


def _file(name: str) -> str:
  return _PART.sub('', name)


def _count_changes(
  then: Mapping[str, Any], own: Mapping[str, Any]
) -> list[str]:
  lines = []
  for part, title in _PARTS.items():
    before, after = (_format(one.get(part)) for one in (then, own))
    if then.get(part) == own.get(part):
      continue
    if before == after:
      after = 'as many, but other ones or in another order,'
    lines.append(f'{title}: {before} then, {after} now.')
  return lines


def _format(counts: Any) -> str:
  if not isinstance(counts, Mapping):
    return 'nothing'
  return f'{counts["documents"]:,} documents of {counts["tokens"]:,} tokens'


def _files_changed(
  then: Mapping[str, Any], own: Mapping[str, Any]
) -> list[str]:
  before, after = then.get('files'), own.get('files')
  if before is None or after is None:
    return []
  groups = {
    'Changed': [n for n in after if n in before and after[n] != before[n]],
    'New': [n for n in after if n not in before],
    'Gone': [n for n in before if n not in after],
  }
  return [
    f'{title}: {_format_names(names)}.'
    for title, names in groups.items()
    if names
  ]


def _format_names(names: list[str]) -> str:
  shown = ', '.join(sorted(names)[:_NAMED])
  more = len(names) - _NAMED
  return f'{shown} and {more:,} more' if more > 0 else shown
