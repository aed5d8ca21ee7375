"""Which implementation should be each platform's default, by the evidence.

A default should change where another implementation of ours is faster in every
round than the default in any, and holds its definition on this device. This
module writes what it finds and changes nothing: `blocks.implementation` of a
kernel is where a default is chosen.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from kaiju_jax.runs import report

from . import book as book_lib
from . import tables

_KERNELS = {
  'attention': 'visibility_attention',
  'int8_matmul': 'int8_matmul',
  'paged_decode': 'paged_decode',
  'squinch': 'squinch',
}


def lines(books: Mapping[str, book_lib.Book]) -> Iterator[str]:
  """Yields the page."""
  yield '# Proposed defaults'
  yield ''
  device = next(
    (
      book.data['device']
      for book in books.values()
      if (book.data['device'] or {}).get('device')
    ),
    None,
  )
  if device is None:
    yield 'No device has run this.'
    return
  platform = device['plays'] or device['platform']
  dry = ' A REHEARSAL: nothing follows from it.' * device['dry']
  yield f'Platform {platform}, measured on {device["device"]}.{dry}'
  yield ''
  held = _held(tables.records(books['numerics']))
  found = [
    (kernel, *each)
    for slice_, kernel in _KERNELS.items()
    for record in tables.records(books[slice_]).values()
    for each in judge(
      record, {n: h for (k, n), h in held.items() if k == kernel}
    )
  ]
  columns = 'kernel', 'pass', 'shape', 'today', 'fastest that holds', 'ratio'
  yield from report.markdown((*columns, 'proposal'), found)
  yield ''
  yield (
    'Ratio: the default’s median over the fastest’s. "change" asks that the'
    ' ranges do not overlap. Where a peer is faster than all of ours, it is'
    ' named.'
  )


def _held(found: Mapping[str, Any]) -> dict[tuple[str, str], bool]:
  """Returns {(kernel, implementation): whether all of its checks hold}."""
  held: dict[tuple[str, str], bool] = {}
  for record in found.values():
    key = record['kernel'], record['implementation']
    held[key] = held.get(key, True) and record['holds']
  return held


def judge(
  record: Mapping[str, Any], held: Mapping[str, bool]
) -> Iterator[tuple[str, str, str, str, str, str]]:
  """Yields a judgement per pass of a shape.

  Args:
    record: of a kernel's benchmark: `default` and `rows`.
    held: by implementation, whether its numerics hold; one that was not
      checked is missing.
  """
  default = record['default']
  for (pass_, shape), rows in tables.group(
    record['rows'], lambda row: (row['kernel'], row['shape'])
  ):
    timed = {
      _name(row): row for row in rows if row['spread'] and not row['is_peer']
    }
    peers = [row for row in rows if row['spread'] and row['is_peer']]
    # The definition is not checked: it is what the others are held to.
    sound = {
      name: row
      for name, row in timed.items()
      if name in ('reference', default) or held.get(name)
    }
    if default not in timed:
      if timed and any(name in held for name in timed):
        yield pass_, shape, default, '', '', 'keep: the default was not timed'
      continue
    best = min(sound, key=lambda name: sound[name]['spread']['median'])
    ratio = timed[default]['seconds'] / sound[best]['seconds']
    yield (
      pass_,
      shape,
      default,
      best,
      f'{ratio:.2f}',
      _verdict(default, best, sound, held, peers),
    )


def _name(row: Mapping[str, Any]) -> str:
  """Returns the implementation of a row, without its cache's dtype."""
  return row['implementation'].partition(',')[0]


def _verdict(default, best, sound, held, peers) -> str:
  words = []
  if not held.get(default, default == 'reference'):
    reason = 'fails its numerics' if default in held else 'is not checked'
    words.append(f'the default {reason}')
  apart = sound[best]['spread']['most'] < sound[default]['spread']['least']
  if best == default:
    words.insert(0, 'keep')
  elif apart:
    words.insert(0, f'change to {best}')
  else:
    words.insert(0, f'keep: {best} overlaps')
  faster = [
    row['implementation']
    for row in peers
    if row['seconds'] < sound[best]['seconds']
  ]
  if faster:
    words.append(f'faster still: {", ".join(faster)}')
  return '; '.join(words)
