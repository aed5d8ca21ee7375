"""Disguises of texts, for the gate's training and for measuring what passes.

Training disguises benign texts as well as violating ones, so that a disguise
alone is no sign of a violation.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses

import numpy as np

from kaiju_jax.classifiers import rows as rows_lib

_CYRILLIC = str.maketrans('aceopxyijs', 'асеорхуіјѕ')
_DIGITS = str.maketrans('aeiost', '431057')
_ZERO_WIDTH = '\u200d'


def _full_width(text: str) -> str:
  return ''.join(chr(ord(x) + 0xFEE0) if '!' <= x <= '~' else x for x in text)


DISGUISES: Mapping[str, Callable[[str], str]] = {
  'spaced (z o r b)': ' '.join,
  'dotted (z.o.r.b)': '.'.join,
  'zero-width joiners': _ZERO_WIDTH.join,
  'full-width': _full_width,
  'upper case': str.upper,
  'struck through': lambda text: ''.join(f'{x}\u0336' for x in text),
  'Cyrillic look-alikes': lambda text: text.translate(_CYRILLIC),
  'digits (z0rb)': lambda text: text.translate(_DIGITS),
  'doubled (zzoorrbb)': lambda text: ''.join(x + x for x in text),
}


def pad(
  text: str,
  benign: Sequence[str],
  size: int,
  before: float,
  rng: np.random.Generator,
) -> str:
  """Returns a text among benign ones, of `size` characters or a little more.

  A share `before` of the padding stands before the text, 0…1.
  """

  def some(length: int) -> str:
    found, total = [], 0
    while total < length:
      found.append(benign[rng.integers(len(benign))])
      total += len(found[-1]) + 1
    return ' '.join(found)

  room = max(0, size - len(text))
  first = round(room * before)
  return ' '.join(filter(None, (some(first), text, some(room - first))))


def add_disguised(rows: rows_lib.Rows, seed: int) -> rows_lib.Rows:
  """Returns the rows, and each once more in a random disguise."""
  rng = np.random.default_rng(seed)
  disguises = list(DISGUISES.values())
  more = [
    dataclasses.replace(
      row, text=disguises[rng.integers(len(disguises))](row.text)
    )
    for row in rows.rows
  ]
  return rows_lib.Rows(rows.names, (*rows.rows, *more))


def add_padded(rows: rows_lib.Rows, size: int, seed: int) -> rows_lib.Rows:
  """Returns the rows, and each once more padded with their benign texts.

  Padded texts have random lengths, up to about `size` characters.

  Raises:
    ValueError: no text is benign.
  """
  rng = np.random.default_rng(seed)
  benign = [row.text for row in rows.rows if not any(row.labels)]
  if not benign:
    raise ValueError('there is no benign text.')
  more = []
  for row in rows.rows:
    length, before = int(rng.integers(size)), rng.random()
    text = pad(row.text, benign, length, before, rng)
    more.append(dataclasses.replace(row, text=text))
  return rows_lib.Rows(rows.names, (*rows.rows, *more))
