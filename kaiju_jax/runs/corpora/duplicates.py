"""Finds near-duplicates, and writes the documents without them."""

from collections.abc import Sequence
from typing import NamedTuple

from kaiju_jax.data import duplicates
from kaiju_jax.runs.corpora import read
from kaiju_jax.storage import files
from kaiju_jax.storage import folders

KEPT = 'kept.jsonl'
GROUPS = 'groups.json'


class Result(NamedTuple):
  """The near-duplicates of some collections.

  Attributes:
    collections: the documents, in the order of the paths.
    found: their near-duplicates; numbers count through all collections.
  """

  collections: Sequence[read.Collection]
  found: duplicates.Clusters

  def places(self) -> list[tuple[read.Collection, int]]:
    """Returns the collection of each document, and its number there."""
    return [
      (one, number)
      for one in self.collections
      for number in range(len(one.texts))
    ]


def find(paths: Sequence[str], least: float = duplicates.LEAST) -> Result:
  """Reads the paths and finds near-duplicates within and between them.

  Args:
    paths: files, folders or globs. The first document of a group is kept.
    least: the least Jaccard similarity of near-duplicates.

  Raises:
    OSError, ValueError: names the flag, its value and what would be right.
  """
  if not 0 < least <= 1:
    raise ValueError(f'--least={least}: must be a similarity, 0 < … ≤ 1.')
  if not paths:
    raise ValueError('--documents: is missing; must be paths of text.')
  for number, path in enumerate(paths):
    others = [('--documents', other) for other in paths[:number]]
    read.refuse_shared(path, others, '--documents')
  collections = [read.collection(path, path, '--documents') for path in paths]
  texts = [text for one in collections for text in one.texts]
  watch = read.watch('reading documents')
  return Result(collections, duplicates.find(texts, least=least, watch=watch))


def write(result: Result, out: str) -> None:
  """Writes kept.jsonl and groups.json into a new folder.

  Raises:
    OSError, ValueError: see `folders.write_whole`.
  """
  places = result.places()
  groups = [
    [
      {
        'path': places[one][0].path,
        'name': places[one][0].documents[places[one][1]].name,
        'likeness': round(float(result.found.likeness[one]), 4),
      }
      for one in group
    ]
    for group in result.found.groups()
  ]
  with folders.write_whole(out) as folder:
    files.write_json(folder / GROUPS, groups)
    read.write_lines(
      folder / KEPT,
      (
        (places[one][0].documents[places[one][1]], {})
        for one in result.found.list_kept()
      ),
    )
