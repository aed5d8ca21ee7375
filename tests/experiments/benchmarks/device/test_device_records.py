"""Records of slices, and their rows on the pages, number by number."""

import json
import pathlib
import types

from experiments.benchmarks.device import autotune
from experiments.benchmarks.device import book as book_lib
from experiments.benchmarks.device import needle
from experiments.benchmarks.device import setting as setting_lib
from experiments.benchmarks.device import startup
from experiments.benchmarks.device import tables
from kaiju_jax.kernels import timing
from kaiju_jax.kernels import tuned


def _rows(tmp_path, slice_, page, records):
  book = book_lib.Book(tmp_path, slice_)
  for i, record in enumerate(records):
    book.end(f'{i}', book_lib.DONE, record=record)
  tables.write(tmp_path)
  lines = (tmp_path / 'tables' / f'{page}.md').read_text().splitlines()
  lines = lines[lines.index('|---|' + '---|' * (_width(lines) - 1)) + 1 :]
  return lines[: len(records)]


def _width(lines):
  return next(line for line in lines if '|---' in line).count('|') - 1


def test_a_training_step(tmp_path):
  rate = {'median': 1e12, 'least': 1e12, 'most': 1e12, 'rounds': 3}
  rates = {'bf16_matmul': rate, 'int8_matmul': rate | {'median': 2e12}}
  book = book_lib.Book(tmp_path, 'ceilings')
  book.end('rates', book_lib.DONE, record=rates | {'copy': rate})
  record = {
    'arm': 'int8',
    'model': '250m',
    'tokens': 8192,
    'seconds': timing.Spread(0.5, 0.25, 1.0, 9),
    'operations': 2.5e11,
    'planned_bytes': 3 * 2**30,
    'peak_bytes': 2**30,
  }
  times = '500 (250–1e+03) | 16,384 |  | 50.0%'
  assert _rows(tmp_path, 'step', 'step', [record]) == [
    f'| 250m | int8 | 8,192 | {times} | 3.00 | 1.00 |'
  ]


def test_a_decoding_step(tmp_path):
  record = {
    'arm': 'int8',
    'batch': 64,
    'length': 1024,
    'prefill': timing.Spread(0.5, 0.25, 1.0, 3),
    'step': timing.Spread(0.01, 0.008, 0.016, 3),
    'cache_bytes': 2**29,
    'peak_bytes': None,
  }
  assert _rows(tmp_path, 'decode', 'decoding', [record]) == [
    '| int8 | 64 | 1,024 | 0.5 (0.25–1) | 10 (8–16) | 6,400 | 0.50 |  |'
  ]


def test_a_search_of_blocks(tmp_path):
  record = {
    'kernel': 'squinch',
    'key': 'kind=encode',
    'candidates': 9,
    'best': {'rows': 64},
    'seconds': 1e-5,
    'refused': {'3': 'no'},
    'first': timing.Spread(3e-5, 2e-5, 4e-5, 3),
    'untried': 2,
    'spread': timing.Spread(1e-5, 9e-6, 2e-5, 3),
  }
  rows = '| squinch | kind=encode | 30 (20–40) | 10 (9–20) | 3.00 | rows=64 |'
  first_refused = record | {'first': None}
  assert _rows(tmp_path, 'autotune', 'kernels', [record, first_refused]) == [
    f'{rows} 1 / 2 of 9 |',
    '| squinch | kind=encode |  | 10 (9–20) |  | rows=64 | 1 / 2 of 9 |',
  ]


def test_a_winner_goes_beside_its_kernel_but_not_in_a_rehearsal(
  tmp_path, monkeypatch
):
  beside = tmp_path / 'kernel'
  api = types.SimpleNamespace(__file__=str(beside / 'api.py'))
  monkeypatch.setattr(autotune, '_module', lambda kernel, name: api)
  monkeypatch.setattr(tuned, 'device_kind', lambda: 'X')
  job = tuned.Job([{'rows': 8}], lambda: lambda blocks: lambda: 1)
  case = autotune.TuneCase('squinch', 'a', job)
  for dry in True, False:
    out = tmp_path / f'{dry}'
    record = autotune.measure(setting_lib.Setting(str(out), dry=dry), case)
    assert record['best'] == {'rows': 8}
    assert tuned.winner(out / 'tuned' / 'squinch', 'X', 'a') == {'rows': 8}
    assert beside.exists() != dry
  assert tuned.winner(beside, 'X', 'a') == {'rows': 8}


def test_needles_are_counted_at_the_trained_length(tmp_path, monkeypatch):
  length = needle.experiment_of('kaiju', False).data.length
  cell = types.SimpleNamespace
  found = [
    cell(length=length, accuracy=0.5, count=10),
    cell(length=length, accuracy=1.0, count=30),
    cell(length=2 * length, accuracy=0.0, count=40),
  ]
  for each in found:
    each._asdict = dict
  monkeypatch.setattr(needle.grid, 'run', lambda *_: None)
  monkeypatch.setattr(needle.arms.Questions, 'read', lambda *_: found)
  setting = setting_lib.Setting(str(tmp_path))
  record = needle.measure(setting, 'kaiju')
  assert (record['accuracy'], record['questions']) == (35 / 40, 40)
  (row,) = _rows(tmp_path, 'needle', 'decoding', [record])
  assert row == f'| kaiju | {length} | 40 | 87.50% | 73.89%–94.54% |'


def test_starts_have_processor_and_wall_seconds(tmp_path, monkeypatch):
  arguments = []

  def run(words, cwd):
    arguments.extend(words)
    (path,) = [x.partition('=')[2] for x in words if x.startswith('--json')]
    rounds = {'first start': [[1, 5], [2, 7], [3, 6]]}
    pathlib.Path(path).write_text(json.dumps({'train': rounds}))
    return types.SimpleNamespace(returncode=0)

  monkeypatch.setattr(startup.subprocess, 'run', run)
  record = startup.measure(setting_lib.Setting(str(tmp_path)), 'train')
  assert '--repeats=3' in arguments and '--rehearse' not in arguments
  assert _rows(tmp_path, 'startup', 'startup', [record]) == [
    '| train | first start | 2 (1–3) | 6 (5–7) |'
  ]
