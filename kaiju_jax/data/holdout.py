"""Splits text into what a run trains on and what it is evaluated on.

A document is held out by the hash of its name (`documents.is_held_out`), which
depends on no other document. Among few documents it often puts all on one side.
Then the last part of each document is held out, so that every run has text to
train on and text to be evaluated on, and files that are added later move no
text, unless one of them is held out by its name.
"""

from collections.abc import Sequence
from typing import TypeVar

from kaiju_jax.data import documents as documents_lib

# The fewest characters of a text that is cut within a line.
_CUT = 1024
_Named = TypeVar('_Named')


def read(
  path: str, fraction: float, field: str = 'data.path'
) -> tuple[list[documents_lib.Document], list[documents_lib.Document]]:
  """Reads documents, and splits them into training and held-out documents.

  If their names put all on one side, each document is cut, and its last part
  is held out: `fraction` of its characters, or up to twice as many to keep
  lines whole. Trees, and short texts in which no line ends there, stay whole.
  If none can be cut, one is held out as in `split`.

  Args:
    path: a file, folder or glob, as for `documents.read`.
    fraction: the fraction that is held out; 0 for none.
    field: the name of `path` in errors.

  Raises:
    OSError, ValueError: see `documents.read`; or there is a single document,
      and it cannot be cut.
  """
  found = list(documents_lib.read(path, fraction > 0, field))
  what = f'documents in {field}={path!r}'
  held = {documents_lib.is_held_out(one.name, fraction) for one in found}
  if not fraction or len(held) != 1:
    return split(found, fraction, what)
  whole = list(documents_lib.read(path, False, field))
  pairs = [_cut(one, fraction, len(whole) == 1) for one in whole]
  held_out = [last for _, last in pairs if last is not None]
  if held_out:
    return [first for first, _ in pairs], held_out
  return split(whole, fraction, what)


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
