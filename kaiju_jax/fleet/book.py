"""Figures of three fleets, each cell with its label and its source.

    source       source 003's fleet and everything that it says of it
    post_2024    the fleet of Character.ai's post of 2024, on ceilings of A100
    ours         preset 13b on H100 ceilings, with this project's hit rate

A cell is 'quoted' (somebody published it), 'recomputed' from quoted cells, a
'ceiling' (arithmetic on a chip's file, which no device has confirmed),
'measured here', or a 'guess'. `claims.py` checks the source's cells against one
another; none of them is trusted here.
"""

from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
import math
import types
from typing import NamedTuple

from kaiju_jax.costs import accelerator
from kaiju_jax.costs import footprint
from kaiju_jax.fleet import ceilings
from kaiju_jax.fleet import economics
from kaiju_jax.fleet import queueing
from kaiju_jax.model import config as model_config
from kaiju_jax.model import presets
from kaiju_jax.tpu_gpu_configs.chips import a100
from kaiju_jax.tpu_gpu_configs.chips import h100
from kaiju_jax.tpu_gpu_configs.chips import v5e

NAMES = 'source', 'post_2024', 'ours'
LABELS = 'quoted', 'recomputed', 'ceiling', 'measured here', 'guess'
# Rows of a decoding round, unless memory holds fewer: our guess.
ROWS = 512
# Tokens of a mean prompt, at which ceilings are counted.
_PROMPT = 10_060


class Cell(NamedTuple):
  """A figure."""

  value: float
  unit: str  # '' for a ratio.
  label: str  # One of LABELS.
  where: str  # Its source, or its formula.
  low: float | None = None  # How far it may be off; None: it is not varied.
  high: float | None = None


Book = Mapping[str, Cell]


class Bar(NamedTuple):
  """What one input does to the cost."""

  name: str
  label: str
  low: float
  high: float
  at_low: float  # $ per 1,000 messages with the input at its low end.
  at_high: float

  @property
  def swing(self) -> float:
    return abs(self.at_high - self.at_low)


def load(
  name: str, changed: Iterable[str] = (), preset: str = '13b'
) -> dict[str, Cell]:
  """Returns a book.

  Args:
    name: one of `NAMES`.
    changed: cells that differ, as 'hit_rate=0.9'.
    preset: the model whose ceilings are counted.

  Raises:
    ValueError: names the cell or the book, and what would be right.
  """
  if name not in NAMES:
    raise ValueError(f'book={name!r}: must be one of {", ".join(NAMES)}.')
  make = {'source': _source, 'post_2024': _post_2024, 'ours': _ours}[name]
  found = make(presets.preset(preset))
  for text in changed:
    cell, _, value = text.partition('=')
    try:
      found = change(found, **{cell: float(value)})
    except ValueError as error:
      raise ValueError(f'set={text}: {error}') from error
  inputs(found)
  return found


def check(book: Book) -> None:
  """Refuses a book with a cell that is unlabelled, infinite or out of range.

  Raises:
    ValueError: names the cell, its value and what would be right.
  """
  for name, cell in book.items():
    if cell.label not in LABELS:
      raise ValueError(
        f'{name}: label={cell.label!r}: must be one of {", ".join(LABELS)}.'
      )
    if not cell.where:
      raise ValueError(f'{name}: where is missing; say what it comes from.')
    if not math.isfinite(cell.value):
      raise ValueError(f'{name}={cell.value}: must be finite.')
    ends = cell.low, cell.high
    if ends != (None, None) and not ends[0] <= cell.value <= ends[1]:
      raise ValueError(
        f'{name}={cell.value:g}: must lie between its low {ends[0]:g} and its'
        f' high {ends[1]:g}.'
      )


def values(book: Book) -> types.SimpleNamespace:
  """Returns the values by name."""
  return types.SimpleNamespace(**{name: c.value for name, c in book.items()})


def inputs(book: Book) -> economics.Inputs:
  """Returns the book's inputs of a message's cost.

  Raises:
    ValueError: one is missing or impossible.
  """
  check(book)
  names = [field.name for field in dataclasses.fields(economics.Inputs)]
  missing = [name for name in names if name not in book]
  if missing:
    raise ValueError(f'{", ".join(missing)}: missing from the book.')
  return economics.Inputs(**{name: book[name].value for name in names})


def change(book: Book, **changed: float) -> dict[str, Cell]:
  """Returns the book with other values of some cells, marked as guesses.

  Raises:
    ValueError: it has no such cell.
  """
  found = dict(book)
  for name, value in changed.items():
    if name not in book:
      raise ValueError(f'{name}: the book has no such cell.')
    found[name] = Cell(value, book[name].unit, 'guess', 'set by hand')
  return found


def tornado(book: Book) -> list[Bar]:
  """Returns a bar per input that has ends, the largest swing first.

  Raises:
    ValueError: the book is incomplete, or an end of a cell is impossible; the
      message names the cell.
  """
  given = inputs(book)
  bars = []
  for name in dataclasses.asdict(given):
    cell = book[name]
    if cell.low is None or cell.high is None:
      continue
    ends = []
    for value in (cell.low, cell.high):
      try:
        other = dataclasses.replace(given, **{name: value})
        ends.append(1000 * economics.cost(other).total)
      except ValueError as error:
        raise ValueError(f'{name}={value:g}: {error}') from error
    bars.append(Bar(name, cell.label, cell.low, cell.high, *ends))
  return sorted(bars, key=lambda bar: -bar.swing)


def rates(
  model: model_config.ModelConfig, chip: accelerator.Chip
) -> dict[str, Cell]:
  """Returns the ceilings of a chip that serves the model.

  Raises:
    ValueError: the chip does not hold it.
  """
  where = f'{chip.name} file × footprint; not measured'
  found = {
    'prefill_rate': ceilings.prefill_rate(model, chip, _PROMPT),
    'decode_rate': ceilings.decode_rate(model, chip, _PROMPT, ROWS),
  }
  return {
    name: Cell(rate, '/s', 'ceiling', where, 0.3 * rate, rate)
    for name, rate in found.items()
  }


def _ours(model: model_config.ModelConfig) -> dict[str, Cell]:
  where = 'results/replay.md: traffic that was made up, 1/20 of the memory'
  rate = 20e9 / 86_400 / 512
  return {
    **_TRAFFIC,
    'message_rate': Cell(rate, '/s', 'recomputed', '20 B tokens a day / 512'),
    'hit_rate': Cell(0.98, '', 'measured here', where, 0.5, 0.99),
    **rates(model, h100.CHIP),
    'gpu_price': Cell(2.5, '$/h', 'guess', 'a rented H100', 1.5, 4.0),
    'training': _training(model, h100.CHIP, 2.5),
  }


def _post_2024(model: model_config.ModelConfig) -> dict[str, Cell]:
  return {
    **_TRAFFIC,
    'message_rate': Cell(20_000, '/s', 'quoted', 'post of 2024: 20K+ QPS'),
    'hit_rate': Cell(0.95, '', 'quoted', 'post of 2024', 0.8, 0.98),
    **rates(model, a100.CHIP),
    'gpu_price': Cell(2.0, '$/h', 'quoted', '003, unit economics', 1.0, 3.0),
    'training': _training(model, a100.CHIP, 2.0),
  }


def _source(model: model_config.ModelConfig) -> dict[str, Cell]:
  """Returns source 003's inputs, what it derives from them, what we know."""
  said = {
    name: Cell(value, unit, 'quoted', f'003, {where}')
    for where, cells in _SAID.items()
    for name, (value, unit) in cells.items()
  }
  return {
    **_TRAFFIC,
    'message_rate': Cell(451, '/s', 'quoted', '003, envelope', 225, 902),
    'hit_rate': Cell(0.60, '', 'quoted', '003, envelope', 0.375, 0.95),
    'prefill_rate': Cell(200e3, '/s', 'quoted', '003, envelope', 25e3, 200e3),
    'decode_rate': Cell(5e3, '/s', 'quoted', '003, envelope', 2e3, 20e3),
    'gpu_price': Cell(2.0, '$/h', 'quoted', '003, unit economics', 1.0, 3.0),
    'training': _training(model, a100.CHIP, 2.0),
    **said,
    **_known(model),
  }


def _training(
  model: model_config.ModelConfig, chip: accelerator.Chip, price: float
) -> Cell:
  """Returns $ of training on 2 trillion tokens, at .4 of the bf16 peak."""
  operations = 6 * footprint.count(footprint.parameters(model))
  per_token = operations / (0.4 * chip.peak_bf16) / 3600 * price
  where = f'2 T tokens on {chip.name} at .4 of its bf16 peak'
  ends = 0.5e12 * per_token, 10e12 * per_token
  return Cell(2e12 * per_token, '$', 'guess', where, *ends)


def _known(model: model_config.ModelConfig) -> dict[str, Cell]:
  """Returns what claims are held against: ceilings, references, guesses."""
  served = rates(model, h100.CHIP)
  papers = [ceilings.paper_rate(model, x.CHIP) for x in (a100, h100)]
  sheet = 'data sheets; not measured'
  prefix = footprint.kv_caches(model, 6_000)[0].bytes
  kept = int(29e9 / prefix)
  random = queueing.lru_hit_rate(1_000_000, kept, 1.0)
  by_che = (
    f'Che: {kept:,} prefixes of {prefix / 2**20:.1f} MiB in 29 GB, 1 M'
    ' characters, Zipf 1.0'
  )
  int8 = v5e.CHIP.peak_int8 / v5e.CHIP.peak_bf16
  return {
    'a100_paper_rate': Cell(papers[0], '/s', 'ceiling', sheet),
    'h100_paper_rate': Cell(papers[1], '/s', 'ceiling', sheet),
    'h100_prefill_rate': served['prefill_rate'],
    'h100_decode_rate': served['decode_rate'],
    'random_hit_rate': Cell(random, '', 'recomputed', by_che),
    'prefill_service': Cell(0.2, 's', 'guess', 'a prefill of a miss'),
    'session_turns': Cell(8, '', 'guess', 'geometric'),
    'v5e_int8_ratio': Cell(int8, '', 'quoted', "v5e's file"),
    'llama_kv_heads': Cell(8, '', 'quoted', "Llama 3 8B's published config"),
    'post_year': Cell(2024, '', 'quoted', "the post's date, 2024-06-20"),
    'uptraining_share': Cell(0.05, '', 'quoted', 'arXiv:2305.13245'),
  }


# The cells that all books share.
_TRAFFIC = {
  'peak_to_mean': Cell(2.0, '', 'quoted', '003, envelope', 1.0, 3.0),
  'prefix': Cell(6_000, 'tokens', 'quoted', '003, C', 4_000, 16_000),
  'history': Cell(4_000, 'tokens', 'quoted', '003, C', 2_000, 10_000),
  'message': Cell(60, 'tokens', 'guess', 'our guess', 20, 200),
  'output': Cell(512, 'tokens', 'quoted', '003, envelope', 120, 512),
  'pooled': Cell(30, 'GPUs', 'quoted', '003, ledger row 3', 1, 100),
  'slo': Cell(2.5, 's', 'quoted', '003, SLO', 0.8, 5.0),
  'fixed': Cell(1e-4, '$', 'guess', 'our guess', 0.0, 5e-4),
  'training_days': Cell(180, 'days', 'guess', 'our guess', 90, 365),
  'user_messages': Cell(20, '/day', 'quoted', '003, unit economics', 10, 100),
  'subscription': Cell(10.0, '$', 'quoted', '003, unit economics'),
  'paid_share': Cell(0.05, '', 'guess', 'our guess', 0.01, 0.15),
}
# {part of source 003: {cell: (value, unit)}}
_SAID = {
  'envelope': {
    'tokens_per_day': (20e9, 'tokens'),
    'token_rate': (231_000, '/s'),
    'peak_rate': (902, '/s'),
    'concurrent': (50_000, 'sessions'),
    'prefill_input': (512, 'tokens'),
    'prefill_demand': (10.24e9, '/s'),
    'prefill_gpus': (51_200, 'GPUs'),
    'decode_demand': (25.6e6, '/s'),
    'decode_gpus': (5_120, 'GPUs'),
    'prefill_over_decode': (1.0, ''),
    'fleet': (3_000, 'GPUs'),
  },
  'unit economics': {
    'margin': (0.6, ''),
    'budget': (4.0, '$'),
    'month_messages': (3_000, ''),
    'message_budget': (0.0013, '$'),
    'free_ceiling': (0.001, '$'),
    'paid_ceiling': (0.003, '$'),
    'peak_claimed': (50_000, '/s'),
    'mean_claimed': (25_000, '/s'),
    'peak_cost': (0.000033, '$'),
    'mean_cost': (0.000067, '$'),
    'messages_per_request': (1_000, ''),
    'hourly': (6_000, '$'),
    'monthly': (4_380_000, '$'),
    'effective_rate': (20_000, '/s'),
  },
  'break it': {
    'lost_load_ratio': (2.5, ''),
    'lost_hit_rate': (0.0, ''),
    'edit_users': (100_000, ''),
    'rewarm': (120, 's'),
  },
  'take-away 2': {
    'loose_slo': (2.5, 's'),
    'tight_slo': (0.8, 's'),
    'slo_gain': (3.0, ''),
    'shard_gpus': (30, 'GPUs'),
  },
  'A and B': {
    'heads': (32, ''),
    'width': (4_096, ''),
    'head_dim': (128, ''),
    'context': (4_096, 'tokens'),
    'parameters': (12e9, ''),
    'kv_mha': (2**26, 'bytes'),
    'kv_mqa': (2**21, 'bytes'),
    'kv_int8': (2**20, 'bytes'),
    'kv_fleet': (3.2e12, 'bytes'),
    'hbm': (80e9, 'bytes'),
    'mha_gpus': (40, 'GPUs'),
    'mqa_gpus': (2, 'GPUs'),
    'int8_gpus': (1, 'GPUs'),
    'mqa_ratio': (32, ''),
    'int8_ratio': (64, ''),
    'conversion_share': (1.0, ''),
  },
  'ledger': {
    'row1_minutes': (15, 'min'),
    'row1_gross': (3_750, '$'),
    'row1_net': (2_250, '$'),
    'row1_churners': (2_000, 'users'),
    'row1_churn': (1_700, '$'),
    'row1_ltv': (240_000, '$'),
    'row1_total': (5_450, '$'),
    'delay_ratio': (1.8, ''),
    'delay_factor': (10 / 15, ''),
    'row2_minutes': (12, 'min'),
    'row2_refused': (0.1, ''),
    'row2_blocked': (3.6e6, ''),
    'row2_complaints': (10_800, ''),
    'row2_churners': (500, 'users'),
    'row2_total': (60_000, '$'),
    'row3_gpu': (30, '$'),
    'row3_churners': (200, 'users'),
    'row3_churn': (20_000, '$'),
    'row3_total': (20_030, '$'),
    'ltv_months': (12, 'months'),
    'complaint_share': (0.003, ''),
  },
  'lens and readings': {
    'v5e_native': (1.0, ''),
    'llama_mha': (32, ''),
    'blog_year': (2023, ''),
  },
}
