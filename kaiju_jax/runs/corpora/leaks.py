"""Finds the evaluation items that training text contains."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kaiju_jax.data import leaks
from kaiju_jax.runs.corpora import read
from kaiju_jax.storage import files
from kaiju_jax.storage import folders

LEAKS = 'leaks.json'
CLEAN = 'clean.jsonl'


class Result(NamedTuple):
  """The leaks of an evaluation set.

  Attributes:
    items: the evaluation set.
    training: (path, name) of each training document.
    found: the share of each item that a document contains, and the document.
  """

  items: read.Collection
  training: Sequence[tuple[str, str]]
  found: leaks.Leaks


def find(evaluation: str, paths: Sequence[str]) -> Result:
  """Reads both sides and compares them.

  Args:
    evaluation: file, folder or glob of the evaluation items.
    paths: files, folders or globs of training text.

  Raises:
    OSError, ValueError: names the flag, its value and what would be right.
  """
  if not paths:
    raise ValueError('--training: is missing; must be paths of text.')
  others = [('--training', path) for path in paths]
  read.refuse_shared(evaluation, others, '--evaluation')
  items = read.collection('evaluation', evaluation, '--evaluation')
  collections = [read.collection(path, path, '--training') for path in paths]
  texts = [text for one in collections for text in one.texts]
  found = leaks.find(items.texts, texts, watch=read.watch('reading documents'))
  training = [
    (one.path, document.name)
    for one in collections
    for document in one.documents
  ]
  return Result(items, training, found)


def write(result: Result, out: str) -> None:
  """Writes leaks.json and clean.jsonl into a new folder.

  Raises:
    OSError, ValueError: see `folders.write_whole`.
  """
  found, documents = result.found, result.items.documents
  leaked = found.find_leaked()
  listed = []
  for item in np.flatnonzero(leaked):
    path, name = result.training[found.document[item]]
    listed.append(
      {
        'item': documents[item].name,
        'share': round(float(found.share[item]), 4),
        'training_path': path,
        'training_document': name,
      }
    )
  common = [documents[item].name for item in np.flatnonzero(found.common)]
  clean = np.flatnonzero(~leaked & ~found.common)
  with folders.write_whole(out) as folder:
    files.write_json(folder / LEAKS, {'leaked': listed, 'common': common})
    read.write_lines(folder / CLEAN, ((documents[one], {}) for one in clean))
