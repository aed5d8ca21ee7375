"""Holds the figures of three fleets, each cell with its label and its source.

    source       source 003's fleet and everything that it says of it
    post_2024    the fleet of Character.ai's post of 2024, on ceilings of A100
    ours         preset 13b on H100 ceilings, with this project's hit rate

A cell is 'quoted' (somebody published it), 'recomputed' from quoted cells, a
'ceiling' (arithmetic on a chip's file, which no device has confirmed),
'measured here', or a 'guess'. `claims.py` checks the source's cells against one
another; none of them is trusted here.
"""

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

NAMES = 'source', 'post_2024', 'ours'
LABELS = 'quoted', 'recomputed', 'ceiling', 'measured here', 'guess'
# Rows of a decoding round, unless memory holds fewer: our guess.
ROWS = 512
# Tokens of a mean prompt, at which ceilings are counted.
_PROMPT = 10_060


class Cell(NamedTuple):
  """A figure.

  Attributes:
    value: the figure.
    unit: its unit, '' for a ratio.
    label: one of LABELS.
    where: its source, or its formula.
    low, high: how far it may be off; None where it is not varied.
  """

  value: float
  unit: str
  label: str
  where: str
  low: float | None = None
  high: float | None = None


Book = Mapping[str, Cell]


class Chips(NamedTuple):
  """The chips that the books count with; `tpu_gpu_configs` has their files."""

  a100: accelerator.Chip
  h100: accelerator.Chip
  v5e: accelerator.Chip


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


def ours(model: model_config.ModelConfig, chips: Chips) -> dict[str, Cell]:
  """Returns our own book: a model of ours on one H100 per replica."""
  return {
    **_traffic(),
    'message_rate': Cell(
      20e9 / 86_400 / 512, '/s', 'recomputed', '20 B tokens a day / 512'
    ),
    'hit_rate': Cell(
      0.98,
      '',
      'measured here',
      'results/replay.md: traffic that was made up, 1/20 of the memory',
      0.5,
      0.99,
    ),
    **rates(model, chips.h100),
    'gpu_price': Cell(2.5, '$/h', 'guess', 'a rented H100', 1.5, 4.0),
    **_training(model, chips.h100, 2.5),
  }


def post_2024(model: model_config.ModelConfig, chips: Chips) -> dict[str, Cell]:
  """Returns the book of the post of 2024: its rate and its hit rate."""
  return {
    **_traffic(),
    'message_rate': Cell(20_000, '/s', 'quoted', 'post of 2024: 20K+ QPS'),
    'hit_rate': Cell(0.95, '', 'quoted', 'post of 2024', 0.8, 0.98),
    **rates(model, chips.a100),
    'gpu_price': Cell(2.0, '$/h', 'quoted', '003, unit economics', 1.0, 3.0),
    **_training(model, chips.a100, 2.0),
  }


def source(model: model_config.ModelConfig, chips: Chips) -> dict[str, Cell]:
  """Returns source 003's book: its inputs, what it derives, what we know."""
  said = {
    name: Cell(value, unit, 'quoted', f'003, {where}')
    for where, cells in _SAID.items()
    for name, (value, unit) in cells.items()
  }
  return {
    **_traffic(),
    'message_rate': Cell(451, '/s', 'quoted', '003, envelope', 225, 902),
    'hit_rate': Cell(0.60, '', 'quoted', '003, envelope', 0.375, 0.95),
    'prefill_rate': Cell(200e3, '/s', 'quoted', '003, envelope', 25e3, 200e3),
    'decode_rate': Cell(5e3, '/s', 'quoted', '003, envelope', 2e3, 20e3),
    'gpu_price': Cell(2.0, '$/h', 'quoted', '003, unit economics', 1.0, 3.0),
    **_training(model, chips.a100, 2.0),
    **said,
    **_known(model, chips),
  }


def _traffic() -> dict[str, Cell]:
  """Returns the cells that all books share."""
  guess = 'our guess'
  return {
    'peak_to_mean': Cell(2.0, '', 'quoted', '003, envelope', 1.0, 3.0),
    'prefix': Cell(6_000, 'tokens', 'quoted', '003, C', 4_000, 16_000),
    'history': Cell(4_000, 'tokens', 'quoted', '003, C', 2_000, 10_000),
    'message': Cell(60, 'tokens', 'guess', guess, 20, 200),
    'output': Cell(512, 'tokens', 'quoted', '003, envelope', 120, 512),
    'pooled': Cell(30, 'GPUs', 'quoted', '003, ledger row 3', 1, 100),
    'slo': Cell(2.5, 's', 'quoted', '003, SLO', 0.8, 5.0),
    'fixed': Cell(1e-4, '$', 'guess', guess, 0.0, 5e-4),
    'training_days': Cell(180, 'days', 'guess', guess, 90, 365),
    'user_messages': Cell(20, '/day', 'quoted', '003, unit economics', 10, 100),
    'subscription': Cell(10.0, '$', 'quoted', '003, unit economics'),
    'paid_share': Cell(0.05, '', 'guess', guess, 0.01, 0.15),
  }


def rates(
  model: model_config.ModelConfig, chip: accelerator.Chip
) -> dict[str, Cell]:
  """Returns the ceilings of a chip that serves the model.

  Raises:
    ValueError: the chip does not hold it.
  """
  prefill = ceilings.prefill_rate(model, chip, _PROMPT)
  decode = ceilings.decode_rate(model, chip, _PROMPT, ROWS)
  where = f'{chip.name} file × footprint; not measured'
  return {
    'prefill_rate': Cell(
      prefill, '/s', 'ceiling', where, 0.3 * prefill, prefill
    ),
    'decode_rate': Cell(decode, '/s', 'ceiling', where, 0.3 * decode, decode),
  }


def _training(
  model: model_config.ModelConfig, chip: accelerator.Chip, price: float
) -> dict[str, Cell]:
  """Returns $ of training on 2 trillion tokens, at .4 of the bf16 peak."""
  operations = 6 * footprint.count(footprint.parameters(model))
  per_token = operations / (0.4 * chip.peak_bf16) / 3600 * price
  return {
    'training': Cell(
      2e12 * per_token,
      '$',
      'guess',
      f'2 T tokens on {chip.name} at .4 of its bf16 peak',
      0.5e12 * per_token,
      10e12 * per_token,
    )
  }


def _known(model: model_config.ModelConfig, chips: Chips) -> dict[str, Cell]:
  """Returns what claims are held against: ceilings, references, guesses."""
  sheet = 'data sheets; not measured'
  prefix = footprint.kv_caches(model, 6_000)[0].bytes
  kept = int(29e9 / prefix)
  return {
    'a100_paper_rate': Cell(
      ceilings.paper_rate(model, chips.a100), '/s', 'ceiling', sheet
    ),
    'h100_paper_rate': Cell(
      ceilings.paper_rate(model, chips.h100), '/s', 'ceiling', sheet
    ),
    'h100_prefill_rate': rates(model, chips.h100)['prefill_rate'],
    'h100_decode_rate': rates(model, chips.h100)['decode_rate'],
    'random_hit_rate': Cell(
      queueing.lru_hit_rate(1_000_000, kept, 1.0),
      '',
      'recomputed',
      f'Che: {kept:,} prefixes of {prefix / 2**20:.1f} MiB in 29 GB, 1 M'
      ' characters, Zipf 1.0',
    ),
    'prefill_service': Cell(0.2, 's', 'guess', 'a prefill of a miss'),
    'session_turns': Cell(8, '', 'guess', 'geometric'),
    'v5e_int8_ratio': Cell(
      chips.v5e.peak_int8 / chips.v5e.peak_bf16, '', 'quoted', "v5e's file"
    ),
    'llama_kv_heads': Cell(8, '', 'quoted', "Llama 3 8B's published config"),
    'post_year': Cell(2024, '', 'quoted', "the post's date, 2024-06-20"),
    'uptraining_share': Cell(0.05, '', 'quoted', 'arXiv:2305.13245'),
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
