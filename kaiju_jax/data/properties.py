"""Labels each byte of text with harmless properties of characters.

A token-level head can be taught and tested on these labels, which need no
annotators. Each property describes the text up to and including a byte:

    digit        the byte is a digit
    word         the byte stands in a word (a letter, a digit or '_')
    capitalized  the word that the byte stands in begins with a capital letter
    bracketed    a bracket is open that was opened in the same line

The last two depend on the text before the byte, so that a single character does
not decide them. Where a row begins in the middle of a word or a line, the label
is unknown and has weight 0. Tokens must be bytes.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np

from kaiju_jax.data import loader
from kaiju_jax.data import packing

_DIGITS = np.frombuffer(b'0123456789', np.uint8)
_CAPITALS = np.arange(ord('A'), ord('Z') + 1)
_LETTERS = np.concatenate([_CAPITALS, _CAPITALS + 32])
_WORD = np.concatenate([_LETTERS, _DIGITS, [ord('_')]])
_OPENING = np.frombuffer(b'([{', np.uint8)
_CLOSING = np.frombuffer(b')]}', np.uint8)
_BOS = 0


def _digit(bytes_L: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  return np.isin(bytes_L, _DIGITS), np.ones(len(bytes_L), bool)


def _word(bytes_L: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  return np.isin(bytes_L, _WORD), np.ones(len(bytes_L), bool)


def _label_capitalized(bytes_L: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  is_word_L = np.isin(bytes_L, _WORD)
  first_L = _latest_place(~is_word_L) + 1
  inside_L = np.minimum(first_L, len(bytes_L) - 1)
  is_known_L = (first_L > 0) | ~is_word_L
  return is_word_L & np.isin(bytes_L[inside_L], _CAPITALS), is_known_L


def _label_bracketed(bytes_L: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  change_L = np.isin(bytes_L, _OPENING).astype(int)
  change_L -= np.isin(bytes_L, _CLOSING)
  depth_L = np.cumsum(change_L)
  begin_L = _latest_place(np.isin(bytes_L, (ord('\n'), _BOS)))
  before_L = np.where(begin_L < 0, 0, depth_L[begin_L])
  return depth_L > before_L, begin_L >= 0


def _latest_place(is_place_L: np.ndarray) -> np.ndarray:
  """Returns the latest place up to each byte; -1 where there is none yet."""
  places_L = np.where(is_place_L, np.arange(len(is_place_L)), -1)
  return np.maximum.accumulate(places_L)


PROPERTIES: Mapping[
  str, Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
] = {
  'digit': _digit,
  'word': _word,
  'capitalized': _label_capitalized,
  'bracketed': _label_bracketed,
}


def check(names: Sequence[str]) -> None:
  """Refuses properties that do not exist (ValueError)."""
  for name in names:
    if name not in PROPERTIES:
      raise ValueError(
        f'objective.token_head.names: {name!r} must be one of'
        f' {", ".join(map(repr, PROPERTIES))}.'
      )


class LabelledRows(loader.RowSource):
  """A row source whose rows carry labels of their own bytes.

  A row's extras are `label_BLC` and `weight_BLC`, float32 [L, C]. A document's
  first token (BOS) and padding have weight 0.

  Args:
    rows: the source of unlabelled rows: byte tokens, linear documents.
    names: the names of C properties in `PROPERTIES`, in the order of C.
  """

  def __init__(self, rows: loader.RowSource, names: Sequence[str]):
    check(names)
    self._rows = rows
    self._names = tuple(names)

  def __len__(self) -> int:
    return len(self._rows)

  def __getitem__(self, index: int) -> packing.Row:
    row = self._rows[index]
    return row._replace(extras=labels(row, self._names))

  def locate(self, index: int) -> list[packing.Origin]:
    """Returns what stands in row `index`, in its order."""
    return self._rows.locate(index)


def labels(row: packing.Row, names: Sequence[str]) -> dict[str, np.ndarray]:
  """Returns a row's extras; each document is labelled by itself."""
  label_LC = np.zeros((len(row.tokens), len(names)), np.float32)
  weight_LC = np.zeros_like(label_LC)
  for source in np.unique(row.source[row.source >= 0]):
    places = np.flatnonzero(row.source == source)
    is_text_L = row.tokens[places] != _BOS
    for index, name in enumerate(names):
      holds_L, is_known_L = PROPERTIES[name](row.tokens[places])
      label_LC[places, index] = holds_L
      weight_LC[places, index] = is_text_L & is_known_L
  return {'label_BLC': label_LC, 'weight_BLC': weight_LC}
