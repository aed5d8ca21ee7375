"""A store: the same bytes however it was written, and the right token's."""

from concurrent import futures
import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

from kaiju_jax.data import documents as documents_lib
from kaiju_jax.data import text as text_lib
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.distillation import config as config_lib
from kaiju_jax.distillation import read
from kaiju_jax.distillation import record as record_lib
from kaiju_jax.distillation import store
from kaiju_jax.distillation import write
from kaiju_jax.storage import files

ENTRIES = 3
SETTINGS = store.Settings(
  sampling=config_lib.Sampling(draws=9, entries=ENTRIES),
  vocab_size=5000,
  tokenizer='bytes',
  teacher='somebody',
  length=64,
  batch=2,
  shard=2,
)
NAME = 'a' * 12


def _targets(first, end):
  """Entries that say which token they belong to; every seventh has none."""
  number_N = np.arange(first, end)
  ids_NT = np.stack([number_N % 4093, 4093 + number_N % 907, number_N * 0], 1)
  counts_NT = np.stack([number_N % 8 + 1, 8 - number_N % 8, number_N * 0], 1)
  counts_NT[number_N % 7 == 0] = 0
  return record_lib.Targets(ids_NT, counts_NT)


def _check(found, number_N):
  """Holds what was read to the targets of these tokens."""
  ids_NT, counts_NT = (x[number_N] for x in _targets(0, 10_000))
  values_NT = counts_NT / np.maximum(counts_NT.sum(1, keepdims=True), 1)
  expected = _ordered(ids_NT, values_NT)
  for one, other in zip(_ordered(*found.values()), expected):
    np.testing.assert_allclose(one, other, rtol=1e-6)


def _ordered(ids_NT, values_NT):
  """Returns the entries by their ids; empty slots come last."""
  ids_NT = np.where(values_NT > 0, ids_NT, 9999)
  order_NT = np.argsort(ids_NT, axis=1)[:, :ENTRIES]
  return [np.take_along_axis(x, order_NT, 1) for x in (ids_NT, values_NT)]


def _writer(folder, tokens, digest='a' * 32, settings=SETTINGS):
  return write.Writer(folder, settings, digest, 'text', tokens)


def _write(folder, tokens, sizes=(700, 90, 2000), stops=(), digest='a' * 32):
  """Writes a store in pieces of odd sizes; returns the tokens at each start.

  Each stop is (token, saved?): there the writer is dropped, and a new one goes
  on.
  """
  begins, stops = [], list(stops)
  while True:
    with _writer(folder, tokens, digest) as writer:
      begins.append(writer.next)
      number = 0
      while writer.next < tokens:
        end = min(tokens, writer.next + sizes[number % len(sizes)])
        writer.add(_targets(writer.next, end))
        number += 1
        if stops and writer.next >= stops[0][0]:
          break
      if not stops:
        return begins
      _, is_saved = stops.pop(0)
      if is_saved:
        writer.save()


def _bytes(folder):
  return {
    path.name: path.read_bytes()
    for path in sorted(pathlib.Path(folder).iterdir())
    if path.name != store.LOCK
  }


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  folder = tmp_path_factory.mktemp('store') / 'whole'
  assert _write(folder, 7000) == [0]
  return folder


def test_shards_and_their_ranges(whole):
  (taught,) = store.read_manifest(whole).corpora.values()
  assert taught.tokens == taught.end == 7000
  assert [(one.first, one.end) for one in taught.shards] == [
    (0, 2048),
    (2048, 4096),
    (4096, 6144),
    (6144, 7000),
  ]
  assert [one.file for one in taught.shards] == [
    f'{NAME}-{number:05d}.array_record' for number in range(4)
  ]
  assert sorted(_bytes(whole)) == [
    *(one.file for one in taught.shards),
    store.FILE,
  ]
  manifest = store.read_manifest(whole)
  sizes = sum((whole / one.file).stat().st_size for one in taught.shards)
  assert manifest.bytes_per_token() == sizes / 7000


@pytest.mark.parametrize(
  ('stops', 'begins'),
  [
    ([(2048, False)], [0, 2048]),  # Killed between shards.
    ([(3000, False)], [0, 2048]),  # Killed inside of one: it starts anew.
    ([(3500, True)], [0, 3072]),  # Ctrl-C inside of one: it goes on.
    ([(500, True)], [0, 0]),
    ([(3500, True), (4000, False), (3700, True), (6900, True)], None),
  ],
)
def test_an_interrupted_store_is_the_same_to_the_byte(
  whole, tmp_path, stops, begins
):
  found = _write(tmp_path / 'store', 7000, stops=stops)
  assert begins is None or found == begins
  assert _bytes(tmp_path / 'store') == _bytes(whole)


def test_a_writer_goes_on_after_a_save(whole, tmp_path):
  with _writer(tmp_path / 'store', 7000) as writer:
    for first, end in ((0, 1100), (1100, 3300), (3300, 7000)):
      writer.add(_targets(first, end))
      writer.save()
  assert _bytes(tmp_path / 'store') == _bytes(whole)


@pytest.mark.parametrize('is_begun', [False, True])
def test_a_kill_between_a_shard_and_the_manifest(
  whole, tmp_path, monkeypatch, is_begun
):
  """No manifest names the file, or one that names its beginning alone."""
  folder = tmp_path / 'store'
  if is_begun:
    with _writer(folder, 7000) as writer:
      writer.add(_targets(0, 3500))
      writer.save()
  written = store.write_manifest
  calls = iter(range(9))

  def failing(*args):
    if next(calls) == (0 if is_begun else 2):
      raise KeyboardInterrupt
    written(*args)

  monkeypatch.setattr(store, 'write_manifest', failing)
  with pytest.raises(KeyboardInterrupt):
    _write(folder, 7000)
  monkeypatch.setattr(store, 'write_manifest', written)
  assert (folder / f'{NAME}-00001.array_record').exists()
  assert _write(folder, 7000) == [2048]
  assert _bytes(folder) == _bytes(whole)


def test_a_range_of_tokens_has_its_own_targets(whole):
  reader = read.Reader(whole, 'a' * 32)
  rng = np.random.default_rng(0)
  for _ in range(30):
    first, end = sorted(rng.choice(7001, 2, replace=False).tolist())
    found = reader(first, end)
    assert found['ids_BLT'].shape == (end - first, ENTRIES)
    _check(found, np.arange(first, end))
  assert reader(0, 1)['values_BLT'].tolist() == [[0, 0, 0]]
  wider = read.Reader(whole, 'a' * 32, entries=5)
  assert wider(5000, 5003)['values_BLT'].shape == (3, 5)
  _check(wider(5000, 5003), np.arange(5000, 5003))
  with pytest.raises(IndexError, match=r'the corpus has 7000'):
    reader(6999, 7001)


def test_cut_documents_and_trees_carry_their_own_targets(tmp_path):
  """In each row, of any length, in every epoch."""
  rng = np.random.default_rng(3)
  documents = []
  for number in range(40):
    if number % 3:
      text = ''.join(map(chr, rng.integers(97, 123, rng.integers(1, 200))))
      documents.append(documents_lib.Document(f'{number}', (text,)))
    else:
      segments = tuple('abcdefgh'[: rng.integers(1, 9)] for _ in range(4))
      documents.append(
        documents_lib.Document(f'{number}', segments, (-1, 0, 1, 0))
      )
  corpus = text_lib.corpus(documents, tokenizer_lib.Bytes())
  tokens = len(corpus.tokens)
  digest = text_lib.digest(corpus)
  _write(tmp_path, tokens, digest=digest)
  reader = read.Reader(tmp_path, digest)
  for length in (34, 50, 300):
    rows = text_lib.Rows(corpus, length, seed=length, beside=reader)
    index = seen = known = cut = 0
    while seen < 3 * tokens:
      row = rows[index]
      index += 1
      real_L = row.source >= 0
      assert not row.extras['values_BLT'][~real_L].any()
      # The number of each token, from the text alone: where in its document
      # do these tokens stand? Where they stand twice, nothing can be said.
      number_L = np.full(length, -1)
      for source in np.unique(row.source[real_L]):
        places = np.flatnonzero(row.source == source)
        begin, end = corpus.begins[source : source + 2]
        own = corpus.tokens[begin:end].tobytes()
        part = row.tokens[places].astype(corpus.tokens.dtype).tobytes()
        if own.find(part) == own.rfind(part):
          number_L[places] = begin + own.find(part) + np.arange(len(part))
          cut += len(part) < len(own)
      is_known_L = number_L >= 0
      known += int(is_known_L.sum())
      _check(
        {name: x[is_known_L] for name, x in row.extras.items()},
        number_L[is_known_L],
      )
      seen += int(real_L.sum())
    assert known > 0.95 * seen
    assert cut > 3


def test_a_store_holds_several_corpora(whole, tmp_path):
  for digest, tokens in (('a' * 32, 7000), ('b' * 32, 1500)):
    _write(tmp_path, tokens, digest=digest)
  manifest = store.read_manifest(tmp_path)
  assert [one.tokens for one in manifest.corpora.values()] == [7000, 1500]
  _check(read.Reader(tmp_path, 'b' * 32)(1400, 1500), np.arange(1400, 1500))
  one = f'{NAME}-00002.array_record'
  assert (tmp_path / one).read_bytes() == (whole / one).read_bytes()


def _damaged(whole, folder, kind):
  folder.mkdir()
  for name, data in _bytes(whole).items():
    if name == f'{NAME}-00001.array_record':
      if kind == 'missing':
        continue
      flipped = bytearray(data)
      flipped[len(data) // 2] ^= 1
      data = bytes(flipped) if kind == 'flipped' else data[:-10]
    (folder / name).write_bytes(data)
  return folder


@pytest.mark.parametrize(
  ('kind', 'error', 'message'),
  [
    ('missing', FileNotFoundError, 'missing'),
    ('flipped', ValueError, 'damaged: CRC-32'),
    ('short', ValueError, r'damaged: [\d,]+ bytes, [\d,]+ were written'),
  ],
)
def test_a_damaged_shard_is_named_and_made_anew(
  whole, tmp_path, kind, error, message
):
  folder = _damaged(whole, tmp_path / 'store', kind)
  with pytest.raises(error, match=f'{NAME}-00001.array_record: {message}'):
    read.Reader(folder, 'a' * 32)
  assert _write(folder, 7000) == [2048]
  assert _bytes(folder) == _bytes(whole)


def test_what_does_not_belong_together_is_refused(whole, tmp_path):
  with pytest.raises(ValueError, match=r"another corpus: 'text' \(7,000 tok"):
    read.Reader(whole, 'c' * 32)
  with pytest.raises(ValueError, match=r'entries=2: must be at least 3'):
    read.Reader(whole, 'a' * 32, entries=2)
  with pytest.raises(FileNotFoundError, match='folder that experiments'):
    read.Reader(tmp_path, 'a' * 32)
  with _writer(tmp_path / 'part', 7000) as writer:
    writer.add(_targets(0, 3000))
  with pytest.raises(ValueError, match="2,048 of 7,000 tokens of 'text'"):
    read.Reader(tmp_path / 'part', 'a' * 32)
  other = dataclasses.replace(
    SETTINGS,
    teacher='other',
    sampling=dataclasses.replace(SETTINGS.sampling, temperature=2.0),
  )
  with pytest.raises(
    ValueError,
    match=r'sampling.temperature=2.0 in this command, 1.0 in the store;'
    r" teacher='other' in",
  ):
    _writer(whole, 7000, settings=other)
  (tmp_path / 'part' / store.FILE).write_text('{"format": "other"}')
  with pytest.raises(ValueError, match=r'manifest.json: format: must be'):
    store.read_manifest(tmp_path / 'part')


def test_a_second_writer_is_refused_and_told_who_writes(whole, tmp_path):
  folder = tmp_path / 'store'
  script = (
    'import sys\n'
    'from kaiju_jax.storage import locks\n'
    f"with locks.hold({str(folder / store.LOCK)!r}, 's', 'writes', '--out'):\n"
    '  print(flush=True)\n'
    '  sys.stdin.read()\n'
  )
  folder.mkdir()
  with subprocess.Popen(
    [sys.executable, '-c', script],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
  ) as other:
    other.stdout.readline()
    with pytest.raises(
      BlockingIOError,
      match=f'store .*: process {other.pid} writes here already. Wait .* --out',
    ):
      _writer(folder, 7000)
    other.stdin.close()
  with (
    _writer(folder, 7000),
    futures.ThreadPoolExecutor(1) as thread,
    pytest.raises(BlockingIOError, match=f'process {os.getpid()} writes'),
  ):
    thread.submit(_writer, folder, 7000).result()
  (folder / f'.{store.FILE}.abc{files.PARTIAL}').write_text('{')
  assert _write(folder, 7000) == [0]
  assert _bytes(folder) == _bytes(whole)


@pytest.mark.parametrize('content', [None, '', '{"format": "kaij'])
def test_a_lost_manifest_is_made_anew_from_the_shards(whole, tmp_path, content):
  folder = tmp_path / 'store'
  shutil.copytree(whole, folder)
  if content is None:
    (folder / store.FILE).unlink()
  else:
    (folder / store.FILE).write_text(content)
  with pytest.raises((FileNotFoundError, ValueError), match='anew from the sh'):
    read.Reader(folder, 'a' * 32)
  other = dataclasses.replace(SETTINGS, teacher='other')
  with pytest.raises(ValueError, match="teacher='other' in this command"):
    _writer(folder, 7000, settings=other)
  with _writer(folder, 1500, digest='b' * 32) as writer:
    writer.add(_targets(0, 1500))
  _write(tmp_path / 'both', 7000)
  _write(tmp_path / 'both', 1500, digest='b' * 32)
  assert _bytes(folder) == _bytes(tmp_path / 'both')


def test_a_lost_manifest_leaves_out_what_is_damaged(whole, tmp_path):
  folder = _damaged(whole, tmp_path / 'store', 'flipped')
  (folder / store.FILE).unlink()
  assert _write(folder, 7000) == [2048]
  assert _bytes(folder) == _bytes(whole)
