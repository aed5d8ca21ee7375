"""Which implementation should be each platform's default, by the evidence.

A default should change where another implementation of ours is faster in every
round than the default in any, and holds its definition on this device; and
where it fails on this device while another holds. This
module writes what it finds and changes nothing: `blocks.implementation` of a
kernel is where a default is chosen.
"""

import collections
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import itertools
from typing import Any

from kaiju_jax.reporting import report

from . import book as book_lib
from . import order

# Fewer say nothing of a range.
_ROUNDS = 3
# What the names of the checks of numerics begin with.
_SUBJECTS = {
  'attention': 'visibility_attention',
  'int8 product': 'int8_matmul',
  'paged decode': 'paged_decode',
  'squinch encode': 'squinch',
  'squinch decode': 'squinch',
}


def page(books: Mapping[str, book_lib.Book]) -> report.Report:
  """Returns the page."""
  found = report.Report('Proposed defaults')
  devices = [book.data['device'] or {} for book in books.values()]
  device = next((x for x in devices if x.get('device')), None)
  if device is None:
    found.say('No device has run this.')
    return found
  platform = device['plays'] or device['platform']
  dry = ' A REHEARSAL: nothing follows from it.' * device['dry']
  found.say(f'Platform {platform}, measured on {device["device"]}.{dry}')
  held = _held(books['numerics'])
  unchecked = books['numerics'].count_left()
  if unchecked != 0:
    found.say(f'Checks of numerics that have not run: {unchecked or "all"}.')
  rows = [
    (kernel, *each)
    for slice_, (kernel, _) in order.KERNELS.items()
    for record in books[slice_].records().values()
    for each in judge(
      record, {n: h for (k, n), h in held.items() if k == kernel}
    )
  ]
  found.table(_sums(rows), ('kernel', 'pass', 'today', 'proposals, by shapes'))
  columns = 'kernel', 'pass', 'shape', 'today', 'fastest that holds', 'ratio'
  found.table(rows, (*columns, 'proposal'))
  found.say(
    'Ratio: the default’s median over the fastest’s. "change" asks that the'
    ' ranges do not overlap, or that the default fails here. Where a peer is'
    ' faster than all of ours, it is named.'
  )
  return found


def parse_check(name: str) -> tuple[str, str]:
  """Returns the kernel and the implementation of a check of numerics.

  Args:
    name: the case's, such as 'attention, pallas_gpu, int8: windows'.
  """
  subject, implementation = name.replace(':', ',').split(', ')[:2]
  return _SUBJECTS[subject], implementation


def _held(book: book_lib.Book) -> dict[tuple[str, str], bool]:
  """Returns {(kernel, implementation): whether all of its checks hold}.

  One that failed, by an exception or with its process, does not hold.
  """
  held: dict[tuple[str, str], bool] = {}
  for name, case in book.cases.items():
    if case['status'] != book_lib.SKIPPED:
      key = parse_check(name)
      holds = case['status'] == book_lib.DONE and case['record']['holds']
      held[key] = held.get(key, True) and holds
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
  for (pass_, shape), rows in _group(
    record['rows'], lambda row: (row['kernel'], row['shape'])
  ):
    ours = {_name(row): row for row in reversed(rows) if not row['is_peer']}
    timed = {name: row for name, row in ours.items() if row['spread']}
    if not any(name in (default, *held) for name in ours):
      continue  # A part that has one implementation.
    # The definition is not checked: it is what the others are held to.
    sound = {
      name: row
      for name, row in timed.items()
      if name == 'reference' or held.get(name, name == default)
    }
    best = min(
      sound, key=lambda name: sound[name]['spread']['median'], default=None
    )
    ratio = ''
    if best and default in timed:
      ratio = f'{timed[default]["seconds"] / sound[best]["seconds"]:.2f}'
    peers = [row for row in rows if row['spread'] and row['is_peer']]
    fault = _fault(default, ours.get(default), held)
    verdict = _verdict(default, best, fault, sound, peers)
    yield pass_, shape, default, best or '', ratio, verdict


def _name(row: Mapping[str, Any]) -> str:
  """Returns the implementation of a row, without its cache's dtype."""
  return row['implementation'].partition(',')[0]


def _fault(default, row, held) -> str:
  """Returns what is wrong with a default; nothing is an empty text."""
  if row and row['problem']:
    return f'the default does not run: {row["problem"]}'
  if not row or not row['spread']:
    return 'the default was not timed'
  if held.get(default, default == 'reference'):
    return ''
  reason = 'fails its numerics' if default in held else 'is not checked'
  return f'the default {reason}'


def _verdict(default, best, fault, sound, peers) -> str:
  words = [fault] * bool(fault)
  if best is None:
    words.insert(0, 'keep: none was timed that holds')
  elif best == default:
    words.insert(0, 'keep')
  elif default not in sound and 'was not timed' not in fault:
    words.insert(0, f'change to {best}')
  elif default not in sound:
    words.insert(0, 'keep')
  elif min(sound[x]['spread']['rounds'] for x in (best, default)) < _ROUNDS:
    words.insert(0, f'keep: {best} is faster, in fewer than {_ROUNDS} rounds')
  elif sound[best]['spread']['most'] < sound[default]['spread']['least']:
    words.insert(0, f'change to {best}')
  else:
    words.insert(0, f'keep: {best} overlaps')
  faster = [
    row['implementation']
    for row in peers
    if best and row['seconds'] < sound[best]['seconds']
  ]
  if faster:
    words.append(f'faster still: {", ".join(faster)}')
  return '; '.join(words)


def _sums(found) -> Iterator[tuple[str, str, str, str]]:
  """Yields a line per kernel, pass and default: how many shapes say what."""
  for key, each in _group(found, lambda x: (x[0], x[1], x[3])):
    said = collections.Counter(x[-1].partition(';')[0] for x in each)
    yield *key, ', '.join(f'{word} ×{n}' for word, n in said.most_common())


def _group(rows: Sequence[Any], key: Any) -> Iterator[tuple[Any, list[Any]]]:
  """Yields (key, rows) of all rows, sorted by the key."""
  for value, each in itertools.groupby(sorted(rows, key=key), key):
    yield value, list(each)
