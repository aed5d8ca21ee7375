"""Reads files as documents: plain text, tables, and trees of alternatives.

A document is a name and segments of text; each segment names the one that it
continues. A text file is one segment. A line of a .jsonl file is

    {"text": "…"}                                       one segment, or
    {"segments": [{"text": "…", "parent": -1}, …]}      a tree of them,

where `parent` is an index into the list, or -1 for a segment that starts the
document. So a conversation whose turns have alternatives holds each turn once.
A row of a table is one segment. `reading.py` has what files may be packed in.

Whether a document is held out for evaluation depends only on its name, so that
files that are added later do not move the others. (`holdout.py` says what is
done with few documents.)
"""

from collections.abc import Iterator
from collections.abc import Sequence
import glob
import hashlib
import itertools
import os
import pathlib
import sysconfig
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.data import packing
from kaiju_jax.data import reading
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.storage import addresses
from kaiju_jax.storage import strict_json

# The file by which a token store (`store/`) is known.
STORE = 'token_store.json'
_CHUNK, _LEAST_CHUNK, _CHUNKS = 65536, 1024, 128

# The parts of the standard library that are read. Left out are packages that
# users installed beside it, tests (which some distributions lack) and the
# codecs' near-identical tables.
_LIBRARY_SUFFIXES = ('.py', '.txt', '.rst', '.md')
_LIBRARY_WITHOUT = {
  'site-packages',
  'dist-packages',
  'test',
  'tests',
  'idle_test',
  'encodings',
  '__pycache__',
}


class Document(NamedTuple):
  """A tree of segments of text; most documents have one segment."""

  # The file's path, relative to what was read, and '#' with a part's number.
  name: str
  segments: tuple[str, ...]  # The segments' texts, in preorder.
  # For each, the index of the segment that it continues; -1 for those that
  # start the document.
  parents: tuple[int, ...] = (-1,)


def read(
  path: str,
  chunked: bool = False,
  field: str = 'data.path',
  column: str = 'text',
) -> Iterator[Document]:
  """Yields the documents of a file, folder or glob, sorted by file name.

  Hidden files, and files and lines without text, are skipped.

  Args:
    path: '' reads the prose and code of the running Python's standard library.
    chunked: whether to cut a single text file into documents of whole lines, so
      that some can be held out: 64 Ki characters each, fewer in a small file.
    field: the name of `path` in errors.
    column: the column of a table that holds text.

  Raises:
    FileNotFoundError: nothing at `path`.
    ImportError: a table needs a package that is missing.
    OSError: a file or folder that cannot be read.
    ValueError: no files, or a file that this module cannot read; names the
      file, and the line or the byte.
  """
  if not path:
    yield from _standard_library()
    return
  found = files(path, field)
  path = os.path.expanduser(path)
  reading.refuse_splits(path)
  if reading.is_saved_dataset(path):
    rows = reading.column_of_dataset(path, column)
    yield from _rows(rows, 'dataset', path)
    return
  for name, file in found:
    kind = reading.name_without_packing(name)
    if kind.endswith(reading.PARQUET):
      yield from _rows(reading.column_of_parquet(file, column), name, file)
    elif kind.endswith('.jsonl'):
      yield from _lines(name, file)
    elif chunked and len(found) == 1:
      yield from _chunks(name, reading.pieces(file))
    elif text := ''.join(reading.pieces(file)):
      yield Document(name, (text,))


def inputs(path: str, field: str = 'data.path') -> list[tuple[str, str]]:
  """Returns `files`, or for '' those of the standard library that are read."""
  return files(path, field) if path else _library_files()


def files(path: str, field: str = 'data.path') -> list[tuple[str, str]]:
  """Returns (name relative to `path`, path) of each file at `path`.

  Raises:
    FileNotFoundError: nothing at `path`.
    OSError: a folder that cannot be read.
    ValueError: an address, no files, something that is not a file, or a token
      store, whose files are no text.
  """
  addresses.refuse(path, f'{field}={path!r}')
  path = os.path.expanduser(path)
  if os.path.isfile(path):
    return [(os.path.basename(path), path)]
  if is_store(path):
    raise ValueError(
      f'{field}={path!r}: is a token store (experiments.tokenize); here it must'
      ' be text.'
    )
  if os.path.isdir(path):
    found = _regular(_walk(path, set()))
    missing = 'the folder holds no files (hidden ones are not read)'
  elif glob.has_magic(path):
    root = _fixed_part(path)
    found = _regular(
      sorted(
        (_relative(file, root), file)
        for file in glob.glob(path, recursive=True)
        if not os.path.isdir(file)
      )
    )
    missing = 'the glob matches no files'
  elif os.path.exists(path):
    return _regular([(os.path.basename(path), path)])
  else:
    raise FileNotFoundError(
      f'{field}={path!r}: no such file or folder; expected a file, a folder, a'
      " glob, or '' for the text that this Python carries."
    )
  if not found:
    raise ValueError(f'{field}={path!r}: {missing}.')
  return found


def is_store(path: str) -> bool:
  """Returns whether a folder is a token store, whole or begun."""
  return bool(path) and os.path.isfile(
    os.path.join(os.path.expanduser(path), STORE)
  )


def record(document: Document) -> dict[str, Any]:
  """Returns the line of a .jsonl file for a document; the name is left out."""
  if document.parents == (-1,):
    return {'text': document.segments[0]}
  nodes = zip(document.segments, document.parents)
  return {
    'segments': [{'text': text, 'parent': parent} for text, parent in nodes]
  }


def parse(record: dict[str, Any], where: str) -> Document:
  """Returns the document of a line that has a name and what `record` returns.

  Raises:
    ValueError: it is none; names `where`, the file.
  """
  return Document(record['name'], *_segments(record, where))


def text_of(document: Document) -> str:
  """Returns all of a document's text, a tree's segments in preorder."""
  return '\n'.join(document.segments)


def is_held_out(name: str, fraction: float) -> bool:
  """Returns whether the document of that name is kept for evaluation."""
  return hash_name(name) < fraction * 2**64


def hash_name(name: str) -> int:
  """Returns a number in 0…2⁶⁴ − 1, by which documents are held out."""
  name_bytes = name.encode(errors='surrogateescape')
  digest = hashlib.blake2b(name_bytes, digest_size=8).digest()
  return int.from_bytes(digest, 'big')


def encode(
  document: Document, tokenizer: tokenizer_lib.Tokenizer
) -> packing.Piece:
  """Returns the document's tokens behind BOS, with parents if it branches.

  A segment's first token follows the last of the segment that it continues.
  """
  tokens = [np.array([tokenizer.bos_id], np.int32)]
  parents = [np.array([-1], np.int32)]
  size = 1
  last = {-1: 0}
  for index, (text, parent) in enumerate(
    zip(document.segments, document.parents)
  ):
    segment = tokenizer.encode(text)
    chain = np.arange(size - 1, size - 1 + len(segment), dtype=np.int32)
    chain[:1] = last[parent]
    tokens.append(segment)
    parents.append(chain)
    size += len(segment)
    last[index] = size - 1 if len(segment) else last[parent]
  parents = np.concatenate(parents)
  branches = np.any(parents != np.arange(size) - 1)
  return packing.Piece(np.concatenate(tokens), parents if branches else None)


def _library_files() -> list[tuple[str, str]]:
  root = sysconfig.get_paths()['stdlib']
  found = _walk(root, _LIBRARY_WITHOUT)
  return [one for one in found if one[0].endswith(_LIBRARY_SUFFIXES)]


def _standard_library() -> Iterator[Document]:
  found = False
  for name, file in _library_files():
    try:
      text = ''.join(reading.pieces(file))
    except ValueError:  # Sources may declare another encoding.
      continue
    if text:
      found = True
      yield Document(name, (text,))
  if not found:
    root = sysconfig.get_paths()['stdlib']
    raise ValueError(
      f"data.path='': the running Python carries no sources in {root};"
      ' name a file, folder or glob of text.'
    )


def _regular(found: list[tuple[str, str]]) -> list[tuple[str, str]]:
  """Returns files; refuses pipes (reading them never ends) and devices."""
  for _, file in found:
    if os.path.exists(file) and not os.path.isfile(file):
      raise ValueError(
        f'{file}: a pipe, socket or device, not a file of text. Move it away,'
        " or name the text files with a glob such as 'folder/**/*.txt'."
      )
  return found


def _walk(root: str, without: set[str]) -> list[tuple[str, str]]:
  def refuse(error):
    raise OSError(
      f'{error.filename}: the folder cannot be read: {error.strerror}.'
    ) from error

  files = []
  for folder, folders, names in os.walk(root, onerror=refuse):
    folders[:] = [
      name for name in folders if name not in without and name[0] != '.'
    ]
    files += [os.path.join(folder, name) for name in names if name[0] != '.']
  return sorted((_relative(file, root), file) for file in files)


def _fixed_part(pattern: str) -> str:
  """Returns the folder above a glob's first wildcard."""
  fixed = pathlib.Path(pattern)
  while glob.has_magic(str(fixed)):
    fixed = fixed.parent
  return str(fixed)


def _relative(file: str, root: str) -> str:
  return pathlib.Path(os.path.relpath(file, root)).as_posix()


def _chunks(name: str, pieces: Iterator[str]) -> Iterator[Document]:
  text, size = '', 0
  number = 0
  for piece in itertools.chain(pieces, ['']):
    text += piece
    # As many characters as make the largest chunks say how large they are.
    if piece and not size and len(text) < _CHUNK * _CHUNKS:
      continue
    size = size or min(_CHUNK, max(_LEAST_CHUNK, len(text) // _CHUNKS))
    begin = 0
    while len(text) - begin > (size if piece else 0):
      end = begin + size
      if end < len(text):
        end = text.rfind('\n', begin, end) + 1 or end
      yield Document(f'{name}#{number}', (text[begin:end],))
      begin = end
      number += 1
    text = text[begin:]


def _lines(name: str, file: str) -> Iterator[Document]:
  for number, line in enumerate(reading.lines(file), 1):
    if line.strip():
      segments, parents = _record(line, f'{file}, line {number}')
      if any(segments):
        yield Document(f'{name}#{number}', segments, parents)


def _rows(
  rows: Iterator[tuple[str, Any]], name: str, file: str
) -> Iterator[Document]:
  for number, (place, value) in enumerate(rows, 1):
    if value is not None and (
      text := _string({'text': value}, f'{file}, {place}')
    ):
      yield Document(f'{name}#{number}', (text,))


def _record(line: str, where: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
  """Returns the segments and parents of one line, in preorder."""
  try:
    record = strict_json.parse(line)
  except ValueError as error:
    raise ValueError(f'{where}: not JSON: {error}.') from error
  return _segments(record, where)


def _segments(
  record: Any, where: str
) -> tuple[tuple[str, ...], tuple[int, ...]]:
  """Returns the segments and parents of a line's value, in preorder."""
  if not isinstance(record, dict) or ('text' in record) == (
    'segments' in record
  ):
    raise ValueError(
      f'{where}: expected an object with either "text" or "segments".'
    )
  if 'text' in record:
    return (_string(record, where),), (-1,)
  nodes = record['segments']
  if not isinstance(nodes, list) or not nodes:
    raise ValueError(f'{where}: "segments" must be a list, not empty.')
  for index, node in enumerate(nodes):
    parent = node.get('parent') if isinstance(node, dict) else None
    if type(parent) is not int or not -1 <= parent < len(nodes):
      raise ValueError(
        f'{where}: segments[{index}]: expected an object whose "parent" is -1'
        f' or the index of a segment (0…{len(nodes) - 1}), not {parent!r}.'
      )
  order = _preorder([node['parent'] for node in nodes], where)
  place = {node: index for index, node in enumerate([-1, *order], -1)}
  segments = tuple(
    _string(nodes[node], f'{where}: segments[{node}]') for node in order
  )
  return segments, tuple(place[nodes[node]['parent']] for node in order)


def _string(record: dict[str, Any], where: str) -> str:
  text = record.get('text')
  if not isinstance(text, str):
    raise ValueError(f'{where}: "text" must be a string, not {text!r}.')
  try:
    text.encode()
  except UnicodeEncodeError as error:
    raise ValueError(
      f'{where}: "text" is not text: half of a surrogate pair at character'
      f' {error.start}.'
    ) from error
  if '\0' in text:
    raise ValueError(
      f'{where}: "text" is not text: NUL at character {text.index(chr(0))}.'
    )
  return text


def _preorder(parents: Sequence[int], where: str) -> list[int]:
  children: dict[int, list[int]] = {}
  for node, parent in enumerate(parents):
    children.setdefault(parent, []).append(node)
  order = []
  pending = [-1]
  while pending:
    node = pending.pop()
    order.append(node)
    pending += reversed(children.get(node, []))
  if len(order) <= len(parents):
    lost = min(set(range(len(parents))) - set(order))
    raise ValueError(
      f'{where}: segments[{lost}]: its parents run in a circle and never reach'
      ' -1.'
    )
  return order[1:]
