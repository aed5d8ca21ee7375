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

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import pathlib
from typing import Any

from kaiju_jax.experiments.benchmarks import harness
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
Books = Mapping[str, book_lib.Book]
Records = Mapping[str, Mapping[str, Any]]
Parts = Iterator[report.Table | str]


def write(out: str) -> str:
  """Writes the pages; returns what to do with them, in a few lines."""
  books = {name: book_lib.Book(out, name) for name in order.SLICES}
  folder = pathlib.Path(out) / 'tables'
  files.make_folder(folder)
  pages = {name: _page(name, books) for name in _PAGES}
  for name, page in (pages | {'proposal': proposal.page(books)}).items():
    files.write_text(folder / f'{name}.md', f'{page.markdown()}\n')
  lines = [f'Written: {folder}/{{{",".join([*_PAGES, "proposal"])}}}.md']
  left = [name for name, book in books.items() if book.count_left() != 0]
  if left:
    lines.append(f'Not finished: {", ".join(left)}; the same command goes on.')
  lines.append(
    'To keep figures: copy a table into the page of its name in'
    ' experiments/results/, and tuned.json, where one was written, stays beside'
    ' its kernel.'
  )
  return '\n'.join(lines)


def _page(name: str, books: Books) -> report.Report:
  page = report.Report()
  page.say(f'## On a device: {name}')
  page.say(*(_devices(books[x] for x in _PAGES[name])))
  page.say('Command: `python -m experiments.benchmarks.device`.')
  for slice_ in _PAGES[name]:
    page.say(f'### {slice_}: {order.SLICES[slice_].answers}')
    page.add(*_drawn(_DRAW.get(slice_, _kernel), books[slice_], books))
    page.say(*_missing(books[slice_]))
  return page


def _drawn(draw: Callable, book: book_lib.Book, books: Books) -> list:
  """Returns tables; one line where records are not what it expects.

  A file of another version, or cut by hand, costs its own table alone.
  """
  found = book.records()
  try:
    return list(draw(found, books)) if found else ['Not measured.']
  except (KeyError, TypeError, ValueError) as error:
    return [f'Not drawn: {type(error).__name__}: {error}.']


def _devices(books: Iterable[book_lib.Book]) -> list[str]:
  """Returns the devices, versions and dates that the figures are of."""
  found = set()
  for book in books:
    device = book.data['device'] or {'dry': False}
    for case in book.cases.values():
      if (versions := case.get('versions')) is not None:
        words = ['A REHEARSAL, no figure to keep'] * device['dry']
        words += [x for x in map(device.get, ('device', 'driver')) if x]
        words += [f'{name} {x}' for name, x in sorted(versions.items())]
        found.add(', '.join(words))
  return sorted(found) or ['No device has run this.']


def _missing(book: book_lib.Book) -> Iterator[str]:
  """Yields why cases have no figures."""
  if book.data['problem']:
    yield f'- the slice failed: {book.data["problem"]}'
  for name, case in book.cases.items():
    if case['status'] == book_lib.FAILED:
      yield f'- {name}: failed: {case["problem"]}'
    elif case['status'] == book_lib.SKIPPED:
      yield f'- {name}: skipped: {case["why"]}'


def _table(records: Iterable[Any], columns: Mapping[str, Any]) -> report.Table:
  """Returns a row per record; a column is a field's name, or a function."""
  cells = [
    lambda x, of=of: x[of] if isinstance(of, str) else of(x)
    for of in columns.values()
  ]
  return report.Table(
    [[cell(x) for cell in cells] for x in records], [*columns]
  )


def _spread(field: str, unit: float = 1e3) -> Callable[[Any], str]:
  return lambda record: harness.tell(record[field], unit)


def _gib(field: str) -> Callable[[Any], str]:
  return lambda x: '' if x[field] is None else f'{x[field] / 2**30:.2f}'


def _ceilings(found: Records, books: Books) -> Parts:
  del books
  rates = found['rates']
  rows = (
    ('bf16 matmul, TFLOP/s', harness.tell(rates['bf16_matmul'], 1e-12)),
    ('int8 matmul, TOP/s', harness.tell(rates['int8_matmul'], 1e-12)),
    ('copy, GB/s', harness.tell(rates['copy'], 1e-9)),
  )
  yield report.Table(rows, ('', 'rate (least–most)'))


def _numerics(found: Records, books: Books) -> Parts:
  del books
  groups: dict[tuple[str, str], list[Any]] = {}
  for record in found.values():
    key = record['kernel'], record['implementation']
    groups.setdefault(key, []).append(record)

  def of_all(group, field):
    return [x[field] for one in group[1] for x in one['variants'].values()]

  yield _table(
    groups.items(),
    {
      'kernel': lambda x: x[0][0],
      'implementation': lambda x: x[0][1],
      'checks that hold': lambda x: (
        f'{sum(one["holds"] for one in x[1])} of {len(x[1])}'
      ),
      'largest error': lambda x: f'{max(of_all(x, "error")):.1e}',
      'NaN or inf misplaced': lambda x: sum(of_all(x, 'misplaced')),
    },
  )
  for name, record in found.items():
    if not record['holds']:
      yield f'- **does not hold**: {name}: {record["variants"]}'


def ceilings(books: Books) -> Any:
  """Returns the measured `Ceilings`, or None."""
  from kaiju_jax.kernels import ceilings as ceilings_lib

  rates = books['ceilings'].records().get('rates')
  if rates is None:
    return None
  return ceilings_lib.Ceilings(
    **{name: each['median'] for name, each in rates.items()}
  )


def _kernel(found: Records, books: Books) -> Parts:
  """Yields a kernel's table: every contender at every shape."""
  from kaiju_jax.kernels import benchmark

  rates = ceilings(books)
  rows = [
    benchmark.Row(**row) for record in found.values() for row in record['rows']
  ]
  cells = [(*row[:3], *harness.row_cells(row, rows, rates)) for row in rows]
  columns = 'kernel', 'shape', 'implementation', *harness.ROW_COLUMNS
  yield report.Table(cells, columns)
  yield from against_bf16(rows)


def against_bf16(rows: Sequence[Any]) -> Parts:
  """Yields half-int8 against bf16, where both shapes were timed."""
  by_key = {
    row[:3]: row.seconds
    for row in rows
    if row.seconds is not None and not row.is_peer
  }
  lines = [
    (kernel, shape, name, f'{by_key[kernel, shape, name] / seconds:.2f}')
    for (kernel, coded, name), seconds in by_key.items()
    if coded.endswith(', int8')
    and (kernel, shape := coded.removesuffix(', int8'), name) in by_key
  ]
  if lines:
    columns = 'kernel', 'shape', 'implementation', 'half-int8 against bf16, ×'
    yield report.Table(lines, columns)


def _autotune(found: Records, books: Books) -> Parts:
  del books

  def gain(x):
    first = x['first']
    return first and f'{first["median"] / x["spread"]["median"]:.2f}'

  def count(x):
    return f'{len(x["refused"])} / {x["untried"]} of {x["candidates"]}'

  yield _table(
    found.values(),
    {
      'kernel': 'kernel',
      'key': 'key',
      'today, µs': _spread('first', 1e6),
      'best, µs': _spread('spread', 1e6),
      '×': lambda x: gain(x) or '',
      'blocks': lambda x: ' '.join(f'{k}={v}' for k, v in x['best'].items()),
      'refused / not tried': count,
    },
  )


def _step(found: Records, books: Books) -> Parts:
  rates = ceilings(books)
  of_bf16 = {
    (x['model'], x['tokens']): x['seconds']['median']
    for x in found.values()
    if x['arm'] == 'bf16'
  }

  def ratio(x):
    theirs = of_bf16.get((x['model'], x['tokens']))
    if theirs is None or x['arm'] == 'bf16':
      return ''
    return f'{theirs / x["seconds"]["median"]:.2f}'

  def mfu(x):
    if rates is None:
      return ''
    rate = x['operations'] / x['seconds']['median']
    return f'{rate / rates.bf16_matmul:.1%}'

  yield _table(
    sorted(found.values(), key=lambda x: (x['model'], x['tokens'])),
    {
      'model': 'model',
      'arm': 'arm',
      'tokens': lambda x: f'{x["tokens"]:,}',
      'ms (least–most)': _spread('seconds'),
      'tokens/s': lambda x: f'{x["tokens"] / x["seconds"]["median"]:,.0f}',
      '× bf16': ratio,
      'MFU': mfu,
      'planned, GiB': _gib('planned_bytes'),
      'peak, GiB': _gib('peak_bytes'),
    },
  )


def _decode(found: Records, books: Books) -> Parts:
  del books
  yield _table(
    sorted(found.values(), key=lambda x: (x['arm'], x['batch'])),
    {
      'arm': 'arm',
      'batch': 'batch',
      'behind': lambda x: f'{x["length"]:,}',
      'prefill, s': _spread('prefill', 1),
      'step, ms': _spread('step'),
      'tokens/s': lambda x: f'{x["batch"] / x["step"]["median"]:,.0f}',
      'cache, GiB': _gib('cache_bytes'),
      'peak, GiB': _gib('peak_bytes'),
    },
  )


def _needle(found: Records, books: Books) -> Parts:
  del books
  yield _table(
    found.values(),
    {
      'arm': 'arm',
      'length': 'length',
      'questions': lambda x: f'{x["questions"]:,}',
      'right': lambda x: f'{x["accuracy"]:.2%}',
      '95 % interval': lambda x: '{low:.2%}–{high:.2%}'.format(**x['interval']),
    },
  )


def _startup(found: Records, books: Books) -> Parts:
  del books
  rows = [
    (record['command'], start, *(harness.tell(x, 1) for x in spreads))
    for record in found.values()
    for start, spreads in record['starts'].items()
  ]
  yield report.Table(rows, ('command', 'start', 'processor, s', 'wall, s'))


_DRAW = {
  'ceilings': _ceilings,
  'numerics': _numerics,
  'autotune': _autotune,
  'step': _step,
  'decode': _decode,
  'needle': _needle,
  'startup': _startup,
}
