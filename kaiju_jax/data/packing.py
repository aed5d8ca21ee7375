"""Packs documents side by side in rows of a fixed length; none sees another.

A training row is (token, start, limit, coordinate, position, predecessor,
weight, source). In a tree a token with several children has several targets. So
each token names its predecessor, the place whose logits predict it, and no
place names its target:

    loss = Σ weight[t]·CE(logits[predecessor[t]], tokens[t]) / Σ weight

`ab` and `c` after BOS (_), in a row of 7:

    token         _  a  b  _  c  .  .
    limit         3  3  3  5  5  5  6     start = coordinate = 0…6
    position      0  1  2  0  1  0  0
    predecessor   0  0  1  3  3  5  6
    weight        0  1  1  0  1  0  0
    source        0  0  0  1  1 -1 -1

From the sources: independent and tree-structured documents are packed in rows
under one pair of visibility tensors. Our guess: a linear document is cut at a
row's end and continues in the next row without the text before the cut. A tree
is never cut; it opens a new row where it does not fit. A document's first token
has no predecessor and no weight: the loss counts only a document's own text, so
that it compares across tokenizers.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax import visibility as visibility_lib

# The name of the extra that numbers a row's source in a mixture: an int32.
COMPONENT = 'component_B'


class Piece(NamedTuple):
  """A document, or the part of one that stands in a row."""

  tokens: Any  # int[n].
  # int[n] in a tree, the parent of each token (preorder, -1 for the first);
  # None for a linear document.
  parents: Any = None
  # float[n], the weight of each token's loss; None for ones. The first token
  # always gets weight 0, because nothing in the row predicts it.
  weights: Any = None
  source: int = 0  # Number of the document in its corpus.
  # {name: array [n, …]}, one entry per token for `Row.extras`; None for
  # nothing.
  extras: Mapping[str, Any] | None = None


class Origin(NamedTuple):
  """The tokens of a document that stand in a row, BOS being its token 0."""

  name: str  # The document's name.
  first: int  # Its first token in the row.
  end: int  # One past the last.


class Row(NamedTuple):
  """One packed row of L tokens; fields are int32[L] unless stated."""

  tokens: Any  # 0 in padding.
  start: Any  # First coordinate that sees the token as a key.
  limit: Any  # One past the last; equal to start in padding.
  coordinate: Any  # The token's coordinate as a query.
  position: Any  # The token's position along its own document or path.
  # The place whose logits predict the token; its own place where there is none.
  predecessor: Any
  weight: Any  # float32, the weight of the token's loss.
  source: Any  # Number of its document; -1 in padding.
  # {name: array} that an objective reads beside the row, such as labels [L, C]
  # (`objectives/objective.py`); None where it reads nothing.
  extras: Any = None


class Batch(NamedTuple):
  """Rows of [B, L], or [A, B, L] for A microbatches; fields as in `Row`.

  Extras are stacked likewise: [B, …], or [A, B, …].
  """

  tokens_BL: Any
  start_BL: Any
  limit_BL: Any
  coordinate_BL: Any
  position_BL: Any
  predecessor_BL: Any
  weight_BL: Any
  source_BL: Any
  extras: Any = None

  def visibility(self) -> visibility_lib.Visibility:
    """Returns which tokens see which; the keys are the rows' own tokens."""
    return visibility_lib.Visibility(
      start_BM=self.start_BL,
      limit_BM=self.limit_BL,
      coordinate_BL=self.coordinate_BL,
      position_BL=self.position_BL,
      position_BM=self.position_BL,
    )

  def map(self, function: Callable[[Any], Any]) -> 'Batch':
    """Returns a batch of `function` applied to each array, extras included."""
    *fields, extras = self
    if extras is not None:
      extras = {name: function(array) for name, array in extras.items()}
    return Batch(*map(function, fields), extras)


def row(pieces: Sequence[Piece], length: int) -> Row:
  """Returns `pieces` side by side in a row of `length`, padded at its end.

  Raises:
    ValueError: an empty piece, pieces longer than the row, a tree whose tokens
      are not in preorder below one root, or extras of another length.
  """
  visibility = visibility_lib.side_by_side(
    [_visibility(piece) for piece in pieces], length
  )
  tokens = np.zeros(length, np.int32)
  predecessor = np.arange(length, dtype=np.int32)
  weight = np.zeros(length, np.float32)
  source = np.full(length, -1, np.int32)
  offset = 0
  for piece in pieces:
    end = offset + len(piece.tokens)
    rest = slice(offset + 1, end)
    tokens[offset:end] = piece.tokens
    source[offset:end] = piece.source
    weight[rest] = 1 if piece.weights is None else piece.weights[1:]
    if piece.parents is None:
      predecessor[rest] -= 1
    else:
      predecessor[rest] = np.asarray(piece.parents[1:]) + offset
    offset = end
  return Row(
    tokens=tokens,
    start=visibility.start_BM[0],
    limit=visibility.limit_BM[0],
    coordinate=visibility.coordinate_BL[0],
    position=visibility.position_BL[0],
    predecessor=predecessor,
    weight=weight,
    source=source,
    extras=_laid_out(pieces, length),
  )


def _laid_out(pieces: Sequence[Piece], length: int):
  """Returns the extras of all pieces side by side, 0 in padding."""
  if all(piece.extras is None for piece in pieces):
    return None
  extras, offset = {}, 0
  for piece in pieces:
    end = offset + len(piece.tokens)
    for name, array in (piece.extras or {}).items():
      if len(array) != len(piece.tokens):
        raise ValueError(
          f'document {piece.source}: extras[{name!r}] has {len(array)} entries'
          f' beside {len(piece.tokens)} tokens.'
        )
      if name not in extras:
        extras[name] = np.zeros((length, *array.shape[1:]), array.dtype)
      extras[name][offset:end] = array
    offset = end
  return extras


def offsets(
  lengths: Sequence[int], whole: Sequence[bool], length: int
) -> np.ndarray:
  """Returns where each document begins in the stream that is cut into rows.

  Documents follow each other. One that must stay whole and does not fit in the
  rest of its row begins at the next multiple of `length`.

  Args:
    lengths: int[N], tokens of each document.
    whole: bool[N]; such a document is at most as long as a row.
    length: tokens per row.

  Returns:
    int64[N + 1]; the last entry is where the last document ends.
  """
  lengths = np.asarray(lengths)
  begins = np.zeros(len(lengths) + 1, np.int64)
  if not np.any(whole):
    np.cumsum(lengths, out=begins[1:])
    return begins
  end = 0
  for index, (size, uncut) in enumerate(zip(lengths.tolist(), whole)):
    if uncut and end % length + size > length:
      end += length - end % length
    begins[index] = end
    end += size
  begins[-1] = end
  return begins


def stack(rows: Sequence[Row]) -> Batch:
  """Returns rows of equal length as one batch [B, L].

  Raises:
    ValueError: a range, coordinate or position outside the row. (Without this
      cheap check a training step would be silently wrong.)
  """
  *fields, extras = zip(*rows)
  batch = Batch(*map(np.stack, fields), _stack_extras(extras))
  visibility_lib.check(batch.visibility(), batch.tokens_BL.shape[-1])
  return batch


def _stack_extras(extras: Sequence[Mapping[str, Any] | None]):
  if extras[0] is None:
    return None
  return {name: np.stack([one[name] for one in extras]) for name in extras[0]}


def _visibility(piece: Piece) -> visibility_lib.Visibility:
  if not len(piece.tokens):
    raise ValueError(
      f'document {piece.source} is empty: a piece has at least one token.'
    )
  if piece.parents is None:
    return visibility_lib.causal(len(piece.tokens))
  if piece.parents[0] != -1 or np.any(np.asarray(piece.parents[1:]) < 0):
    raise ValueError(
      f'document {piece.source} has several roots: all tokens of a tree stand'
      ' below its first (BOS), whose parent is -1.'
    )
  return visibility_lib.tree(piece.parents)
