"""Reads files as documents: plain text, and trees of alternatives.

A document is a name and segments of text; each segment names the one that it
continues. A text file is one segment. A line of a .jsonl file is

    {"text": "…"}                                       one segment, or
    {"segments": [{"text": "…", "parent": -1}, …]}      a tree of them,

where `parent` is an index into the list, or -1 for a segment that starts the
document. So a conversation whose turns have alternatives holds each turn once.

Whether a document is held out for evaluation depends only on its name, so that
files that are added later do not move the others. (`holdout.py` says what is
done with few documents.)
"""

from collections.abc import Iterator
from collections.abc import Sequence
import glob
import hashlib
import os
import pathlib
import sysconfig
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.data import packing
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.storage import addresses
from kaiju_jax.storage import files as files_lib
from kaiju_jax.storage import strict_json

_CHUNK = 65536

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
  path: str, chunked: bool = False, field: str = 'data.path'
) -> Iterator[Document]:
  """Yields the documents of a file, folder or glob, sorted by file name.

  Hidden files, and files and lines without text, are skipped.

  Args:
    path: '' reads the prose and code of the running Python's standard library.
    chunked: whether to cut a single text file into documents of whole lines, so
      that some can be held out: 64 Ki characters each, fewer in a small file.
    field: the name of `path` in errors.

  Raises:
    FileNotFoundError: nothing at `path`.
    OSError: a file or folder that cannot be read.
    ValueError: no files, or a file that this module cannot read; names the
      file, and the line or the byte.
  """
  if not path:
    yield from _standard_library()
    return
  found = files(path, field)
  for name, file in found:
    text = _text(file)
    if name.endswith('.jsonl'):
      yield from _lines(text, name, file)
    elif chunked and len(found) == 1:
      yield from _chunks(text, name)
    elif text:
      yield Document(name, (text,))


def files(path: str, field: str = 'data.path') -> list[tuple[str, str]]:
  """Returns (name relative to `path`, path) of each file at `path`.

  Raises:
    FileNotFoundError: nothing at `path`.
    OSError: a folder that cannot be read.
    ValueError: an address, no files, or something that is not a file.
  """
  addresses.refuse(path, f'{field}={path!r}')
  path = os.path.expanduser(path)
  if os.path.isfile(path):
    return [(os.path.basename(path), path)]
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


def record(document: Document) -> dict[str, Any]:
  """Returns the line of a .jsonl file for a document; the name is left out."""
  if document.parents == (-1,):
    return {'text': document.segments[0]}
  nodes = zip(document.segments, document.parents)
  return {
    'segments': [{'text': text, 'parent': parent} for text, parent in nodes]
  }


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


def _standard_library() -> Iterator[Document]:
  root = sysconfig.get_paths()['stdlib']
  found = False
  for name, file in _walk(root, _LIBRARY_WITHOUT):
    if name.endswith(_LIBRARY_SUFFIXES):
      try:
        text = _text(file)
      except ValueError:  # Sources may declare another encoding.
        continue
      if text:
        found = True
        yield Document(name, (text,))
  if not found:
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


def _text(file: str) -> str:
  try:
    data = pathlib.Path(file).read_bytes()
  except OSError as error:
    raise OSError(f'{file}: cannot be read: {error.strerror}.') from error
  try:
    text = data.decode().removeprefix('\ufeff')  # A byte order mark.
    wrong = data.find(b'\0')
  except UnicodeDecodeError as error:
    nul = data.find(b'\0', 0, error.start)
    wrong = error.start if nul < 0 else nul
  if wrong >= 0:
    files_lib.refuse_compressed(file, data)
    raise ValueError(
      f'{file}: not text: byte 0x{data[wrong]:02x} at offset {wrong}; expected'
      " UTF-8 without NUL. A glob such as 'folder/**/*.txt' names text files"
      ' alone.'
    )
  return text


def _chunks(text: str, name: str) -> Iterator[Document]:
  size = min(_CHUNK, max(1024, len(text) // 128))
  begin = number = 0
  while begin < len(text):
    end = begin + size
    if end < len(text):
      end = text.rfind('\n', begin, end) + 1 or end
    yield Document(f'{name}#{number}', (text[begin:end],))
    begin = end
    number += 1


def _lines(text: str, name: str, file: str) -> Iterator[Document]:
  for number, line in enumerate(text.split('\n'), 1):
    if line.strip():
      where = f'{file}, line {number}'
      segments, parents = _record(line, where)
      if any(segments):
        yield Document(f'{name}#{number}', segments, parents)


def _record(line: str, where: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
  """Returns the segments and parents of one line, in preorder."""
  try:
    record = strict_json.parse(line)
  except ValueError as error:
    raise ValueError(f'{where}: not JSON: {error}.') from error
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
