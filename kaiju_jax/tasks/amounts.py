"""Says how much text a run has, and how often it reads it."""

from collections.abc import Mapping
from typing import Any

from kaiju_jax.data import loader
from kaiju_jax.data import mixture

# Epochs from which repeated text is warned of (our guess; Muennighoff et al.
# 2023 find that up to 4 are nearly as good as new text).
MANY = 4.0


def count(
  text: Mapping[str, Mapping[str, Any]],
  source: loader.RowSource,
  rows: int,
  length: int,
) -> dict[str, dict[str, Any]]:
  """Returns {source: its amounts}, as JSON can hold them.

  Documents and tokens to train on, and those `held_out` (None for none); the
  `rows` that the run reads, their `row_tokens`, and its `epochs`: None where
  rows are drawn from the text, and not cut out of it.

  Args:
    text: {source: `same_text.describe`}.
    source: the training rows that are made of the text: a `mixture.Mixture` of
      its sources, or those of the one source.
    rows: rows that the whole run reads.
    length: L, tokens per row.
  """
  parts = {'': (rows, len(source))}
  if isinstance(source, mixture.Mixture):
    counts = source.counts(rows).tolist()
    parts = {
      part.name: (count, len(part.rows))
      for part, count in zip(source.parts, counts, strict=True)
    }
  has_epochs = getattr(source, 'has_epochs', True)
  return {
    name: {
      **_sizes(text[name]['training']),
      'held_out': _sizes(text[name].get('held_out')),
      'rows': read,
      'row_tokens': read * length,
      'epochs': read / epoch if has_epochs else None,
    }
    for name, (read, epoch) in parts.items()
  }


def describe(counted: Mapping[str, Mapping[str, Any]]) -> list[str]:
  """Returns a line per source of `count`, and a warning of many epochs."""
  lines, often = [], []
  for name, one in counted.items():
    held, epochs = one['held_out'], one['epochs']
    line = f'{name or "Text"}: {_words(one)} to train on'
    line += f', {_words(held)} held out' if held else ', none held out'
    length = one['row_tokens'] // one['rows'] if one['rows'] else 0
    line += f'. The run reads {one["rows"]:,} rows of {length:,} tokens'
    if epochs is None:
      lines.append(f'{line}, drawn from it.')
      continue
    lines.append(f'{line}: {epochs:.3g} epochs.')
    if epochs > MANY:
      often.append(f'{name or "the text"} {epochs:.3g} times')
  if often:
    lines.append(
      f'Warning: the run reads {", ".join(often)}. More than about {MANY:g}'
      ' epochs teach little: add text, or train for fewer steps.'
    )
  return lines


def _sizes(counts: Mapping[str, Any] | None) -> dict[str, int] | None:
  return counts and {name: counts[name] for name in ('documents', 'tokens')}


def _words(counts: Mapping[str, Any]) -> str:
  return f'{counts["documents"]:,} documents of {counts["tokens"]:,} tokens'
