"""Rows of a token store are those of its text; a kill harms none of it."""

import functools
import gzip
import json
import multiprocessing
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
import tracemalloc

import numpy as np
import pytest

from kaiju_jax.data import config as data_config
from kaiju_jax.data import documents as documents_lib
from kaiju_jax.data import loader
from kaiju_jax.data import same_text
from kaiju_jax.data import text as text_lib
from kaiju_jax.data.store import corpora
from kaiju_jax.data.store import encoders
from kaiju_jax.data.store import shards as shards_lib
from kaiju_jax.data.store import write
from kaiju_jax.storage import locks
from tests.data import toys

ROOT = pathlib.Path(__file__).parents[3]


def _line(rng, number):
  """A .jsonl line: a tree in every third, and some without any text."""
  words = [f'é{n} ' * n for n in rng.integers(0, 9, 3)]
  if number % 3:
    return json.dumps({'text': ''.join(words)})
  nodes = zip(words, (-1, 0, 0))
  return json.dumps({'segments': [{'text': t, 'parent': p} for t, p in nodes]})


def _write_texts(folder, kind):
  """Writes text of a kind; returns its path."""
  rng = np.random.default_rng(4)
  folder.mkdir()
  lines = [_line(rng, number) for number in range(200)]
  prose = [f'{n}: {"word " * (n % 9)}\n' for n in range(900)]
  if kind == 'lines':
    (folder / 'a.jsonl').write_text('\n'.join(lines[:120]))
    (folder / 'b.jsonl.gz').write_bytes(
      gzip.compress('\n\n'.join(lines[120:]).encode())
    )
  elif kind == 'files':
    for number in range(90):
      (folder / f'{number}.txt').write_text(prose[number] * (1 + number % 5))
  elif kind == 'chunks':
    (folder / 'book.txt').write_text(''.join(prose))
    return str(folder / 'book.txt')
  elif kind == 'cut':  # So few that each is cut.
    for name in ('x', 'y'):
      (folder / f'{name}.txt').write_text(''.join(prose[:300]))
  else:  # So few, and none can be cut: one of two trees is held out.
    (folder / 'a.jsonl').write_text(f'{lines[0]}\n{lines[3]}')
  return str(folder)


KINDS = ('lines', 'files', 'chunks', 'cut', 'trees')


def _make(path, out, held_out=0.05, **more):
  more = {'shard': 2000} | more
  config = data_config.DataConfig(path=str(path), held_out=held_out)
  return write.write(config, str(out), **more)


def _load(path, held_out=0.05):
  config = data_config.DataConfig(path=str(path), held_out=held_out)
  corpora.check(config, encoders.text_of(config, 256))
  return corpora.load(config)


def _assert_equal(one, other):
  for name, a, b in zip(one._fields[:-1], one, other):
    np.testing.assert_array_equal(a, b, err_msg=name)


@pytest.mark.parametrize('kind', KINDS)
def test_rows_of_a_store_are_those_of_its_text(tmp_path, kind):
  path = _write_texts(tmp_path / 'texts', kind)
  _make(path, tmp_path / 'store')
  shards = list((tmp_path / 'store').glob('*.safetensors'))
  assert len(shards) > 1 or kind == 'trees'
  mode = (tmp_path / 'store').stat().st_mode & 0o666
  assert {one.stat().st_mode & 0o777 for one in shards} == {mode}
  expected, found = _load(path), _load(tmp_path / 'store')
  for side in (0, 1):
    rows, stored = (text_lib.Rows(x[side], 128, 7) for x in (expected, found))
    assert len(stored) == len(rows) and stored.fill == rows.fill
    for index in range(3 * len(rows) + 2):
      _assert_equal(stored[index], rows[index])
    # A resumed run begins in the middle.
    index = 2 * len(rows) + 1
    _assert_equal(text_lib.Rows(found[side], 128, 7)[index], rows[index])
    if side:
      assert [stored.byte_count(n) for n in range(9)] == [
        rows.byte_count(n) for n in range(9)
      ]
    assert list(found[side].names) == list(expected[side].names)
  assert same_text.describe(*found) == same_text.describe(*expected)
  assert text_lib.digest(found[0]) == text_lib.digest(expected[0])


@pytest.mark.parametrize('held_out', [0.0, 0.3])
def test_a_store_is_made_for_one_fraction(tmp_path, held_out):
  path = _write_texts(tmp_path / 'texts', 'files')
  _make(path, tmp_path / 'store', held_out)
  expected, found = (_load(x, held_out) for x in (path, tmp_path / 'store'))
  assert (found[1] is None) == (held_out == 0)
  assert same_text.describe(*found) == same_text.describe(*expected)


def test_eight_processes_resume_in_the_middle(tmp_path):
  path = _write_texts(tmp_path / 'texts', 'lines')
  _make(path, tmp_path / 'store')

  def batches(path, own=None):
    found = _load(path)
    described = {'': same_text.describe(*found)}
    rows = text_lib.Rows(found[0], 128, 1)
    return loader.batches(rows, 8, own=own, text=described)

  whole = batches(path)
  next(whole)
  state = whole.get_state()
  expected = [next(whole) for _ in range(9)]
  for process in range(8):
    own = batches(tmp_path / 'store', [process])
    own.set_state(json.loads(json.dumps(state)))
    for batch in expected:
      one = next(own)
      for a, b in zip(one[:-1], batch[:-1]):
        np.testing.assert_array_equal(a[:, 0], b[:, process])


def _bytes(folder):
  return {x.name: x.read_bytes() for x in pathlib.Path(folder).glob('*s*')}


def test_a_store_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
  path = _write_texts(tmp_path / 'texts', 'lines')
  _make(path, tmp_path / 'whole')
  real, written = shards_lib.write, []

  def stop(file, *more):
    written.append(file.name)
    if len(written) == 3:
      (file.parent / f'.{file.name}.1.partial').write_text('cut')
      raise KeyboardInterrupt
    real(file, *more)

  monkeypatch.setattr(shards_lib, 'write', stop)
  with pytest.raises(KeyboardInterrupt):
    _make(path, tmp_path / 'store')
  with pytest.raises(ValueError, match=r'data\.path=.* is not whole yet'):
    _load(tmp_path / 'store')
  _make(path, tmp_path / 'store')
  assert written[3] == written[2] and len(set(written)) == len(written) - 1
  assert not list((tmp_path / 'store').glob('.*partial'))
  assert _bytes(tmp_path / 'store') == _bytes(tmp_path / 'whole')
  _make(path, tmp_path / 'store')  # It is whole: nothing is encoded.
  assert len(set(written)) == len(written) - 1


def test_processes_write_the_same_store_and_end_with_their_parent(tmp_path):
  path = _write_texts(tmp_path / 'texts', 'lines')
  _make(path, tmp_path / 'whole', shard=300)
  code = (
    'from kaiju_jax.data import config; from kaiju_jax.data.store import write;'
    f'write.write(config.DataConfig(path={path!r}), "store", processes=2,'
    ' shard=300)'
  )
  command = [sys.executable, '-c', code]
  environment = os.environ | {'PYTHONPATH': str(ROOT)}
  with open(tmp_path / 'said', 'wb') as said:
    begun = subprocess.Popen(
      command,
      cwd=tmp_path,
      env=environment,
      start_new_session=True,
      stderr=said,
    )
  while not list(tmp_path.glob('store/*.safetensors')):
    time.sleep(0.005)
  begun.kill()
  begun.wait()
  deadline = time.monotonic() + 20
  while time.monotonic() < deadline:
    try:
      os.killpg(begun.pid, 0)
    except ProcessLookupError:
      break
    time.sleep(0.01)
  else:
    os.killpg(begun.pid, signal.SIGKILL)
    raise AssertionError('The workers live on.')
  assert b'Error' not in (tmp_path / 'said').read_bytes()
  _make(path, tmp_path / 'store', shard=300, processes=2)
  assert _bytes(tmp_path / 'store') == _bytes(tmp_path / 'whole')


def test_memory_does_not_grow_with_the_text(tmp_path):
  def peak(count):
    file = tmp_path / f'{count}.jsonl'
    line = json.dumps({'text': 'some words ' * 200})
    file.write_text(f'{line}\n' * count)
    tracemalloc.start()
    _make(str(file), tmp_path / f'{count}', shard=2**15)
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found

  assert peak(900) < 1.3 * peak(300)


def _cut_shard(store, keep):
  file = store / '000001.safetensors'
  with open(file, 'r+b') as opened:
    opened.truncate(keep if keep >= 0 else file.stat().st_size + keep)


def _swap_borders(store):
  file = store / '000000.safetensors'
  shard = shards_lib.Shard(file)
  place = shard.place('training/begins', 1)
  data = bytearray(file.read_bytes())
  data[place : place + 16] = (
    data[place + 8 : place + 16] + data[place : place + 8]
  )
  file.write_bytes(data)


def _age(store):
  file = store / documents_lib.STORE
  file.write_text(file.read_text().replace('"version": 1', '"version": 0'))


@pytest.mark.parametrize(
  'harm, message',
  [
    (lambda store: _cut_shard(store, -1), r'000001\.safetensors: is cut'),
    (lambda store: _cut_shard(store, 100), r'000001\.safetensors: is no whole'),
    (lambda store: _cut_shard(store, 0), r'000001\.safetensors: is no whole'),
    (_swap_borders, r'000000\.safetensors: the documents. borders do not rise'),
    (_age, 'is a store of version 0'),
    (lambda store: (store / '000001.safetensors').unlink(), 'is missing'),
  ],
)
def test_damage_is_refused_by_name(tmp_path, harm, message):
  path = _write_texts(tmp_path / 'texts', 'lines')
  _make(path, tmp_path / 'store')
  harm(tmp_path / 'store')
  with pytest.raises((ValueError, FileNotFoundError), match=message):
    _load(tmp_path / 'store')


def test_a_store_that_is_cut_while_it_is_read(tmp_path):
  path = _write_texts(tmp_path / 'texts', 'lines')
  _make(path, tmp_path / 'store')
  training, _ = _load(tmp_path / 'store')
  _cut_shard(tmp_path / 'store', 100)
  with pytest.raises(ValueError, match=r'000001.*was cut since'):
    training.tokens[:]


def test_other_tokenizers_and_fractions_are_refused(tmp_path):
  path = _write_texts(tmp_path / 'texts', 'files')
  _make(path, tmp_path / 'store')
  config = data_config.DataConfig(path=str(tmp_path / 'store'), held_out=0.1)
  with pytest.raises(ValueError, match=r'data\.held_out=0\.1: .* for 0\.05'):
    corpora.check(config, encoders.text_of(config, 256))
  toys.train_tokenizer(tmp_path / 'other.json')
  config.held_out, config.tokenizer = 0.05, str(tmp_path / 'other.json')
  with pytest.raises(ValueError, match=r'data\.tokenizer=.*another one'):
    corpora.check(config, encoders.text_of(config, 512))
  with pytest.raises(ValueError, match=r'--documents=.*is a token store'):
    documents_lib.files(str(tmp_path / 'store'), '--documents')


@pytest.mark.parametrize('changed', ['data', 'held_out', 'shard', 'column'])
def test_a_folder_of_other_inputs_is_refused(tmp_path, changed):
  path = _write_texts(tmp_path / 'texts', 'files')
  _make(path, tmp_path / 'store')
  if changed == 'data':
    file = tmp_path / 'texts/7.txt'
    file.write_text(file.read_text().replace('7', '8'))
  more = {'held_out': 0.1, 'shard': 1000, 'column': 'body'}
  more = {name: x for name, x in more.items() if name == changed}
  before = _bytes(tmp_path / 'store')
  with pytest.raises(ValueError, match=f'--out=.*: {changed} differs'):
    _make(path, tmp_path / 'store', **more)
  assert _bytes(tmp_path / 'store') == before
  with pytest.raises(FileExistsError, match=r'--out=.*no token store'):
    _make(path, tmp_path / 'texts')


@pytest.mark.parametrize('refused', ['', '{"txt": "b"}\n'])
def test_refused_text_that_is_mended_goes_to_the_same_folder(tmp_path, refused):
  file, store = tmp_path / 'texts.jsonl', tmp_path / 'store'
  file.write_text(refused)
  with pytest.raises(ValueError, match=r'no text|texts\.jsonl, line 1'):
    _make(file, store)
  assert not documents_lib.is_store(str(store))
  file.write_text(''.join(f'{{"text": "mended {i}"}}\n' for i in range(40)))
  _make(file, store)
  assert len(_load(store)[0].names) > 30
  # Shards that are there bind it to their text.
  (store / documents_lib.STORE).unlink()
  for one in store.glob('*.safetensors'):
    one.unlink()
  good = file.read_text()
  file.write_text(good + refused + '{"text": 1}\n')
  with pytest.raises(ValueError, match='texts'):
    _make(file, store, shard=20)
  file.write_text('{"text": "other"}\n' * 40)
  with pytest.raises(ValueError, match='data differs'):
    _make(file, store, shard=20)
  # Those that hold the mended text are not written again, others are.
  written = sorted(store.glob('*.safetensors'))
  assert len(written) > 10
  shutil.copy(written[3], written[7])
  shutil.copy(written[3], store / '000099.safetensors')
  before = [one.stat().st_mtime_ns for one in written]
  file.write_text(good + '{"text": "mended"}\n')
  _make(file, store, shard=20)
  after = [one.stat().st_mtime_ns for one in written]
  assert [n for n, x in enumerate(after) if x != before[n]] == [7]
  _make(file, tmp_path / 'whole', shard=20)
  assert _bytes(store) == _bytes(tmp_path / 'whole')


@pytest.mark.parametrize('is_finished', [False, True])
def test_text_that_changes_before_the_first_shard(
  tmp_path, monkeypatch, is_finished
):
  """A kill binds the folder to nothing; what another finishes, it does."""
  file, store = tmp_path / 'texts.jsonl', tmp_path / 'store'
  lines = ''.join(f'{{"text": "old {i}"}}\n' for i in range(40))
  file.write_text(lines)
  with monkeypatch.context() as patch:
    patch.setattr(shards_lib, 'write', lambda *_: signal.raise_signal(2))
    with pytest.raises(KeyboardInterrupt):
      _make(file, store)
  hold = locks.hold

  def finish(*named):
    monkeypatch.setattr(locks, 'hold', hold)
    file.write_text(lines)
    _make(file, store)
    file.write_text(lines.replace('old', 'new'))
    return hold(*named)

  file.write_text(lines.replace('old', 'new'))
  if not is_finished:
    _make(file, store)
    _make(file, tmp_path / 'whole')
    assert _bytes(store) == _bytes(tmp_path / 'whole')
    return
  monkeypatch.setattr(locks, 'hold', finish)
  with pytest.raises(ValueError, match='data differs'):
    _make(file, store)


def test_runs_of_one_text_encode_it_once(tmp_path, monkeypatch):
  path = _write_texts(tmp_path / 'texts', 'files')
  monkeypatch.setattr(write, '_HAS_AFFINITY', False)
  config = data_config.DataConfig(path=path)
  assert write.store_of(config, tmp_path / 'kept') is config  # It is small.
  monkeypatch.setattr(write, '_SMALL', 1000)
  stored = write.store_of(config, tmp_path / 'kept')
  assert documents_lib.is_store(stored.path)
  assert write.store_of(stored, tmp_path / 'kept') is stored
  before = _bytes(stored.path)

  def refuse(*_, **__):
    raise AssertionError('It is encoded already.')

  with monkeypatch.context() as patch:
    patch.setattr(write, 'write', refuse)
    assert write.store_of(config, tmp_path / 'kept') == stored
  # Another text, and another fraction, have stores of their own.
  (tmp_path / 'texts/3.txt').write_text('other')
  others = [
    write.store_of(one, tmp_path / 'kept').path
    for one in (config, data_config.DataConfig(path=path, held_out=0.2))
  ]
  assert len({stored.path, *others}) == 3
  assert _bytes(stored.path) == before
  expected = _load(path)
  assert same_text.describe(*_load(others[0])) == same_text.describe(*expected)
  # While another process makes it, text is encoded in memory.
  config.held_out = 0.3
  folder = pathlib.Path(write.store_of(config, tmp_path / 'made').path).name
  (tmp_path / 'kept' / folder).mkdir()
  with locks.hold(tmp_path / 'kept' / folder / '.lock', '', '', ''):
    code = (
      'from kaiju_jax.data import config;'
      'from kaiju_jax.data.store import write;'
      'write._SMALL, write._HAS_AFFINITY = 1000, False;'
      f'one = config.DataConfig(path={path!r}, held_out=0.3);'
      f'assert write.store_of(one, {str(tmp_path / "kept")!r}) is one'
    )
    subprocess.run(
      [sys.executable, '-c', code],
      env=os.environ | {'PYTHONPATH': str(ROOT)},
      check=True,
    )


@pytest.mark.parametrize('ends', [False, True])
def test_a_worker_that_fails_says_why(tmp_path, monkeypatch, ends):
  (tmp_path / 'a').mkdir()
  path = tmp_path / 'a/000000.safetensors'
  own, theirs = multiprocessing.Pipe()
  idle = queue.SimpleQueue()
  idle.put(own)
  document = documents_lib.Document('a', ('\ud800',))  # It cannot be encoded.
  given = [(path, [(document, False)])]
  if ends:
    theirs.close()
    with pytest.raises(OSError, match=r'000000.* was ended, .*goes on'):
      write._ask(idle, given)
  else:
    make = functools.partial(encoders.text_of, data_config.DataConfig())
    worker = threading.Thread(target=write._serve, args=(theirs, make))
    monkeypatch.setattr(write.signal, 'signal', lambda *_: None)
    worker.start()
    with pytest.raises(UnicodeEncodeError):
      write._ask(idle, given)
    given = [(path, [(document._replace(segments=('b',)), False)])]
    write._ask(idle, given)  # It works on.
    assert path.exists()
    own.close()
    worker.join(10)
    assert not worker.is_alive()
  assert not given and idle.get() is own
