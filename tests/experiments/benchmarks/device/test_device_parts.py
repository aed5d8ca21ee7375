"""Files, budgets, pages and proposals, without a child process."""

import dataclasses
import math
import re
import time
import types

import pytest

from experiments.benchmarks.device import autotune
from experiments.benchmarks.device import book as book_lib
from experiments.benchmarks.device import child
from experiments.benchmarks.device import order
from experiments.benchmarks.device import proposal
from experiments.benchmarks.device import setting as setting_lib
from experiments.benchmarks.device import tables
from kaiju_jax.experiments.benchmarks import harness
from kaiju_jax.kernels import benchmark
from kaiju_jax.kernels import ceilings
from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels import timing
from kaiju_jax.kernels.paged_decode import blocks
from tests.device import numerics
from tests.experiments.benchmarks.device import commands

_DEVICE = {
  'device': 'H100',
  'platform': 'gpu',
  'plays': None,
  'driver': 'cuda 12',
  'dry': False,
}


def test_a_file_resumes_and_holds_nothing_but_json(tmp_path):
  book = book_lib.Book(tmp_path, 'step')
  book.bind(_DEVICE)
  book.note_cases(['a', 'b', 'c'])
  assert book.count_left() == 3
  book.begin('a')
  spread = timing.Spread(2.0, math.nan, math.inf, 3)
  book.end('a', book_lib.DONE, seconds=30, estimate=20, record={1: (spread,)})
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
  again.bind(_DEVICE)
  with pytest.raises(ValueError, match=r'figures of H100; this is H200\.'):
    again.bind(_DEVICE | {'device': 'H200'})


@pytest.mark.parametrize('text', ['{"cases": {"a"', '[]', '{"cases": null}'])
def test_a_file_that_cannot_be_read_costs_its_slice_alone(tmp_path, text):
  book = book_lib.Book(tmp_path, 'step')
  book.path.write_text(text)
  book_lib.Book(tmp_path, 'needle').note_cases(['a'])
  tables.write(tmp_path)
  page = (tmp_path / 'tables' / 'step.md').read_text()
  assert 'its file was not readable' in page
  assert book.path.with_suffix('.unreadable').read_text() == text
  again = book_lib.Book(tmp_path, 'step')
  assert again.count_left() is None and not again.cases
  assert 'step.json: ' in again.data['problem']
  assert book_lib.Book(tmp_path, 'needle').count_left() == 1


def _work(tmp_path, cases, seconds, **setting):
  setting = setting_lib.Setting(str(tmp_path), **setting)
  task = child.Task([], {'step': seconds}, seconds, setting)
  module = types.SimpleNamespace(measure=lambda _, case: {'case': case})
  book = book_lib.Book(tmp_path, 'step')
  return book, child._run_slice('step', module, cases, book, task)


def test_what_does_not_fit_is_skipped_with_a_line(
  tmp_path, capsys, monkeypatch
):
  still = types.SimpleNamespace(time=lambda: 0.0)
  monkeypatch.setattr(child, 'time', still)
  cases = [('long', (1000, 1)), ('short', (1, 2)), ('also', (1, 3))]
  book, is_over = _work(tmp_path, cases, 100)
  # A process of its own for each case of this slice.
  assert not is_over and book.cases['short']['record'] == {'case': 2}
  line = 'step: long: skipped: needs about 1000 s, 100 s are left'
  assert line in capsys.readouterr().out
  assert book.cases['long']['status'] == book_lib.SKIPPED
  # What the first cases took corrects the guess for the others.
  book.cases['short'] |= {'seconds': 300, 'estimate': 1}
  book.end('other', book_lib.FAILED, problem='x')
  book, is_over = _work(tmp_path, cases, 100)
  assert is_over
  line = 'step: also: skipped: needs about 300 s, 100 s are left'
  assert line in capsys.readouterr().out
  # With more time, a later run does them.
  book, _ = _work(tmp_path, cases[:1], 1e6)
  assert book.cases['long']['status'] == book_lib.DONE


def test_a_slice_that_cannot_be_loaded_costs_itself_alone(
  tmp_path, monkeypatch
):
  def load(name):
    if name == 'needle':
      raise ImportError('no such extra')
    return types.SimpleNamespace(
      cases=lambda setting: {'one': (1, None)}, measure=lambda *_: {'a': 1}
    )

  monkeypatch.setattr(child, 'load', load)
  monkeypatch.setattr(setting_lib, 'device', lambda setting: _DEVICE)
  names = ['needle', 'startup']
  setting = setting_lib.Setting(str(tmp_path))
  task = child.Task(
    names, dict.fromkeys(names, 100), time.time() + 100, setting
  )
  assert child.work(task) == child.DONE
  found = {name: book_lib.Book(tmp_path, name) for name in names}
  assert found['needle'].data['problem'] == 'ImportError: no such extra'
  assert found['startup'].cases['one']['record'] == {'a': 1}


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


def _row(implementation, median, width=0.1, is_peer=False, rounds=9, **changes):
  spread = None
  if median is not None:
    least, most = median - width, median + width
    spread = timing.Spread(median, least, most, rounds)._asdict()
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
    'is_peer': is_peer,
    'spread': spread,
    'problem': None,
  } | changes


@pytest.mark.parametrize(
  ('rows', 'held', 'verdict'),
  [
    ([_row('xla, int8', 2.0), _row('fast, int8', 1.0)], {}, 'keep'),
    (
      [_row('xla', 2.0), _row('fast', 1.0)],
      {'fast': True, 'xla': True},
      'change to fast',
    ),
    (
      [_row('xla', 2.0), _row('fast', 1.0)],
      {'fast': False, 'xla': True},
      'keep',
    ),
    (
      [_row('xla', 2.0, width=1.5), _row('fast', 1.0)],
      {'fast': True, 'xla': True},
      'keep: fast overlaps',
    ),
    (
      [_row('xla', 2.0), _row('cudnn', 1.0, is_peer=True)],
      {'xla': True},
      'keep; faster still: cudnn',
    ),
    (
      [_row('xla', 1.0), _row('fast', 2.0)],
      {'xla': False, 'fast': True},
      'change to fast; the default fails its numerics',
    ),
    (
      [_row('xla', None, problem='ValueError: odd'), _row('fast', 2.0)],
      {'xla': True, 'fast': True},
      'change to fast; the default does not run: ValueError: odd',
    ),
    (
      [_row('xla', 1.0), _row('fast', 2.0)],
      {'xla': False, 'fast': False},
      'keep: none was timed that holds; the default fails its numerics',
    ),
    (
      [_row('xla', None), _row('fast', 2.0)],
      {'fast': True},
      'keep; the default was not timed',
    ),
    (
      [_row('xla', 2.0), _row('fast', 1.0, rounds=2)],
      {'xla': True, 'fast': True},
      'keep: fast is faster, in fewer than 3 rounds',
    ),
    # Another cache is a peer.
    (
      [
        _row('fast, bfloat16', 1.0, is_peer=True),
        _row('fast, int8', 3.0),
        _row('xla, int8', 2.0),
      ],
      {'xla': True, 'fast': True},
      'keep; faster still: fast, bfloat16',
    ),
    # Ranges that touch are no evidence.
    (
      [_row('xla', 1.2), _row('fast', 1.0, width=0.2)],
      {'xla': True, 'fast': True},
      'keep: fast overlaps',
    ),
  ],
)
def test_a_default_changes_for_sound_and_clearly_faster(rows, held, verdict):
  (found,) = proposal.judge({'default': 'xla', 'rows': rows}, held)
  *_, said = found
  if held:
    assert said == verdict
  else:
    assert said == f'{verdict}; the default is not checked'


def test_a_figure_that_was_taken_once_has_no_range():
  assert harness.tell(timing.spread([0.25])._asdict()) == '250 (once)'
  twice = timing.spread([0.25, 0.5])._asdict()
  assert harness.tell(twice, 1) == '0.375 (0.25–0.5)'
  assert harness.tell(None) == ''


def _books(tmp_path):
  books = {name: book_lib.Book(tmp_path, name) for name in order.SLICES}

  def end(name, case, record):
    books[name].bind(_DEVICE)
    versions = {'jax': '9.9', 'date': '2030-01-01'}
    books[name].end(case, book_lib.DONE, record=record, versions=versions)

  rate = {'median': 50.0, 'least': 40.0, 'most': 60.0, 'rounds': 3}
  end('ceilings', 'rates', dict.fromkeys(ceilings.Ceilings._fields, rate))
  rows = [
    _row('xla, int8', 4.0),
    _row('pallas_gpu, int8', 2.0),
    _row('jax.nn xla', 8.0, is_peer=True),
    _row('jax.nn cudnn', None, is_peer=True, problem='no cuDNN'),
  ]
  end('paged_decode', 'long', {'default': 'xla', 'rows': rows})
  for name, holds in ('pallas_gpu', True), ('xla', True):
    variants = {'': {'error': 1e-3, 'misplaced': 0, 'different': 0.1}}
    record = {'kernel': 'paged_decode', 'implementation': name}
    record |= {'variants': variants, 'holds': holds}
    end('numerics', f'paged decode, {name}, int8: long', record)
  for arm, seconds in ('bf16', 2.0), ('int8', 1.0):
    record = {
      'arm': arm,
      'model': '250m',
      'tokens': 1000,
      'seconds': rate | {'median': seconds},
      'operations': 25.0,
      'planned_bytes': 2**31,
      'peak_bytes': None,
    }
    end('step', arm, record)
  books['squinch'].note_problem('ImportError: no such thing')
  books['step'].end('more', book_lib.SKIPPED, why='no time')
  return books


def test_pages_have_rates_ratios_and_what_is_missing(tmp_path):
  _books(tmp_path)
  said = tables.write(tmp_path)
  assert 'Not finished: ceilings, numerics' in said
  pages = {page.stem: page.read_text() for page in tmp_path.rglob('*.md')}
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
  tables.write(tmp_path)
  for page in tmp_path.rglob('*.md'):
    assert 'No device has run this.' in page.read_text()


def test_half_int8_is_compared_with_bf16():
  rows = [
    _row('pallas_gpu', 3.0, shape='110b, all'),
    _row('pallas_gpu', 2.0, shape='110b, all, int8'),
    _row('cudnn', 1.0, shape='110b, all', is_peer=True),
  ]
  (table,) = tables.against_bf16([benchmark.Row(**row) for row in rows])
  *_, line = table.markdown().splitlines()
  assert line == '| paged_decode | 110b, all | pallas_gpu | 1.50 |'


def test_a_check_that_failed_does_not_hold(tmp_path):
  book = book_lib.Book(tmp_path, 'numerics')
  for label, status, holds in (
    ('windows', book_lib.DONE, True),
    ('beams', book_lib.FAILED, None),
    ('trees', book_lib.SKIPPED, None),
  ):
    for name in 'pallas_gpu', 'chunked':
      here = book_lib.DONE if name == 'chunked' and holds is None else status
      here = status if status == book_lib.SKIPPED else here
      record = {'holds': True}
      book.end(f'attention, {name}, int8: {label}', here, record=record)
  for name, holds in ('one', False), ('two', True):
    record = {'holds': holds}
    book.end(f'paged decode, xla: {name}', book_lib.DONE, record=record)
  assert proposal._held(book) == {
    ('visibility_attention', 'pallas_gpu'): False,
    ('visibility_attention', 'chunked'): True,
    ('paged_decode', 'xla'): False,
  }


def test_a_record_of_another_version_costs_its_table_alone(tmp_path):
  books = _books(tmp_path)
  books['ceilings'].cases['rates']['record'] = {'copy': 1}
  books['ceilings'].end('other', book_lib.SKIPPED, why='no time')
  books['decode'].end('a', book_lib.DONE, record={'arm': 'int8'}, versions={})
  tables.write(tmp_path)
  decoding = (tmp_path / 'tables' / 'decoding.md').read_text()
  assert "Not drawn: KeyError: 'batch'." in decoding
  kernels = (tmp_path / 'tables' / 'kernels.md').read_text()
  assert "Not drawn: KeyError: 'bf16_matmul'." in kernels
  assert '| paged_decode | xla | 1 of 1 |' in kernels


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
