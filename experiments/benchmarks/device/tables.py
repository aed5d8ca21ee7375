"""Draws what a run's files hold, as pages of Markdown.

    OUT/tables/kernels.md    numerics, kernels, block sizes
    OUT/tables/step.md       training steps
    OUT/tables/decoding.md   decoding, the needle
    OUT/tables/startup.md    start-up
    OUT/tables/proposal.md   which implementation should be the default

The first four are parts for the pages of the same names in
`experiments/results/`. Times are medians, with least and most in brackets. A
page names the cases that failed and those that were skipped.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import pathlib
from typing import Any

from kaiju_jax.reporting import report
from kaiju_jax.storage import files

from . import book as book_lib
from . import order
from . import proposal

_PAGES = {
  'kernels': ('ceilings', 'numerics', *order.KERNELS, 'autotune'),
  'step': ('step',),
  'decoding': ('decode', 'needle'),
  'startup': ('startup',),
}


def write(out: str) -> str:
  """Writes the pages; returns what to do with them, in a few lines."""
  books = {name: book_lib.Book(out, name) for name in order.SLICES}
  folder = pathlib.Path(out) / 'tables'
  files.make_folder(folder)
  for page, slices in _PAGES.items():
    text = '\n'.join(_page(page, {name: books[name] for name in slices}, books))
    files.write_text(folder / f'{page}.md', text + '\n')
  files.write_text(
    folder / 'proposal.md', '\n'.join(proposal.lines(books)) + '\n'
  )
  left = {name: book.count_left() for name, book in books.items()}
  lines = [f'Written: {folder}/{{{",".join([*_PAGES, "proposal"])}}}.md']
  open_ = [name for name, count in left.items() if count != 0]
  if open_:
    lines.append(f'Not finished: {", ".join(open_)}; the same command goes on.')
  lines.append(
    'To keep figures: copy a table into the page of its name in'
    ' experiments/results/, and tuned.json, where one was written, stays beside'
    ' its kernel.'
  )
  return '\n'.join(lines)


def tell_times(spread: Mapping[str, float] | None, unit: float = 1e3) -> str:
  """Returns a median with its range, in thousandths unless `unit` differs.

  What was taken once has no range, and says so.
  """
  if spread is None:
    return ''
  median, least, most = (
    f'{unit * spread[name]:,.3g}' for name in ('median', 'least', 'most')
  )
  around = f'{least}–{most}' if spread['rounds'] > 1 else 'once'
  return f'{median} ({around})'


def _page(page, mine, books) -> Iterator[str]:
  yield f'## On a device: {page}'
  yield ''
  yield from _device(mine)
  draw = {
    'ceilings': _ceilings,
    'numerics': _numerics,
    'autotune': _autotune,
    'step': _step,
    'decode': _decode,
    'needle': _needle,
    'startup': _startup,
  }
  for name, book in mine.items():
    found = book.records()
    yield f'### {name}: {order.SLICES[name].answers}'
    yield ''
    if not found:
      yield 'Not measured.'
    else:
      yield from _drawn(draw.get(name, _rows), found, books)
    yield ''
    yield from _missing(book)


def _drawn(draw, found, books) -> list[str]:
  """Returns a table; one line where records are not what it expects.

  A file of another version, or cut by hand, costs its own table alone.
  """
  try:
    return list(draw(found, books))
  except (KeyError, TypeError, ValueError) as error:
    return [f'Not drawn: {type(error).__name__}: {error}.']


def _device(books) -> Iterator[str]:
  """Yields the devices, versions and dates that the figures are of."""
  told = set()
  for book in books.values():
    device = book.data['device'] or {'dry': False}
    for case in book.cases.values():
      versions = case.get('versions')
      if versions is None:
        continue
      words = [f'{name} {value}' for name, value in sorted(versions.items())]
      words = [
        device[name] for name in ('device', 'driver') if device.get(name)
      ] + words
      if device['dry']:
        words.insert(0, 'A REHEARSAL, no figure to keep')
      told.add(', '.join(words))
  yield from sorted(told) or ['No device has run this.']
  yield ''
  yield 'Command: `python -m experiments.benchmarks.device`.'
  yield ''


def _missing(book) -> Iterator[str]:
  """Yields why cases have no figures."""
  lines = []
  if book.data['problem']:
    lines.append(f'- the slice failed: {book.data["problem"]}')
  for name, case in book.cases.items():
    if case['status'] == book_lib.FAILED:
      lines.append(f'- {name}: failed: {case["problem"]}')
    elif case['status'] == book_lib.SKIPPED:
      lines.append(f'- {name}: skipped: {case["why"]}')
  if lines:
    yield from [*lines, '']


def _ceilings(found, books) -> Iterator[str]:
  del books
  rates = found['rates']
  yield report.Table(
    [
      ('bf16 matmul, TFLOP/s', tell_times(rates['bf16_matmul'], 1e-12)),
      ('int8 matmul, TOP/s', tell_times(rates['int8_matmul'], 1e-12)),
      ('copy, GB/s', tell_times(rates['copy'], 1e-9)),
    ],
    ('', 'rate (least–most)'),
  ).markdown()


def _numerics(found, books) -> Iterator[str]:
  del books
  groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
  for record in found.values():
    key = record['kernel'], record['implementation']
    groups.setdefault(key, []).append(record)
  rows = []
  for (kernel, implementation), each in groups.items():
    variants = [x for record in each for x in record['variants'].values()]
    rows.append(
      (
        kernel,
        implementation,
        f'{sum(record["holds"] for record in each)} of {len(each)}',
        f'{max(x["error"] for x in variants):.1e}',
        sum(x['misplaced'] for x in variants),
      )
    )
  columns = 'kernel', 'implementation', 'checks that hold', 'largest error'
  yield report.Table(rows, (*columns, 'NaN or inf misplaced')).markdown()
  for name, record in found.items():
    if not record['holds']:
      yield f'- **does not hold**: {name}: {record["variants"]}'


def ceilings(books) -> Any:
  """Returns the measured `Ceilings`, or None."""
  from kaiju_jax.kernels import ceilings as ceilings_lib

  rates = books['ceilings'].records().get('rates')
  if rates is None:
    return None
  return ceilings_lib.Ceilings(
    **{name: each['median'] for name, each in rates.items()}
  )


def _rows(found, books) -> Iterator[str]:
  """Yields a kernel's table: every contender at every shape."""
  rates = ceilings(books)
  rows = [row for record in found.values() for row in record['rows']]
  columns = 'kernel', 'shape', 'implementation', 'ms (least–most)'
  lines = []
  for row in rows:
    lines.append(
      (
        row['kernel'],
        row['shape'],
        row['implementation'],
        tell_times(row['spread']) or f'not timed: {row["problem"]}',
        _of_ceiling(row, rates),
        '' if row['max_error'] is None else f'{float(row["max_error"]):.1e}',
        _times(row, rows),
      )
    )
  yield report.Table(
    lines, (*columns, 'of ceiling', 'max error', 'times as fast as')
  ).markdown()
  yield from _against_bf16(rows)


def _of_ceiling(row: Mapping[str, Any], rates: Any) -> str:
  from kaiju_jax.kernels import benchmark

  if rates is None or row['seconds'] is None:
    return ''
  return f'{benchmark.of_ceiling(benchmark.Row(**row), rates):.0%}'


def _times(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
  """Returns how many times as fast as its peers a row is."""
  from kaiju_jax.kernels import benchmark

  found = benchmark.times_as_fast(
    benchmark.Row(**row), [benchmark.Row(**each) for each in rows]
  )
  return ', '.join(f'{name} {ratio:.2f}' for name, ratio in found.items())


def _against_bf16(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
  """Yields half-int8 against bf16, where both shapes were timed."""
  by_key = {
    (row['kernel'], row['shape'], row['implementation']): row['seconds']
    for row in rows
    if row['seconds'] is not None and not row['is_peer']
  }
  lines = [
    (kernel, shape, name, f'{by_key[kernel, shape, name] / seconds:.2f}')
    for (kernel, coded, name), seconds in by_key.items()
    if coded.endswith(', int8')
    and (kernel, shape := coded.removesuffix(', int8'), name) in by_key
  ]
  if lines:
    columns = 'kernel', 'shape', 'implementation', 'half-int8 against bf16, ×'
    yield ''
    yield report.Table(lines, columns).markdown()


def _autotune(found, books) -> Iterator[str]:
  del books
  rows = []
  for record in found.values():
    first, best = record['first'], record['spread']
    rows.append(
      (
        record['kernel'],
        record['key'],
        tell_times(first, 1e6),
        tell_times(best, 1e6),
        '' if first is None else f'{first["median"] / best["median"]:.2f}',
        ' '.join(f'{name}={x}' for name, x in record['best'].items()),
        f'{len(record["refused"])} / {record["untried"]}'
        f' of {record["candidates"]}',
      )
    )
  columns = 'kernel', 'key', 'today, µs', 'best, µs', '×', 'blocks'
  yield report.Table(rows, (*columns, 'refused / not tried')).markdown()


def _step(found, books) -> Iterator[str]:
  rates = ceilings(books)
  by_size: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}
  for record in found.values():
    size = record['model'], record['tokens']
    by_size.setdefault(size, {})[record['arm']] = record
  rows = []
  for (model, tokens), arms in by_size.items():
    for arm, record in arms.items():
      seconds = record['seconds']['median']
      ratio = ''
      if 'bf16' in arms and arm != 'bf16':
        ratio = f'{arms["bf16"]["seconds"]["median"] / seconds:.2f}'
      mfu = ''
      if rates is not None:
        mfu = f'{record["operations"] / seconds / rates.bf16_matmul:.1%}'
      rows.append(
        (
          model,
          arm,
          f'{tokens:,}',
          tell_times(record['seconds']),
          f'{tokens / seconds:,.0f}',
          ratio,
          mfu,
          _gib(record['planned_bytes']),
          _gib(record['peak_bytes']),
        )
      )
  columns = 'model', 'arm', 'tokens', 'ms (least–most)', 'tokens/s', '× bf16'
  yield report.Table(
    rows, (*columns, 'MFU', 'planned, GiB', 'peak, GiB')
  ).markdown()


def _gib(count: int | None) -> str:
  return '' if count is None else f'{count / 2**30:.2f}'


def _decode(found, books) -> Iterator[str]:
  del books
  ordered = sorted(found.values(), key=lambda x: (x['arm'], x['batch']))
  rows = [
    (
      record['arm'],
      record['batch'],
      f'{record["length"]:,}',
      tell_times(record['prefill'], 1),
      tell_times(record['step']),
      f'{record["batch"] / record["step"]["median"]:,.0f}',
      _gib(record['cache_bytes']),
      _gib(record['peak_bytes']),
    )
    for record in ordered
  ]
  columns = 'arm', 'batch', 'behind', 'prefill, s', 'step, ms', 'tokens/s'
  yield report.Table(rows, (*columns, 'cache, GiB', 'peak, GiB')).markdown()


def _needle(found, books) -> Iterator[str]:
  del books
  rows = [
    (
      record['arm'],
      record['length'],
      f'{record["questions"]:,}',
      f'{record["accuracy"]:.2%}',
      '{low:.2%}–{high:.2%}'.format(**record['interval']),
    )
    for record in found.values()
  ]
  columns = 'arm', 'length', 'questions', 'right', '95 % interval'
  yield report.Table(rows, columns).markdown()


def _startup(found, books) -> Iterator[str]:
  del books
  rows = [
    (record['command'], start, *(tell_times(x, 1) for x in spreads))
    for record in found.values()
    for start, spreads in record['starts'].items()
  ]
  columns = 'command', 'start', 'processor, s', 'wall, s'
  yield report.Table(rows, columns).markdown()
