"""Prints what a fleet costs: the books, source 003's claims, incidents."""

from collections.abc import Sequence
import dataclasses
import os
from typing import Any

from kaiju_jax.fleet import book as book_lib
from kaiju_jax.fleet import claims
from kaiju_jax.fleet import economics
from kaiju_jax.fleet import incident
from kaiju_jax.model import config as model_config
from kaiju_jax.model import presets
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.reporting import figures
from kaiju_jax.reporting import report
from kaiju_jax.tpu_gpu_configs.chips import h100

PAID_SHARES = 0.005, 0.01, 0.02, 0.05, 0.1, 0.2
# Tokens of a fine-tuning: our guess.
_TUNING_SHARE = 0.001


def llama(kv_heads: int) -> model_config.ModelConfig:
  """Returns Llama 3 8B's shape in bf16, with that many heads of keys."""
  return model_config.ModelConfig(
    vocab_size=128_256,
    d_model=4096,
    num_layers=32,
    num_heads=32,
    num_kv_heads=kv_heads,
    head_dim=128,
    d_ff=14_336,
    max_length=131_072,
    period=1,
    global_share=1,
    feedforward='swiglu',
    tied_embedding=False,
    quantization=quantization_config.none(),
  )


def show_messages(book: book_lib.Book) -> list[report.Table]:
  """Returns what a message costs by this book, and what contradicts it."""
  parts = [show_book(book, book_lib.load('ours')), show_calculator(book)]
  if 'fleet' in book:
    parts += show_claims(book)
  return [*parts, *show_cost(book), show_models(book)]


def show_book(book: book_lib.Book, ours: book_lib.Book) -> report.Table:
  """Returns a book's inputs beside those of ours."""
  rows = []
  for field in dataclasses.fields(economics.Inputs):
    cell, other = book[field.name], ours[field.name]
    unit = f' {cell.unit}' if cell.unit else ''
    rows.append(
      (
        field.name,
        f'{_number(cell.value)}{unit}',
        cell.label,
        cell.where,
        f'{_number(other.value)}{unit}',
        other.label,
      )
    )
  columns = 'input', 'this book', 'label', 'from', 'ours', 'label'
  return report.Table(rows, columns, 'Inputs')


def show_calculator(book: book_lib.Book) -> report.Table:
  """Returns source 003's calculator beside ours, on this book's inputs."""
  given = book_lib.inputs(book)
  peak = given.message_rate * given.peak_to_mean
  said = book_lib.values(book)
  rate = getattr(said, 'peak_claimed', peak)
  theirs = economics.source_calculator(given, rate)
  mine = economics.cost(given)
  hourly = mine.gpus * given.gpu_price
  quoted = ('20,000', '1.00', '3,000', '6,000', '0.00003', '4,380,000', '—')
  if 'fleet' not in book:
    quoted = ('—',) * 7
  lines = (
    ('uncached requests/s', theirs.effective_rate, peak * (1 - given.hit_rate)),
    ('latency-batch factor', theirs.batch_factor, 1 / mine.load),
    ('GPUs', theirs.gpus, mine.gpus),
    ('$ per hour', theirs.hourly, hourly),
    ('$ per request', theirs.per_request, mine.gpu),
    ('$ per month', theirs.monthly, hourly * economics.HOURS_OF_MONTH),
  )
  rows = [
    (name, one, _number(theirs), _number(own))
    for (name, theirs, own), one in zip(lines, quoted)
  ]
  # The source's own word, not a figure.
  word = 'Balanced' if 'fleet' in book else '—'
  rows.append(('bottleneck', word, '—', mine.bottleneck))
  return report.Table(
    rows,
    ('line', 'quoted', 'its formula, recomputed', 'ours, recomputed'),
    f'Calculators: source 003 at {_number(rate)}/s, ours at {_number(peak)}/s',
  )


def show_claims(book: book_lib.Book) -> list[report.Table]:
  """Returns the claims of source 003, and a verdict per row."""
  found = claims.check(book)
  cells = report.Table(
    [
      (
        one.row,
        one.cell,
        _number(one.said),
        book[one.cell].label,
        _number(one.recomputed)
        + ('' if one.relation == '=' else f' (must be {one.relation})'),
        one.formula,
        f'× {_number(one.factor)}' if one.flagged else '',
      )
      for one in found
    ],
    ('row', 'cell', 'said', 'label', 'recomputed', 'by', 'flag'),
    'What source 003 says, and what follows from its other cells',
  )
  rows = [
    (
      row,
      claims.ROWS[row],
      f'{flagged} of {count}' if flagged else 'holds',
      f'× {_number(worst)}' if flagged else '',
    )
    for row, flagged, count, worst in claims.verdicts(found)
  ]
  columns = 'row', 'subject', 'flagged', 'largest factor'
  return [cells, report.Table(rows, columns, 'Verdicts')]


def show_cost(book: book_lib.Book) -> list[report.Table]:
  """Returns a message's cost by part, a user's, and margins."""
  given = book_lib.inputs(book)
  found = economics.cost(given)
  point = economics.point_of_hit_rate(given)
  rows = [
    ('prefill', f'{1000 * found.prefill_s:.2f} ms of a GPU'),
    ('decode', f'{1000 * found.decode_s:.2f} ms of a GPU'),
    ('bottleneck', found.bottleneck),
    ('load at the SLO (M/M/c)', f'{found.load:.4f}'),
    ('GPUs at the peak', _number(found.gpus)),
    ('GPU, $ per 1,000 messages', _number(1000 * found.gpu)),
    ('fixed, $ per 1,000 messages', _number(1000 * found.fixed)),
    ('training, $ per 1,000 messages', _number(1000 * found.training)),
    ('all, $ per 1,000 messages', _number(1000 * found.total)),
    ('all, $ per M tokens drawn', _number(1e6 * found.total / given.output)),
    ('active users per day', _number(given.active_users)),
    ('$ per active user and month', _number(economics.user_month(given))),
    ('$ per month of a point of hit rate', _number(point)),
    (
      'work without any hit, × now',
      _number(economics.work_ratio(given, 0.0)),
    ),
  ]
  margins = [
    (f'{100 * share:g} %', f'{100 * economics.margin(given, share):.0f} %')
    for share in PAID_SHARES
  ]
  return [
    report.Table(rows, ('line', 'recomputed'), 'A message'),
    report.Table(margins, ('users who pay', 'gross margin'), 'Margin'),
  ]


def show_models(book: book_lib.Book) -> report.Table:
  """Returns other models on H100 ceilings, and when training one's own pays.

  All have the book's hit rate, which flatters those whose keys and values fill
  more memory.
  """
  given = _served(book, presets.preset('13b'))
  rows = [
    ('13b, from scratch', _number(1000 * economics.cost(given).total), '—')
  ]
  for name, heads in (
    ('Llama 3 8B, fine-tuned, 8 heads of keys', 8),
    ('the same as MHA, which the source takes it for', 32),
  ):
    other = _served(book, llama(heads), _TUNING_SHARE)
    ends = [
      _number(
        economics.crossover(
          dataclasses.replace(given, training=training), other
        )
      )
      for training in (book['training'].low, book['training'].high)
    ]
    cost = _number(1000 * economics.cost(other).total)
    rows.append((name, cost, ' … '.join(ends)))
  large = _served(book, presets.preset('34b'))
  costs = [economics.cost(one).total for one in (given, large)]
  mixed = 0.9 * costs[0] + 0.1 * costs[1]
  rows.append(('13b, every tenth message to 34b', _number(1000 * mixed), '—'))
  return report.Table(
    rows,
    ('model', '$ per 1,000 messages', 'crossover, users per day'),
    'Models (source 003 places the crossover between 10 M and 50 M)',
  )


def _served(
  book: book_lib.Book, model: model_config.ModelConfig, trained: float = 1.0
) -> economics.Inputs:
  """Returns the book's inputs with another model on one H100."""
  rates = book_lib.rates(model, h100.CHIP)
  given = book_lib.inputs(book)
  return dataclasses.replace(
    given,
    training=given.training * trained,
    **{name: cell.value for name, cell in rates.items()},
  )


def show_tornado(bars: Sequence[book_lib.Bar]) -> report.Table:
  """Returns $ per 1,000 messages at each input's ends."""
  rows = [
    (
      bar.name,
      bar.label,
      f'{_number(bar.low)} … {_number(bar.high)}',
      f'{_number(bar.at_low)} … {_number(bar.at_high)}',
      _number(bar.swing),
    )
    for bar in bars
  ]
  columns = 'input', 'label', 'low … high', '$ per 1,000 messages', 'swing'
  return report.Table(rows, columns, 'Tornado')


def draw_tornado(
  bars: Sequence[book_lib.Bar],
  book: book_lib.Book,
  path: str | os.PathLike[str],
) -> None:
  """Writes the tornado as a PNG, the largest swing first."""
  middle = 1000 * economics.cost(book_lib.inputs(book)).total
  page = figures.figure(8, 0.3 * len(bars) + 1)
  axes = page.subplots()
  for place, bar in enumerate(reversed(bars)):
    for end, color in (
      (bar.at_low, figures.BLUE),
      (bar.at_high, figures.ORANGE),
    ):
      axes.barh(place, end - middle, left=middle, color=color)
  names = [f'{bar.name} ({bar.label})' for bar in reversed(bars)]
  figures.label_ticks(axes.yaxis, range(len(bars)), names)
  axes.axvline(middle, color=figures.INK, linewidth=0.8)
  axes.set_xlabel('$ per 1,000 messages; blue: low end, orange: high end')
  figures.save(page, path)


def show_incidents(book: book_lib.Book, detection: float) -> list[report.Table]:
  """Returns the cost of each incident over the minutes until it is noticed.

  Args:
    book: the source's, or another; the source's alone has a ledger.
    detection: minutes that are asked for.

  Raises:
    ValueError: a negative time.
  """
  times = sorted({*incident.MINUTES, detection})
  ledgers = [('queueing', incident.cost)]
  if 'row1_gross' in book:
    ledgers.insert(0, ("source's ledger", incident.source_cost))
  rows = []
  for name in incident.NAMES:
    for how, cost in ledgers:
      prices = [cost(book, time)[name] for time in times]
      rows.append((name, how, *(f'{price:,.0f}' for price in prices)))
  columns = ('incident', 'by', *(f'{time:g} min' for time in times))
  book_lib.check(incident.USERS)
  taken = [
    (name, f'{_number(cell.value)} {cell.unit}', cell.label, cell.where)
    for name, cell in incident.USERS.items()
  ]
  return [
    report.Table(rows, columns, '$ by the minutes until it is noticed'),
    report.Table(taken, ('name', 'value', 'label', 'from'), 'Users'),
  ]


def as_json(
  parts: Sequence[report.Table], book: book_lib.Book
) -> dict[str, Any]:
  """Returns all cells and tables as JSON can hold them."""
  return report.plain(
    {
      'cells': dict(book),
      **{p.title: [dict(zip(p.columns, row)) for row in p.rows] for p in parts},
    }
  )


def _number(value: float) -> str:
  """Returns three digits, in a form that people read."""
  size = abs(value)
  if value != value or size == float('inf'):
    return '∞'
  if size >= 1e15 or (size and size < 1e-3):
    return f'{value:.3g}'
  for unit, scale in (('T', 1e12), ('B', 1e9), ('M', 1e6)):
    if size >= scale:
      return f'{value / scale:.4g} {unit}'
  return f'{value:,.0f}' if size >= 1000 else f'{value:.4g}'
