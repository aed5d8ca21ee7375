"""Reading files, trees and the standard library; refusing what is not text."""

import bz2
import gzip
import json
import lzma
import os

import numpy as np
import pytest
import zstandard

from kaiju_jax.data import documents as documents_lib
from kaiju_jax.data import tokenizer as tokenizer_lib

BYTES = tokenizer_lib.Bytes()


def _write(root, **files):
  for name, content in files.items():
    path = root / name.replace('__', '/').replace('_', '.')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
  return root


def _read(path, **kwargs):
  return list(documents_lib.read(str(path), **kwargs))


def _names(path, **kwargs):
  return [document.name for document in _read(path, **kwargs)]


def _jsonl(tmp_path, *records):
  path = tmp_path / 'c.jsonl'
  lines = [json.dumps(record, ensure_ascii=False) for record in records]
  path.write_text('\n'.join(lines))
  return path


def test_a_folder_is_read_to_its_depth_sorted_without_hidden_files(tmp_path):
  _write(
    tmp_path,
    b_txt='bee',
    a__z_md='zed',
    a__a_txt='',
    B_txt='Bee\r\n',
    _hidden='x\0',
    _git__config='x\0',
  )
  assert (tmp_path / '.git/config').exists()
  documents = _read(tmp_path)
  assert [d.name for d in documents] == ['B.txt', 'a/z.md', 'b.txt']
  assert [d.segments for d in documents] == [('Bee\r\n',), ('zed',), ('bee',)]
  assert {d.parents for d in documents} == {(-1,)}


@pytest.mark.parametrize(
  'path, names',
  [
    ('a.txt', ['a.txt']),
    ('*.txt', ['a.txt', 'e[1].txt']),
    ('**/*.txt', ['a.txt', 'e[1].txt', 'sub/c.txt', 'sub/deep/d.txt']),
    ('sub/*', ['c.txt']),
    ('s[tu]b/**', ['sub/c.txt', 'sub/deep/d.txt']),
    ('e[1].txt', ['e[1].txt']),  # It exists, so that it is no glob.
  ],
)
def test_a_file_and_globs(tmp_path, path, names):
  _write(tmp_path, a_txt='1', b_md='2', sub__c_txt='3', sub__deep__d_txt='4')
  (tmp_path / 'e[1].txt').write_text('5')
  assert _names(f'{tmp_path}/{path}') == names


def test_the_standard_library():
  documents = _read('')
  names = {document.name for document in documents}
  assert {'argparse.py', 'json/decoder.py', 'asyncio/events.py'} <= names
  for folder in ('test', 'site-packages', 'encodings'):
    assert not [name for name in names if folder in name.split('/')]
  size = sum(len(document.segments[0]) for document in documents)
  assert 5e6 < size < 20e6
  assert documents == _read('')


@pytest.mark.parametrize('lines', [0, 1, 200, 20_000])
def test_chunks_of_a_single_file_join_to_the_file(tmp_path, lines):
  text = ''.join(f'{n}: {"é" * (n % 300)}\n' for n in range(lines)) + 'end'
  _write(tmp_path, book_txt=text)
  chunks = _read(tmp_path / 'book.txt', chunked=True)
  assert ''.join(chunk.segments[0] for chunk in chunks) == text
  assert [c.name for c in chunks] == [
    f'book.txt#{n}' for n in range(len(chunks))
  ]
  assert all(chunk.segments[0].endswith('\n') for chunk in chunks[:-1])
  assert all(0 < len(chunk.segments[0]) <= 65536 for chunk in chunks)
  assert len(chunks) >= min(100, len(text) // 1024)
  assert _names(tmp_path / 'book.txt') == ['book.txt']
  assert _names(tmp_path, chunked=True) == [chunk.name for chunk in chunks]


@pytest.mark.parametrize(
  'text, sizes', [('x' * 5000, [1024] * 4 + [904]), ('one\ntwo', [7])]
)
def test_chunks_of_few_lines(tmp_path, text, sizes):
  _write(tmp_path, a_txt=text)
  chunks = _read(tmp_path / 'a.txt', chunked=True)
  assert [len(chunk.segments[0]) for chunk in chunks] == sizes


def test_several_files_are_not_chunked(tmp_path):
  _write(tmp_path, a_txt='x\n' * 5000, b_txt='y')
  assert _names(tmp_path, chunked=True) == ['a.txt', 'b.txt']


def test_held_out_is_a_fraction_that_added_files_do_not_move():
  names = [f'folder/{n}.txt' for n in range(20_000)]
  held = {name for name in names if documents_lib.is_held_out(name, 0.05)}
  assert 0.045 < len(held) / len(names) < 0.055
  more = {name for name in names if documents_lib.is_held_out(name, 0.2)}
  assert held < more
  assert not any(documents_lib.is_held_out(name, 0) for name in names)
  # From `b2sum -l 64`: another hash would train on what was held out before.
  few = [name for name in names[:100] if documents_lib.is_held_out(name, 0.05)]
  assert few == [f'folder/{n}.txt' for n in (49, 57, 93, 95)]


def test_lines_of_text(tmp_path):
  path = _jsonl(tmp_path, {'text': 'a\u2028b', 'id': 3}, {'text': 'c'})
  path.write_text(path.read_text() + '\n\n  \n{"text": ""}\n{"text": "d"}')
  assert _read(path) == [
    documents_lib.Document('c.jsonl#1', ('a\u2028b',)),
    documents_lib.Document('c.jsonl#2', ('c',)),
    documents_lib.Document('c.jsonl#6', ('d',)),
  ]


def _segments(*pairs):
  return {'segments': [{'text': text, 'parent': p} for text, p in pairs]}


@pytest.mark.parametrize(
  'given, segments, parents',
  [
    # hi ─┬─ yes ─── good       listed breadth-first
    #     └─ no ──── why
    (
      [('hi', -1), ('yes', 0), ('no', 0), ('good', 1), ('why', 2)],
      ('hi', 'yes', 'good', 'no', 'why'),
      (-1, 0, 1, 0, 3),
    ),
    ([('b', 1), ('a', -1)], ('a', 'b'), (-1, 0)),
  ],
)
def test_a_tree_is_brought_into_preorder(tmp_path, given, segments, parents):
  (document,) = _read(_jsonl(tmp_path, _segments(*given)))
  assert document == documents_lib.Document('c.jsonl#1', segments, parents)


@pytest.mark.parametrize(
  'segments, parents, text, found',
  [
    #                                          BOS a  b  c  d  e
    (
      ['ab', 'c', '', 'd', 'e'],
      (-1, 0, 0, 2, -1),
      b'\0abcde',
      [-1, 0, 1, 2, 2, 0],
    ),
    (['ab', '', 'c'], (-1, 0, 1), b'\0abc', None),  # Without alternatives.
  ],
)
def test_encoding_a_tree(segments, parents, text, found):
  document = documents_lib.Document('t', tuple(segments), parents)
  piece = documents_lib.encode(document, BYTES)
  assert bytes(piece.tokens.tolist()) == text
  assert piece.tokens.dtype == np.int32
  if found is None:
    assert piece.parents is None
  else:
    assert piece.parents.tolist() == found and piece.parents.dtype == np.int32


def test_a_random_tree_reads_along_every_path(tmp_path):
  rng = np.random.default_rng(0)
  for _ in range(30):
    size = int(rng.integers(1, 9))
    texts = ['xyz'[: rng.integers(0, 4)] + str(n) for n in range(size)]
    parents = [int(rng.integers(-1, n)) if n else -1 for n in range(size)]
    record = _segments(*zip(texts, parents))
    (document,) = _read(_jsonl(tmp_path, record))
    piece = documents_lib.encode(document, BYTES)
    token_parents = piece.parents
    if token_parents is None:
      token_parents = np.arange(len(piece.tokens)) - 1
    wanted, got = set(), set()
    for node in range(size):
      path = ''
      while node != -1:
        path, node = texts[node] + path, parents[node]
      wanted.add(path)
    for token in range(len(piece.tokens)):
      path = ''
      while token != -1:
        path, token = chr(piece.tokens[token]) + path, token_parents[token]
      got.add(path[1:])
    assert wanted <= got


@pytest.mark.parametrize(
  'content, message',
  [
    (b'good\nb\xffd', 'byte 0xff at offset 6'),
    (b'\xef\xbb\xbfb\xff', 'byte 0xff at offset 4'),
    (b'good\0', 'byte 0x00 at offset 4'),
    (b'a\0\xff', 'byte 0x00 at offset 1'),
    (b'\xff\0', 'byte 0xff at offset 0'),
    (b'cut \xe7\x8c', 'byte 0xe7 at offset 4'),
    (gzip.compress(b'text', mtime=0), r'\(gzip\)'),
    (bz2.compress(b'text'), r'\(bzip2\)'),
    (lzma.compress(b'text'), r'\(xz\)'),
    (zstandard.compress(b'text'), r'\(zstd\)'),
    (b'PK\3\4\n\0', r'\(zip\)'),
    (b'PAR1\x15\0', r'\(parquet\)'),
  ],
)
def test_not_text(tmp_path, content, message):
  _write(tmp_path, a_txt=content)
  for path in (tmp_path, tmp_path / 'a.txt', f'{tmp_path}/*.txt'):
    with pytest.raises(ValueError, match=rf'a\.txt: .*{message}'):
      _read(path)


@pytest.mark.parametrize(
  'path, error, message',
  [
    ('{}/none', FileNotFoundError, 'no such'),
    ('gs://bucket/texts', ValueError, 'is an address'),
    ('s3://b/*.txt', ValueError, 'is an address'),
    ('{}', ValueError, 'folder holds no files'),
    ('{}/*.txt', ValueError, 'glob matches no files'),
  ],
)
def test_paths_without_text(tmp_path, path, error, message):
  _write(tmp_path, _hidden='x')
  with pytest.raises(error, match=rf"data\.path='.*': .*{message}"):
    _read(path.format(tmp_path))


def test_a_byte_order_mark_is_no_text(tmp_path):
  mark = '\ufeff'
  _write(tmp_path, a_txt=f'{mark}a{mark}', b_jsonl=f'{mark}{{"text": "b"}}\n')
  assert [one.segments for one in _read(tmp_path)] == [(f'a{mark}',), ('b',)]


def test_a_file_that_cannot_be_read(tmp_path):
  (tmp_path / 'link.txt').symlink_to(tmp_path / 'gone.txt')
  with pytest.raises(FileNotFoundError, match=r'link\.txt: cannot be read: No'):
    _read(tmp_path)


@pytest.mark.parametrize('named', ['', 'pipe', '*'])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path, named):
  _write(tmp_path, a_txt='x')
  os.mkfifo(tmp_path / 'pipe')
  with pytest.raises(ValueError, match='pipe: a pipe, socket or device, not'):
    documents_lib.files(str(tmp_path / named))


def test_a_folder_that_cannot_be_read(tmp_path, monkeypatch):
  _write(tmp_path, a_txt='x', sub__b_txt='y')
  scandir = os.scandir

  def refuse(path):
    if str(path).endswith('sub'):
      raise PermissionError(13, 'Permission denied', path)
    return scandir(path)

  monkeypatch.setattr(os, 'scandir', refuse)
  with pytest.raises(OSError, match='sub: the folder cannot be read: Perm'):
    _read(tmp_path)


@pytest.mark.parametrize(
  'line, message',
  [
    ('{"text": ', 'not JSON'),
    ('[1]', 'either "text" or "segments"'),
    ('{"body": "x"}', 'either "text" or "segments"'),
    ('{"text": "x", "segments": []}', 'either "text" or "segments"'),
    ('{"text": 3}', '"text" must be a string, not 3'),
    (r'{"text": "a\u0000"}', '"text" .* NUL at character 1'),
    (r'{"text": "ab\ud800"}', 'surrogate .* character 2'),
    ('{"segments": []}', '"segments" must'),
    ('{"segments": ["x"]}', r'segments\[0\]: expected'),
    ('{"segments": [{"text": "x"}]}', 'segments.0.*"parent".*not None'),
    (_segments(('a', -1), ('b', 2)), r'\[1\].*0…1.*not 2'),
    (_segments(('a', -1), ('b', True)), r'\[1\].*not True'),
    (_segments(('a', -1), (None, 0)), r'\[1\]: "text"'),
    (_segments(('a', -1), ('b', 2), ('c', 1)), r'segments\[1\]: .* circle'),
  ],
)
def test_bad_lines(tmp_path, line, message):
  path = tmp_path / 'c.jsonl'
  line = line if isinstance(line, str) else json.dumps(line)
  path.write_text('{"text": "good"}\n' + line)
  with pytest.raises(ValueError, match=f'c.jsonl, line 2: .*{message}'):
    _read(path)
