"""Finds evaluation items that stand in training text, by runs of 13 words.

An item is leaked if at least half of its rare 13-grams stand in one training
document. A 13-gram is rare if fewer than 10 training documents have it. A
licence header, a site's navigation or a prompt's fixed words stand in many
documents and tell nothing about an item. An item of fewer than 13 words counts
as one run of all its words.

Two simpler rules fail. "Any shared 13-gram" flags every item that quotes a
licence, and "all 13-grams" misses an item with one word changed.

An item without a rare 13-gram is *common*: it is boilerplate, or it was copied
so often that this rule cannot tell it from boilerplate. Such items are listed
apart, for a person to judge. Our guess: the half and the 10; 13 words are those
of GPT-3 (arXiv 2005.14165).
"""

from collections.abc import Iterable
from collections.abc import Sequence
import functools
from typing import NamedTuple

import numpy as np
from scipy import sparse

from kaiju_jax.data import words as words_lib
from kaiju_jax.data.curation import collections
from kaiju_jax.data.curation import similarity
from kaiju_jax.storage import files
from kaiju_jax.storage import folders

LEAKS = 'leaks.json'
CLEAN = 'clean.jsonl'
WORDS = 13
RARE_BELOW = 10
SHARE = 0.5


class Leaks(NamedTuple):
  """For each of N evaluation items, how much of it stands in training text."""

  # float64 [N], the largest share of an item's rare runs in one training
  # document; 0 for a common item.
  share: np.ndarray
  document: np.ndarray  # int64 [N], that document; −1 where the share is 0.
  common: np.ndarray  # Bool [N], items without a rare run.
  # Bool [N], items with any run in any document (the naive rule).
  touched: np.ndarray

  def find_leaked(self, share: float = SHARE) -> np.ndarray:
    """Returns bool [N], the items with at least this share."""
    return (self.share >= share) & (self.document >= 0)


def find(
  items: Sequence[str],
  documents: Iterable[str],
  rare_below: int = RARE_BELOW,
  watch: similarity.Watch = similarity.ignore_progress,
) -> Leaks:
  """Returns how much of each of N items stands in the training documents.

  The documents are read once. A run is rare if fewer than `rare_below` of them
  have it.
  """
  words = words_lib.Words()
  found = [words(item) for item in items]
  sizes = np.array([min(WORDS, len(one)) for one in found])
  sets = [
    np.unique(words_lib.runs(one, size)) if size else np.zeros(0, np.uint64)
    for one, size in zip(found, sizes)
  ]
  wanted = {
    int(size): np.unique(
      np.concatenate([one for one, own in zip(sets, sizes) if own == size])
    )
    for size in np.unique(sizes[sizes > 0])
  }
  hits = {size: ([], []) for size in wanted}
  count = 0
  for document in watch(documents):
    own = words(document)
    for size, runs in wanted.items():
      places = _present(runs, words_lib.runs(own, size))
      hits[size][0].append(places)
      hits[size][1].append(np.full(len(places), count))
    count += 1
  share = np.zeros(len(items))
  document = np.full(len(items), -1)
  common, touched = np.zeros(len(items), bool), np.zeros(len(items), bool)
  for size, runs in wanted.items():
    members = np.flatnonzero(sizes == size)
    result = _shares(
      [np.searchsorted(runs, sets[one]) for one in members],
      _table(*hits[size], (len(runs), count)),
      rare_below,
    )
    for whole, part in zip((share, document, common, touched), result):
      whole[members] = part
  return Leaks(share, document, common, touched)


class LeakedItems(NamedTuple):
  """The leaks of an evaluation set."""

  items: collections.Collection  # The evaluation set.
  training: collections.Texts  # The training documents.
  # The share of each item that a document contains, and the document.
  found: Leaks


def find_in_files(
  evaluation: str,
  paths: Sequence[str],
  track: similarity.Track = similarity.ignore_progress,
) -> LeakedItems:
  """Reads evaluation items and training text, and compares them.

  Raises:
    OSError, ValueError: names the flag, its value and what would be right.
  """
  if not paths:
    raise ValueError('--training: is missing; must be paths of text.')
  others = [('--training', path) for path in paths]
  collections.refuse_shared(evaluation, others, '--evaluation')
  items = collections.collection('evaluation', evaluation, '--evaluation')
  given = [collections.collection(path, path, '--training') for path in paths]
  training = collections.Texts(*given)
  watch = functools.partial(track, what='reading documents')
  found = find(collections.Texts(items), training, watch=watch)
  return LeakedItems(items, training, found)


def write(result: LeakedItems, out: str) -> None:
  """Writes leaks.json and clean.jsonl into a new folder.

  Raises:
    OSError, ValueError: see `folders.write_whole`.
  """
  found, documents = result.found, result.items.documents
  leaked = found.find_leaked()
  listed = []
  for item in np.flatnonzero(leaked):
    collection, number = result.training.place(found.document[item])
    listed.append(
      {
        'item': documents[item].name,
        'share': round(float(found.share[item]), 4),
        'training_path': collection.path,
        'training_document': collection.documents[number].name,
      }
    )
  common = [documents[item].name for item in np.flatnonzero(found.common)]
  clean = np.flatnonzero(~leaked & ~found.common)
  with folders.write_whole(out) as folder:
    files.write_json(folder / LEAKS, {'leaked': listed, 'common': common})
    collections.write_lines(
      folder / CLEAN, ((documents[one], {}) for one in clean)
    )


def _present(wanted: np.ndarray, runs: np.ndarray) -> np.ndarray:
  """Returns the places in the sorted `wanted` whose runs are among `runs`."""
  places = np.minimum(np.searchsorted(wanted, runs), len(wanted) - 1)
  return np.unique(places[wanted[places] == runs])


def _table(runs, documents, shape) -> sparse.csr_array:
  """Returns float32 [runs, documents], 1 where a document has a run."""
  rows = np.concatenate([*runs, np.zeros(0, np.int64)])
  columns = np.concatenate([*documents, np.zeros(0, np.int64)])
  ones = np.ones(len(rows), np.float32)
  return sparse.csr_array((ones, (rows, columns)), shape=shape)


def _shares(places, table, rare_below):
  """Returns `share`, `document`, `common` and `touched` of items."""
  present = np.diff(table.indptr)
  rare = present < rare_below
  lengths = [len(one) for one in places]
  rows = np.repeat(np.arange(len(places)), lengths)
  columns = np.concatenate(places)
  touched = np.bincount(rows, present[columns], len(places)) > 0
  # Common runs are left out, because their documents would fill the product.
  rows, columns = rows[rare[columns]], columns[rare[columns]]
  items = sparse.csr_array(
    (np.ones(len(rows), np.float32), (rows, columns)),
    shape=(len(places), table.shape[0]),
  )
  totals = np.asarray(items.sum(axis=1))
  shared = sparse.csr_array(items @ table)
  share, document = np.zeros(len(places)), np.full(len(places), -1)
  for item, (begin, end) in enumerate(zip(shared.indptr, shared.indptr[1:])):
    counts = shared.data[begin:end]
    if len(counts) and counts.max() > 0:
      best = int(np.argmax(counts))
      share[item] = counts[best] / totals[item]
      document[item] = shared.indices[begin + best]
  return share, document, totals == 0, touched


def describe(result: LeakedItems) -> str:
  """Returns what was found, a sentence."""
  leaked = int(result.found.find_leaked().sum())
  common = int(result.found.common.sum())
  return (
    f'{leaked:,} of {len(result.items.documents):,} items are leaked,'
    f' {common:,} have common runs only.'
  )
