"""Text that is packed by gzip or zstd, and columns of tables."""

import gzip
import json
import tracemalloc

import pytest
import zstandard

from kaiju_jax.data import documents as documents_lib
from kaiju_jax.data import reading

LINES = '{"text": "é"}\n\n{"text": "b"}\r\n{"text": "c"}'


def _segments(path, **more):
  read = documents_lib.read(str(path), **more)
  return [(one.name, *one.segments) for one in read]


def _frames(data):
  """Two frames of zstd, as `zstd -T` and appended files have them."""
  return zstandard.compress(data[:9]) + zstandard.compress(data[9:])


PACKED = {
  'gz': gzip.compress,
  'zst': zstandard.compress,
  'frames.zst': _frames,
}


@pytest.mark.parametrize('kind', PACKED)
def test_packed_files_are_read_as_what_they_hold(tmp_path, kind):
  suffix = kind.rpartition('.')[2]
  for name, text in (('a.jsonl', LINES), ('b.txt', 'two\nlines')):
    packed = PACKED[kind](text.encode())
    (tmp_path / f'{name}.{suffix}').write_bytes(packed)
  assert _segments(tmp_path) == [
    (f'a.jsonl.{suffix}#1', 'é'),
    (f'a.jsonl.{suffix}#3', 'b'),
    (f'a.jsonl.{suffix}#4', 'c'),
    (f'b.txt.{suffix}', 'two\nlines'),
  ]


@pytest.mark.parametrize('kind', PACKED)
def test_packed_files_that_are_cut_are_refused(tmp_path, kind):
  file = tmp_path / f'a.jsonl.{kind.rpartition(".")[2]}'
  data = PACKED[kind]((LINES * 99).encode())
  for kept in (0, 5, len(data) // 2, len(data) - 1):
    file.write_bytes(data[:kept])
    if kept:
      with pytest.raises(ValueError, match=r'a\.jsonl\.\w+: is not whole'):
        _segments(file)
    else:
      assert _segments(file) == []
  file.write_bytes(b'{"text": "plain"}')
  with pytest.raises(ValueError, match='or not what its suffix says'):
    _segments(file)


def test_errors_name_the_place_in_what_is_packed(tmp_path):
  data = b'x' * (2**20 - 1) + 'é'.encode() + b'y' * 2**20
  (tmp_path / 'a.txt.gz').write_bytes(gzip.compress(data))
  assert _segments(tmp_path)[0][1] == data.decode()  # é lies across two pieces.
  (tmp_path / 'a.txt.gz').write_bytes(gzip.compress(data + b'\xff'))
  with pytest.raises(ValueError, match=f'0xff at offset {len(data)};'):
    _segments(tmp_path)
  (tmp_path / 'a.txt.gz').write_bytes(gzip.compress(data + b'\0'))
  with pytest.raises(ValueError, match=f'0x00 at offset {len(data)};'):
    _segments(tmp_path)
  (tmp_path / 'a.txt.gz').write_bytes(gzip.compress(data + b'\xc3'))
  with pytest.raises(ValueError, match=f'0xc3 at offset {len(data)};'):
    _segments(tmp_path)


@pytest.mark.parametrize(
  'name', ['a.jsonl', 'a.jsonl.zst', 'a.txt', 'a.txt.gz']
)
def test_files_of_any_size_take_little_memory(tmp_path, name):
  line = json.dumps({'text': 'word ' * 2000}) + '\n'
  pack = PACKED.get(name.rpartition('.')[2], bytes)
  (tmp_path / name).write_bytes(pack((line * 2**12).encode()))  # 41 MB.
  found = documents_lib.read(str(tmp_path), chunked=True)
  next(found)  # A text's chunks are as large as its first 8 million characters.
  tracemalloc.start()
  assert sum(len(one.segments[0]) for one in found) > 2**24
  peak = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert peak < 2**23


def test_columns_of_parquet_files(tmp_path):
  pyarrow = pytest.importorskip('pyarrow', reason='the extra hf')
  from pyarrow import parquet

  texts = [None if n % 7 == 3 else f'é{n}' * (n % 5) for n in range(600)]
  table = pyarrow.table({'body': texts, 'n': range(600)})
  parquet.write_table(table, tmp_path / 'a.parquet', row_group_size=100)
  expected = [(f'a.parquet#{n}', x) for n, x in enumerate(texts, 1) if x]
  assert _segments(tmp_path, column='body') == expected
  with pytest.raises(ValueError, match=r'--column=text: .* columns body, n'):
    _segments(tmp_path)
  with pytest.raises(ValueError, match=r'a\.parquet, row 1: "text" must be'):
    _segments(tmp_path, column='n')
  (tmp_path / 'a.parquet').write_bytes(b'PAR1cut')
  with pytest.raises(ValueError, match=r'a\.parquet: not a Parquet file'):
    _segments(tmp_path)


def test_folders_that_datasets_saved(tmp_path):
  datasets = pytest.importorskip('datasets', reason='the extra hf')
  texts = [f'é{n}' * (n % 5) for n in range(600)]
  found = datasets.Dataset.from_dict({'text': texts, 'n': list(range(600))})
  found = found.select(range(599, -1, -1))  # It saves what is selected.
  found.save_to_disk(tmp_path / 'saved', num_shards=3)
  assert _segments(tmp_path / 'saved') == [
    (f'dataset#{n}', x) for n, x in enumerate(reversed(texts), 1) if x
  ]
  with pytest.raises(ValueError, match=r'--column=body: .* columns text, n'):
    _segments(tmp_path / 'saved', column='body')
  both = datasets.DatasetDict(train=found, test=found)
  both.save_to_disk(tmp_path / 'both')
  with pytest.raises(ValueError, match=r'both.*splits test, train.*one'):
    _segments(tmp_path / 'both')


@pytest.mark.parametrize('package', ['pyarrow', 'datasets'])
def test_a_missing_package_is_named_with_its_extra(
  tmp_path, monkeypatch, package
):
  monkeypatch.setitem(__import__('sys').modules, package, None)
  if package == 'pyarrow':
    (tmp_path / 'a.parquet').write_bytes(b'PAR1')
  else:
    for name in ('dataset_info.json', 'state.json'):
      (tmp_path / name).write_text('{}')
  with pytest.raises(ImportError, match=rf'{package}: pip .*kaiju_jax\[hf\]'):
    _segments(tmp_path)
  assert reading.is_saved_dataset(str(tmp_path)) == (package == 'datasets')
