"""Splits text into what a run trains on and what it is evaluated on.

A document is held out by the hash of its name (`documents.is_held_out`), which
depends on no other document. Among few documents it often puts all on one side.
Then the last part of each document is held out, so that every run has text to
train on and text to be evaluated on, and files that are added later move no
text, unless one of them is held out by its name.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import functools
import itertools
from typing import TypeVar

from kaiju_jax.data import documents as documents_lib

# The fewest characters of a text that is cut within a line.
_CUT = 1024
_Named = TypeVar('_Named')


def read(
  path: str, fraction: float, field: str = 'data.path'
) -> tuple[list[documents_lib.Document], list[documents_lib.Document]]:
  """Reads documents, and splits them into training and held-out documents.

  Arguments and errors are those of `stream`.
  """
  training, held_out = [], []
  for document, is_held in stream(path, fraction, field):
    (held_out if is_held else training).append(document)
  return training, held_out


def stream(
  path: str, fraction: float, field: str = 'data.path', column: str = 'text'
) -> Iterator[tuple[documents_lib.Document, bool]]:
  """Yields each document, and whether it is held out, in bounded memory.

  If their names put all on one side, each document is cut, and its last part
  is held out: `fraction` of its characters, or up to twice as many to keep
  lines whole. Trees, and short texts in which no line ends there, stay whole.
  If none can be cut, one is held out as in `split`.

  The files are read again for each of these questions, which few documents
  need.

  Args:
    path: a file, folder or glob, as for `documents.read`.
    fraction: the fraction that is held out; 0 for none.
    field: the name of `path` in errors.
    column: the column of a table that holds text.

  Raises:
    ImportError, OSError, ValueError: see `documents.read`; or there is a single
      document, and it cannot be cut.
  """
  read_again = functools.partial(
    documents_lib.read, path, field=field, column=column
  )
  if not fraction or _is_split(read_again(chunked=True), fraction):
    for one in read_again(chunked=fraction > 0):
      yield one, documents_lib.is_held_out(one.name, fraction)
    return
  is_only = len(list(itertools.islice(read_again(), 2))) == 1
  if any(_cut(one, fraction, is_only)[1] for one in read_again()):
    for one in read_again():
      first, last = _cut(one, fraction, is_only)
      yield first, False
      if last is not None:
        yield last, True
    return
  yield from sides(read_again, fraction, f'documents in {field}={path!r}')


def sides(
  read_again: Callable[[], Iterator[_Named]], fraction: float, what: str
) -> Iterator[tuple[_Named, bool]]:
  """Yields what `split` splits, in bounded memory, and if it is held out.

  Args:
    read_again: reads the named texts from the beginning, if need be twice.
    fraction, what: as in `split`.

  Raises:
    ValueError: as `split` and `read_again`.
  """
  if not fraction or _is_split(read_again(), fraction):
    for one in read_again():
      yield one, documents_lib.is_held_out(one.name, fraction)
    return
  whole = list(read_again())
  names = {one.name for one in split(whole, fraction, what)[1]}
  for one in whole:
    yield one, one.name in names


def _is_split(found: Iterator[_Named], fraction: float) -> bool:
  """Returns whether names put texts on both sides; reads no more of them.

  It is so for none, too.
  """
  sides = set()
  for one in found:
    sides.add(documents_lib.is_held_out(one.name, fraction))
    if len(sides) == 2:
      break
  return len(sides) != 1


def split(
  found: Sequence[_Named], fraction: float, what: str
) -> tuple[list[_Named], list[_Named]]:
  """Splits named texts into training and held-out ones, each in their order.

  `is_held_out` decides by a name. If all would be on one side, one moves to the
  other: the one whose name has the least hash is held out, or the one with the
  largest hash is trained on.

  Args:
    found: values with a `name`.
    fraction: the fraction that is held out; 0 for none.
    what: what they are, for errors, such as 'conversations in x.jsonl'.

  Raises:
    ValueError: there is only one.
  """
  hashes = [documents_lib.hash_name(one.name) for one in found]
  held = [one < fraction * 2**64 for one in hashes]
  if fraction and len(set(held)) == 1:
    if len(found) == 1:
      raise ValueError(
        f'data.held_out={fraction}: needs at least two {what}, one to train on'
        ' and one to hold out; or set it to 0, to hold out none.'
      )
    place = hashes.index(max(hashes) if held[0] else min(hashes))
    held[place] = not held[place]
  training, held_out = [], []
  for one, is_held in zip(found, held):
    (held_out if is_held else training).append(one)
  return training, held_out


def _cut(
  document: documents_lib.Document, fraction: float, anywhere: bool
) -> tuple[documents_lib.Document, documents_lib.Document | None]:
  """Returns a document's beginning and its last part; None if it stays whole.

  Args:
    document: the document.
    fraction: the last part's fraction of the characters; whole lines may
      double it.
    anywhere: whether even a short text is cut within a line.
  """
  if len(document.segments) > 1:
    return document, None
  (text,) = document.segments
  size = len(text)
  last = min(max(1, round(fraction * size)), size - 1)
  place = text.rfind('\n', max(0, size - 2 * last), size - last) + 1
  if not place and (size >= _CUT or anywhere):
    place = size - last
  if not 0 < place < size:
    return document, None
  return (
    documents_lib.Document(f'{document.name}#0', (text[:place],)),
    documents_lib.Document(f'{document.name}#1', (text[place:],)),
  )
