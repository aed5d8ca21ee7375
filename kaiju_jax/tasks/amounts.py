"""Says how much text a run has, and how often it reads it."""

from collections.abc import Mapping
from typing import Any

from kaiju_jax.data import loader
from kaiju_jax.data import mixture

# Epochs from which repeated text is warned of (our guess; Muennighoff et al.
# 2023 find that up to 4 are nearly as good as new text).
MANY = 4.0


def describe(
  text: Mapping[str, Mapping[str, Any]],
  source: loader.RowSource,
  rows: int,
  length: int,
) -> list[str]:
  """Returns a line per source, and a warning where one is often repeated.

  Rows that are drawn from the text, and not cut out of it, have no epochs.

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
  lines, often = [], []
  for name, (read, epoch) in parts.items():
    held = text[name].get('held_out')
    line = f'{name or "Text"}: {_count(text[name]["training"])} to train on'
    line += f', {_count(held)} held out' if held else ', none held out'
    line += f'. The run reads {read:,} rows of {length:,} tokens'
    if not getattr(source, 'has_epochs', True):
      lines.append(f'{line}, drawn from it.')
      continue
    epochs = read / epoch
    lines.append(f'{line}: {epochs:.3g} epochs.')
    if epochs > MANY:
      often.append(f'{name or "the text"} {epochs:.3g} times')
  if often:
    lines.append(
      f'Warning: the run reads {", ".join(often)}. More than about {MANY:g}'
      ' epochs teach little: add text, or train for fewer steps.'
    )
  return lines


def _count(counts: Mapping[str, Any]) -> str:
  return f'{counts["documents"]:,} documents of {counts["tokens"]:,} tokens'
