"""Books, records, pages and proposals, without a child process."""

import dataclasses
import json
import math
import pathlib
import re
import types

import pytest

from experiments.benchmarks.device import autotune
from experiments.benchmarks.device import book as book_lib
from experiments.benchmarks.device import child
from experiments.benchmarks.device import needle
from experiments.benchmarks.device import order
from experiments.benchmarks.device import proposal
from experiments.benchmarks.device import setting as setting_lib
from experiments.benchmarks.device import startup
from experiments.benchmarks.device import tables
from kaiju_jax.experiments.benchmarks import harness
from kaiju_jax.kernels import benchmark
from kaiju_jax.kernels import ceilings
from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import timing
from kaiju_jax.kernels import tuned
from kaiju_jax.kernels.paged_decode import blocks
from tests.device import numerics
from tests.experiments.benchmarks.device import commands

DONE = book_lib.DONE
DEVICE = {
  'device': 'H100',
  'platform': 'gpu',
  'plays': None,
  'driver': 'cuda 12',
  'dry': False,
}


def test_a_file_resumes_and_holds_nothing_but_json(tmp_path):
  book = book_lib.Book(tmp_path, 'step')
  book.bind(DEVICE)
  book.note_cases(['a', 'b', 'c'])
  assert book.count_left() == 3
  book.begin('a')
  spread = timing.Spread(2.0, math.nan, math.inf, 3)
  book.end('a', DONE, seconds=30, estimate=20, record={1: (spread,)})
  book.end('b', book_lib.SKIPPED, why='no time')
  book.begin('c')
  again = book_lib.Book(tmp_path, 'step')
  assert again.data['running'] == 'c' and again.count_left() == 2
  assert again.fail_running('died') == 'c' and again.count_left() == 1
  assert again.fail_running('x') is None
  assert again.records() == {
    'a': {'1': [{'median': 2.0, 'least': 'nan', 'most': 'inf', 'rounds': 3}]}
  }
  assert again.pace() == 1.5
  again.forget_failures()
  again = book_lib.Book(tmp_path, 'step')
  assert again.count_left() == 2 and set(again.cases) == {'a', 'b'}
  again.bind(DEVICE)
  with pytest.raises(ValueError, match=r'figures of H100; this is H200\.'):
    again.bind(DEVICE | {'device': 'H200'})


@pytest.mark.parametrize('text', ['{"cases": {"a"', '[]', '{"cases": null}'])
def test_a_file_that_cannot_be_read_costs_its_slice_alone(tmp_path, text):
  book = book_lib.Book(tmp_path, 'step')
  book.path.write_text(text)
  book_lib.Book(tmp_path, 'needle').note_cases(['a'])
  assert 'its file was not readable' in write(tmp_path)['step']
  assert book.path.with_suffix('.unreadable').read_text() == text
  again = book_lib.Book(tmp_path, 'step')
  assert again.count_left() is None and not again.cases
  assert 'step.json: ' in again.data['problem']
  assert book_lib.Book(tmp_path, 'needle').count_left() == 1


def test_faults_are_refused_by_name():
  planted = setting_lib.Setting(dry=True, faults=('step:kill',))
  planted.check()
  assert planted.fault_of('step') == 'kill'
  assert planted.fault_of('needle') is None
  for word in 'step', 'step:explode', 'codec:kill':
    with pytest.raises(ValueError, match=f"--faults: '{word}': expected SLICE"):
      dataclasses.replace(planted, faults=(word,)).check()
  with pytest.raises(ValueError, match='only a rehearsal'):
    dataclasses.replace(planted, dry=False).check()


def kernel_row(implementation, median, width=0.1, rounds=9, **changes):
  spread = None
  if median is not None:
    spread = timing.Spread(median, median - width, median + width, rounds)
    spread = spread._asdict()
  return {
    'kernel': 'paged_decode',
    'shape': 'long',
    'implementation': implementation,
    'seconds': median,
    'operations': 100.0,
    'bytes': 10.0,
    'ceiling': 'bf16_matmul',
    'tiles': None,
    'max_error': 0.5,
    'is_peer': False,
    'spread': spread,
    'problem': None,
  } | changes


@pytest.mark.parametrize(
  ('rows', 'holds', 'fails', 'verdict'),
  [
    ('xla, int8=2 fast, int8=1', '', '', 'keep; the default is not checked'),
    ('xla=2 fast=1', 'fast xla', '', 'change to fast'),
    ('xla=2 fast=1', 'xla', 'fast', 'keep'),
    # Ranges that touch are no evidence.
    ('xla=2±1.5 fast=1', 'fast xla', '', 'keep: fast overlaps'),
    ('xla=1.2 fast=1±0.2', 'fast xla', '', 'keep: fast overlaps'),
    ('xla=2 peer cudnn=1', 'xla', '', 'keep; faster still: cudnn'),
    (
      *('xla=1 fast=2', 'fast', 'xla'),
      'change to fast; the default fails its numerics',
    ),
    (
      *('xla=odd fast=2', 'fast xla', ''),
      'change to fast; the default does not run: odd',
    ),
    (
      *('xla=1 fast=2', '', 'fast xla'),
      'keep: none was timed that holds; the default fails its numerics',
    ),
    ('xla= fast=2', 'fast', '', 'keep; the default was not timed'),
    (
      *('xla=2 fast=1×2', 'fast xla', ''),
      'keep: fast is faster, in fewer than 3 rounds',
    ),
    # Another cache is a peer.
    (
      *('peer fast, bfloat16=1 fast, int8=3 xla, int8=2', 'fast xla', ''),
      'keep; faster still: fast, bfloat16',
    ),
  ],
)
def test_a_default_changes_for_sound_and_clearly_faster(
  rows, holds, fails, verdict
):
  """A row is NAME=MEDIAN, with ± half the range, × rounds, or a problem."""
  made = []
  for peer, name, value in re.findall(r'(peer )?(\S+?(?:, \w+)?)=(\S*)', rows):
    number = re.fullmatch(r'([\d.]+)(?:±([\d.]+))?(?:×(\d+))?', value)
    median, width, rounds = number.groups() if number else (None, None, None)
    row = kernel_row(
      name,
      median and float(median),
      float(width or 0.1),
      int(rounds or 9),
      is_peer=bool(peer),
    )
    made.append(row | ({} if number else {'problem': value or None}))
  held = dict.fromkeys(holds.split(), True) | dict.fromkeys(
    fails.split(), False
  )
  ((*_, said),) = proposal.judge({'default': 'xla', 'rows': made}, held)
  assert said == verdict


def test_a_figure_that_was_taken_once_has_no_range():
  assert harness.tell(timing.spread([0.25])._asdict()) == '250 (once)'
  twice = timing.spread([0.25, 0.5])._asdict()
  assert harness.tell(twice, 1) == '0.375 (0.25–0.5)'
  assert harness.tell(None) == ''


def write(folder):
  """Writes the pages; returns {name: text}."""
  tables.write(folder)
  return {page.stem: page.read_text() for page in folder.rglob('*.md')}


RATE = {'median': 50.0, 'least': 40.0, 'most': 60.0, 'rounds': 3}
STEP = {
  'arm': 'int8',
  'model': '250m',
  'tokens': 1000,
  'seconds': RATE | {'median': 1.0},
  'operations': 25.0,
  'planned_bytes': 2**31,
  'peak_bytes': None,
}


def _books(tmp_path):
  books = {name: book_lib.Book(tmp_path, name) for name in order.SLICES}

  def end(name, case, record):
    books[name].bind(DEVICE)
    versions = {'jax': '9.9', 'date': '2030-01-01'}
    books[name].end(case, DONE, record=record, versions=versions)

  end('ceilings', 'rates', dict.fromkeys(ceilings.Ceilings._fields, RATE))
  rows = [
    kernel_row('xla, int8', 4.0),
    kernel_row('pallas_gpu, int8', 2.0),
    kernel_row('jax.nn xla', 8.0, is_peer=True),
    kernel_row('jax.nn cudnn', None, is_peer=True, problem='no cuDNN'),
  ]
  end('paged_decode', 'long', {'default': 'xla', 'rows': rows})
  for name in 'pallas_gpu', 'xla':
    variants = {'': {'error': 1e-3, 'misplaced': 0, 'different': 0.1}}
    record = {'kernel': 'paged_decode', 'implementation': name}
    record |= {'variants': variants, 'holds': True}
    end('numerics', f'paged decode, {name}, int8: long', record)
  slower = STEP | {'arm': 'bf16', 'seconds': RATE | {'median': 2.0}}
  end('step', 'bf16', slower)
  end('step', 'int8', STEP)
  books['squinch'].note_problem('ImportError: no such thing')
  books['step'].end('more', book_lib.SKIPPED, why='no time')
  return books


def test_pages_have_rates_ratios_and_what_is_missing(tmp_path):
  _books(tmp_path)
  said = tables.write(tmp_path)
  assert 'Not finished: ceilings, numerics' in said
  pages = write(tmp_path)
  kernels = pages['kernels']
  assert 'H100, cuda 12, date 2030-01-01, jax 9.9' in kernels
  # Two seconds of operations at the matmul's rate, in two seconds.
  row = '| paged_decode | long | pallas_gpu, int8 | 2e+03 (1.9e+03–2.1e+03) |'
  assert f'{row} 100% | 5.0e-01 | jax.nn xla 4.00 |' in kernels
  assert 'not timed: no cuDNN' in kernels
  assert '- the slice failed: ImportError: no such thing' in kernels
  assert '| paged_decode | xla | 1 of 1 | 1.0e-03 | 0 |' in kernels
  assert '| 250m | int8 | 1,000 |' in pages['step']
  assert '| 1,000 | 2.00 | 50.0% | 2.00 |  |' in pages['step']
  assert '- more: skipped: no time' in pages['step']
  assert 'Not measured.' in pages['decoding']
  (line,) = [x for x in pages['proposal'].splitlines() if 'long' in x]
  assert line.endswith('| xla | pallas_gpu | 2.00 | change to pallas_gpu |')
  line = '| paged_decode | paged_decode | xla | change to pallas_gpu ×1 |'
  assert line in pages['proposal']
  assert 'that have not run: all' in pages['proposal']


def test_without_a_file_pages_say_that_no_device_has_run(tmp_path):
  for page in write(tmp_path).values():
    assert 'No device has run this.' in page


def test_half_int8_is_compared_with_bf16():
  rows = [
    kernel_row('pallas_gpu', 3.0, shape='110b, all'),
    kernel_row('pallas_gpu', 2.0, shape='110b, all, int8'),
    kernel_row('cudnn', 1.0, shape='110b, all', is_peer=True),
  ]
  (table,) = tables.against_bf16([benchmark.Row(**row) for row in rows])
  *_, line = table.markdown().splitlines()
  assert line == '| paged_decode | 110b, all | pallas_gpu | 1.50 |'


def test_a_check_that_failed_does_not_hold(tmp_path):
  book = book_lib.Book(tmp_path, 'numerics')
  failed, skipped = book_lib.FAILED, book_lib.SKIPPED
  for case, status, holds in (
    ('attention, pallas_gpu, int8: windows', DONE, True),
    ('attention, pallas_gpu, int8: beams', failed, True),
    ('attention, chunked, int8: windows', DONE, True),
    ('attention, chunked, int8: trees', skipped, False),
    ('paged decode, xla: one', DONE, False),
    ('paged decode, xla: two', DONE, True),
  ):
    book.end(case, status, record={'holds': holds})
  assert proposal._held(book) == {
    ('visibility_attention', 'pallas_gpu'): False,
    ('visibility_attention', 'chunked'): True,
    ('paged_decode', 'xla'): False,
  }


def test_a_record_of_another_version_costs_its_table_alone(tmp_path):
  books = _books(tmp_path)
  books['ceilings'].cases['rates']['record'] = {'copy': 1}
  books['ceilings'].end('other', book_lib.SKIPPED, why='no time')
  books['decode'].end('a', DONE, record={'arm': 'int8'}, versions={})
  pages = write(tmp_path)
  assert "Not drawn: KeyError: 'batch'." in pages['decoding']
  assert "Not drawn: KeyError: 'bf16_matmul'." in pages['kernels']
  assert '| paged_decode | xla | 1 of 1 |' in pages['kernels']


def test_estimates_and_the_page_agree_with_the_cases():
  page = (commands.ROOT / 'docs' / 'device.md').read_text()
  with dispatch.compiling_for('gpu'):
    for name, slice_ in order.SLICES.items():
      if name == 'numerics':
        checks = numerics.cases('gpu').values()
        seconds = sum(case.check.estimate for case in checks)
      else:
        found = child.load(name).cases(setting_lib.Setting('out')).values()
        seconds = sum(estimate for estimate, _ in found)
      assert abs(seconds - slice_.seconds) <= 0.03 * seconds, name
      row = rf'(?m)^\| `{name}` \|.*\| {slice_.seconds:,} \| {slice_.most} \|$'
      assert len(re.findall(row, page)) == 1, name


@pytest.mark.parametrize('platform', ['gpu', 'tpu'])
def test_a_search_begins_with_todays_choice(platform):
  with dispatch.compiling_for(platform):
    found = autotune.cases(setting_lib.Setting('out'))
  kernels = [case.kernel for _, case in found.values()]
  assert len(set(kernels[: 3 + (platform == 'gpu')])) == 3 + (platform == 'gpu')
  for _, case in found.values():
    first = case.job.candidates[0]
    assert case.job.candidates.count(first) == 1
    if case.kernel == 'paged_decode':
      assert set(first) == set(blocks.Sizes._fields)


def rows_of(folder, slice_, page, *records):
  """Returns the records' rows in the first table of a page."""
  book = book_lib.Book(folder, slice_)
  for i, record in enumerate(records):
    book.end(f'{i}', DONE, record=record)
  lines = iter(write(folder)[page].splitlines())
  assert any(line.startswith('|---') for line in lines)
  return [next(lines) for _ in records]


def test_a_training_step(tmp_path):
  rate = {'median': 1e12, 'least': 1e12, 'most': 1e12, 'rounds': 3}
  rates = {'bf16_matmul': rate, 'int8_matmul': rate | {'median': 2e12}}
  book = book_lib.Book(tmp_path, 'ceilings')
  book.end('rates', DONE, record=rates | {'copy': rate})
  record = STEP | {
    'tokens': 8192,
    'seconds': timing.Spread(0.5, 0.25, 1.0, 9),
    'operations': 2.5e11,
    'planned_bytes': 3 * 2**30,
    'peak_bytes': 2**30,
  }
  times = '500 (250–1e+03) | 16,384 |  | 50.0%'
  assert rows_of(tmp_path, 'step', 'step', record) == [
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
  assert rows_of(tmp_path, 'decode', 'decoding', record) == [
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
  assert rows_of(tmp_path, 'autotune', 'kernels', record, first_refused) == [
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
  found = [
    types.SimpleNamespace(length=x, accuracy=y, count=z, _asdict=dict)
    for x, y, z in ((length, 0.5, 10), (length, 1.0, 30), (2 * length, 0.0, 40))
  ]
  monkeypatch.setattr(needle.grid, 'run', lambda *_, **__: None)
  monkeypatch.setattr(needle.arms.Questions, 'read', lambda *_: found)
  record = needle.measure(setting_lib.Setting(str(tmp_path)), 'kaiju')
  assert (record['accuracy'], record['questions']) == (35 / 40, 40)
  (row,) = rows_of(tmp_path, 'needle', 'decoding', record)
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
  assert rows_of(tmp_path, 'startup', 'startup', record) == [
    '| train | first start | 2 (1–3) | 6 (5–7) |'
  ]
