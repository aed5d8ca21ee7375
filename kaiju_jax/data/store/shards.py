"""Writes and reads shards: the corpora of some documents, in one file.

A shard is a safetensors file. For each part, 'training' and 'held_out', it has

    PART/tokens        [T], as `text.Corpus.tokens`
    PART/begins        int64 [N + 1], from 0 to T
    PART/names         uint8, the documents' names in UTF-8
    PART/name_ends     int64 [N]
    PART/trees         int64 [M], the documents that are trees
    PART/parents       int32, the parents of these trees' tokens
    PART/token_bytes   int32 [T]; held-out text alone
    PART/weights       float32 [T]; conversations and choices
    PART/choices       uint8, JSON of each document's choices, if it has any
    PART/choice_ends   int64 [N]
    PART/counts        int64, `turns.Counts`, of conversations and choices

and once `source`, a hash of what was encoded; and of text `documents`, itself:
lines of JSON, compressed by zstd, with the keys of `documents.record`, the
`name`, and whether it is `held_out`.

Ranges are read by `pread`, never mapped: pages of a mapped file count as the
process's memory, and a mapped file that is cut ends the process. Rows are made
at 0.88 of the speed of mapped arrays, and 3.7 times that of array_record
(`docs/data.md`).
"""

import bisect
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import pathlib
from typing import Any

import numpy as np
import zstandard

from kaiju_jax.data import documents as documents_lib
from kaiju_jax.data import text
from kaiju_jax.data import turns
from kaiju_jax.data.store import encoders
from kaiju_jax.storage import files
from kaiju_jax.storage import tensor_file

FORMAT = 'kaiju_jax tokens 1'
TRAINING, HELD_OUT = 'training', 'held_out'
_TYPES = {
  'U8': np.uint8,
  'U16': np.uint16,
  'U32': np.uint32,
  'I32': np.int32,
  'I64': np.int64,
  'F32': np.float32,
}
_OPEN = 256  # Files that are open at once.
_HEADER = 8  # Bytes that hold the header's length.
_LEVEL = 3


def write(
  path: pathlib.Path,
  found: Sequence[tuple[Any, bool]],
  encoder: encoders.Encoder,
) -> None:
  """Encodes items, each held out or not, into a file: whole or not at all.

  Raises:
    OSError: the file cannot be written.
    guarded.client.Refused: a text that the tokenizer refuses.
  """
  tensors = {'source': np.frombuffer(hash_source(found), np.uint8)}
  if encoder.record is not None:
    lines = [
      json.dumps({'name': one.name, HELD_OUT: is_held} | encoder.record(one))
      for one, is_held in found
    ]
    packed = zstandard.compress('\n'.join(lines).encode(), _LEVEL)
    tensors['documents'] = np.frombuffer(packed, np.uint8)
  for part, side in ((TRAINING, False), (HELD_OUT, True)):
    own = [one for one, is_held in found if is_held == side]
    corpus, counts = encoder.encode(own, side)
    named = {} if corpus is None else _tensors(corpus)
    if counts != turns.Counts():
      named['counts'] = np.array(dataclasses.astuple(counts), np.int64)
    tensors |= {f'{part}/{name}': x for name, x in named.items()}
  with files.writing(str(path)):
    tensor_file.write(path, tensors, {'format': FORMAT})
    # safetensors makes files that only the user who wrote them may read.
    path.chmod(path.parent.stat().st_mode & 0o666)


def hash_source(found: Sequence[tuple[Any, bool]]) -> bytes:
  """Returns a hash of what `write` encodes."""
  data = repr(found).encode(errors='surrogatepass')
  return hashlib.blake2b(data, digest_size=16).digest()


def _tensors(corpus: text.Corpus) -> dict[str, np.ndarray]:
  parents = [np.zeros(0, np.int32), *corpus.parents.values()]
  tensors = {
    'tokens': corpus.tokens,
    'begins': corpus.begins.astype(np.int64),
    **_pack('name', corpus.names),
    'trees': np.array(list(corpus.parents), np.int64),
    'parents': np.concatenate(parents).astype(np.int32),
  }
  if corpus.token_bytes is not None:
    tensors['token_bytes'] = corpus.token_bytes.astype(np.int32)
  if corpus.weights is not None:
    tensors['weights'] = corpus.weights.astype(np.float32)
  if corpus.choices is not None:
    tensors |= _pack('choice', map(json.dumps, corpus.choices))
  return tensors


def _pack(name: str, several: Iterable[str]) -> dict[str, np.ndarray]:
  """Returns strings as the tensors that `Strings` reads."""
  packed = [one.encode(errors='surrogateescape') for one in several]
  return {
    f'{name}s': np.frombuffer(b''.join(packed), np.uint8),
    f'{name}_ends': np.cumsum([len(one) for one in packed], dtype=np.int64),
  }


class Shard:
  """The header of a file, and ranges of its tensors."""

  def __init__(self, path: pathlib.Path):
    """Reads the header.

    Raises:
      OSError: the file cannot be read.
      ValueError: it is cut, or no shard of this version.
    """
    self.path: pathlib.Path = path
    with open(path, 'rb') as file:
      self.size: int = os.fstat(file.fileno()).st_size
      length = int.from_bytes(file.read(_HEADER), 'little')
      data = file.read(length if length < self.size else 0)
    self._begin = _HEADER + length
    try:
      header = json.loads(data)
      form = header.pop('__metadata__', {}).get('format')
      self.tensors = {
        name: (np.dtype(_TYPES[one['dtype']]), *one['data_offsets'])
        for name, one in header.items()
      }
    except (ValueError, KeyError, TypeError) as error:
      raise ValueError(f'{path}: is no whole shard: {error}.') from error
    if form != FORMAT:
      raise ValueError(f'{path}: format is {form!r}, expected {FORMAT!r}.')
    end = self._begin + max(end for *_, end in self.tensors.values())
    if end != self.size:
      raise ValueError(
        f'{path}: is cut or damaged: {self.size:,} bytes, expected {end:,}.'
      )

  def count(self, name: str) -> int:
    """Returns the length of a tensor; 0 without one."""
    dtype, begin, end = self.tensors.get(name, (np.dtype(np.uint8), 0, 0))
    return (end - begin) // dtype.itemsize

  def place(self, name: str, index: int) -> int:
    """Returns where in the file a tensor's value stands."""
    dtype, begin, _ = self.tensors[name]
    return self._begin + begin + index * dtype.itemsize

  def read(self, name: str) -> np.ndarray:
    """Returns all of a tensor."""
    dtype = self.tensors[name][0]
    with open(self.path, 'rb') as file:
      return _read(file, self.place(name, 0), self.count(name), dtype)

  def holds(self, found: Sequence[tuple[Any, bool]]) -> bool:
    """Returns whether `write` made it of these items."""
    source = self.read('source') if self.count('source') else b''
    return bytes(source) == hash_source(found)

  def counts(self) -> turns.Counts:
    """Returns what was left out of both parts."""
    names = (f'{part}/counts' for part in (TRAINING, HELD_OUT))
    found = (
      turns.Counts(*self.read(x).tolist()) for x in names if self.count(x)
    )
    return sum(found, turns.Counts())

  def documents(self) -> Iterator[documents_lib.Document]:
    """Yields the documents, in the order of the text."""
    data = zstandard.decompress(self.read('documents'))
    for line in data.decode().split('\n'):
      yield documents_lib.parse(json.loads(line), str(self.path))


def locate(firsts: Sequence[int], index: int) -> tuple[int, int]:
  """Returns in which of several sequences an item of their sum is, and where.

  Args:
    firsts: the number of each sequence's first item, then of all items.
    index: the item's; from the end if it is negative.

  Raises:
    IndexError: there is no such item.
  """
  index = range(firsts[-1])[index]
  place = bisect.bisect_right(firsts, index) - 1
  return place, index - firsts[place]


class Documents(Sequence[documents_lib.Document]):
  """The documents of shards; those of one shard are in memory at a time."""

  def __init__(self, shards: Sequence[Shard]):
    self._shards = shards
    counts = (
      sum(one.count(f'{part}/name_ends') for part in (TRAINING, HELD_OUT))
      for one in shards
    )
    self._firsts = [0, *itertools.accumulate(counts)]
    self._read = functools.lru_cache(1)(lambda n: list(shards[n].documents()))

  def __len__(self) -> int:
    return self._firsts[-1]

  def __getitem__(self, index: int) -> documents_lib.Document:
    place, number = locate(self._firsts, index)
    return self._read(place)[number]


class Array:
  """A tensor of several shards as one; ranges of it are read when asked for."""

  def __init__(self, shards: Sequence[Shard], name: str):
    self._shards = [one for one in shards if one.count(name)]
    self._name = name
    self.dtype: np.dtype = self._shards[0].tensors[name][0]
    counts = [one.count(name) for one in self._shards]
    self._ends = list(itertools.accumulate(counts))
    self._opened = functools.lru_cache(_OPEN)(_open)

  def __len__(self) -> int:
    return self._ends[-1]

  def __getitem__(self, key: slice) -> np.ndarray:
    """Returns a range of values, in memory.

    Raises:
      OSError, ValueError: a file that was removed or cut since it was checked.
    """
    first, end, _ = key.indices(len(self))
    place = bisect.bisect_right(self._ends, first)
    found = []
    while first < end:
      shard, last = self._shards[place], min(end, self._ends[place])
      begin = self._ends[place - 1] if place else 0
      file = self._opened(shard.path)
      offset = shard.place(self._name, first - begin)
      found.append(_read(file, offset, last - first, self.dtype))
      first, place = last, place + 1
    if len(found) == 1:
      return found[0]
    return np.concatenate([np.zeros(0, self.dtype), *found])

  def astype(self, dtype: Any) -> np.ndarray:
    """Returns all values, in memory."""
    return self[:].astype(dtype)


class Strings(Sequence[str]):
  """The documents' names, or what `name` calls."""

  def __init__(self, shards: Sequence[Shard], part: str, name: str = 'name'):
    several, ends = f'{part}/{name}s', f'{part}/{name}_ends'
    self._bytes = Array(shards, several)
    shards = [one for one in shards if one.count(ends)]
    self._ends = Array(shards, ends)
    # The numbers of each shard's first document, and of its first byte.
    self._shards = shards
    self._firsts, self._begins = (
      [0, *itertools.accumulate(one.count(tensor) for one in shards)]
      for tensor in (ends, several)
    )

  def __len__(self) -> int:
    return len(self._ends)

  def __getitem__(self, index: int) -> str:
    index = range(len(self))[index]
    place, number = locate(self._firsts, index)
    end = int(self._ends[index : index + 1][0])
    begin = int(self._ends[index - 1 : index][0]) if number else 0
    first = self._begins[place]
    name = self._bytes[first + begin : first + end]
    return name.tobytes().decode(errors='surrogateescape')


class Choices(Sequence[tuple[turns.Choice, ...]]):
  """The choices of each document."""

  def __init__(self, shards: Sequence[Shard], part: str):
    self._packed = Strings(shards, part, 'choice')

  def __len__(self) -> int:
    return len(self._packed)

  def __getitem__(self, index: int) -> tuple[turns.Choice, ...]:
    return tuple(
      turns.Choice(tuple(map(tuple, spans)), kept)
      for spans, kept in json.loads(self._packed[index])
    )


class Parents(Mapping[int, np.ndarray]):
  """{document's index: its tokens' parents}, for trees."""

  def __init__(self, shards: Sequence[Shard], part: str, begins: np.ndarray):
    first, found = 0, [np.zeros(0, np.int64)]
    for one in shards:
      if one.count(f'{part}/trees'):
        found.append(one.read(f'{part}/trees') + first)
      first += one.count(f'{part}/name_ends')
    self._trees = np.concatenate(found)
    sizes = begins[self._trees + 1] - begins[self._trees]
    self._ends = np.cumsum(sizes)
    self._begins = self._ends - sizes
    self._parents = None
    if len(self._trees):
      self._parents = Array(shards, f'{part}/parents')

  def __len__(self) -> int:
    return len(self._trees)

  def __iter__(self) -> Iterator[int]:
    return iter(self._trees.tolist())

  def __getitem__(self, document: int) -> np.ndarray:
    if not len(self._trees):
      raise KeyError(document)
    place = int(np.searchsorted(self._trees, document))
    if self._trees[place : place + 1].tolist() != [document]:
      raise KeyError(document)
    return self._parents[int(self._begins[place]) : int(self._ends[place])]


def read_corpus(
  shards: Sequence[Shard], part: str, record: Mapping[str, Any] | None
) -> text.Corpus | None:
  """Returns a part of all shards; None where they have nothing of it.

  It keeps 8 bytes per document in memory, and 24 more per tree, which
  every conversation is.

  Raises:
    OSError: a file cannot be read.
    ValueError: borders that do not rise from 0 to the tokens.
  """
  shards = [one for one in shards if one.count(f'{part}/tokens')]
  if not shards:
    return None
  begins, end = [np.zeros(1, np.int64)], 0
  for one in shards:
    own, count = one.read(f'{part}/begins'), one.count(f'{part}/tokens')
    if own[0] or own[-1] != count or np.any(np.diff(own) <= 0):
      raise ValueError(
        f"{one.path}: the documents' borders do not rise from 0 to the"
        f' {count:,} tokens. The file is damaged: make the store anew.'
      )
    begins.append(own[1:] + end)
    end += count
  begins = np.concatenate(begins)

  def array(name: str) -> Array | None:
    found = shards[0].count(f'{part}/{name}')
    return Array(shards, f'{part}/{name}') if found else None

  return text.Corpus(
    tokens=array('tokens'),
    begins=begins,
    parents=Parents(shards, part, begins),
    names=Strings(shards, part),
    token_bytes=array('token_bytes'),
    weights=array('weights'),
    choices=Choices(shards, part) if array('choices') else None,
    record=record,
  )


def _open(path: pathlib.Path):
  return open(path, 'rb', buffering=0)


def _read(file: Any, offset: int, count: int, dtype: np.dtype) -> np.ndarray:
  data = os.pread(file.fileno(), size := count * dtype.itemsize, offset)
  while 0 < len(data) < size:  # A read has at most 2 GiB.
    more = os.pread(file.fileno(), size - len(data), offset + len(data))
    data = data + more if more else b''
  if len(data) != size:
    raise ValueError(f'{file.name}: was cut since it was opened.')
  return np.frombuffer(data, dtype)
