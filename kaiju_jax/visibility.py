"""Attention masks stored as one range per key, for every kind of sequence.

A key's visibility is the range of query coordinates that see the key.

From the sources: two integer tensors, `visibility_start` and
`visibility_limit`, give each token its valid range. They serve independent
packed documents, trees of documents, bidirectional spans, beam search and the
empty slots of a paged cache, in training and in inference.

Our reading (the sources admit two): the range belongs to the *key* and says
which queries may see it. Each *query* carries a coordinate.

    visible(q, k) = start[k] <= coordinate[q] < limit[k]
                    and (window is None or position[q] - position[k] < window
                         or position[k] < sinks)

The range belongs to the key because of trees. In depth-first order exactly a
token's own subtree sees the token, and a subtree is one contiguous range. The
path that the token sees is not contiguous. Windows compare positions (depth
along the path), not coordinates. A window is one-sided: a query in a
bidirectional span sees the span's later tokens at any distance. Sinks are the
first tokens of a document, which a layer may let all its queries see (not from
the sources, which have none "currently"). No query sees
a key with start == limit.

Everything here is numpy on the host. The drawings have one row per query and
one column per key, with an x where the query sees the key.
"""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np


class Visibility(NamedTuple):
  """Ranges of B rows, each of L queries and M keys; all fields int32.

  Attributes:
    start_BM: first query coordinate that sees the key.
    limit_BM: one past the last such coordinate; equal to start for an empty
      slot.
    coordinate_BL: each query's coordinate, which the ranges are compared with.
    position_BL: the position of each query along its own document or path.
    position_BM: the position of each key along its own document or path.
  """

  start_BM: Any
  limit_BM: Any
  coordinate_BL: Any
  position_BL: Any
  position_BM: Any


def causal(length: int) -> Visibility:
  """Returns one document in which a token sees itself and all earlier ones.

  causal(4):

      x...
      xx..
      xxx.
      xxxx
  """
  token_L = np.arange(length)
  return _row(token_L, np.full(length, length), token_L)


def documents(lengths: Sequence[int], length: int) -> Visibility:
  """Returns causal documents packed into one row of `length` tokens.

  documents([2, 3], 6):

      x.....
      xx....
      ..x...
      ..xx..
      ..xxx.
      ......

  Raises:
    ValueError: an empty document, or more tokens than the row holds.
  """
  for index, document in enumerate(lengths):
    if document < 1:
      raise ValueError(
        f'lengths[{index}]={document}: a document has at least one token.'
      )
  return side_by_side([causal(document) for document in lengths], length)


def bidirectional(length: int, spans: Sequence[tuple[int, int]]) -> Visibility:
  """Returns a causal row in which the tokens of a span see each other.

  bidirectional(5, [(1, 4)]):

      x....
      xxxx.
      xxxx.
      xxxx.
      xxxxx

  Args:
    length: tokens in the row.
    spans: (first, one past the last) of each span; they may not overlap.

  Raises:
    ValueError: a span that is empty, outside the row or over another.
  """
  start_L = np.arange(length)
  taken = 0
  for first, last in sorted(spans):
    if not taken <= first < last <= length:
      raise ValueError(
        f'spans holds ({first}, {last}): expected {taken} <= first < last <='
        f' {length}; a span is not empty, ends within the row and overlaps no'
        ' other.'
      )
    start_L[first:last] = first
    taken = last
  return _row(start_L, np.full(length, length), np.arange(length))


def tree(parents: Sequence[int]) -> Visibility:
  """Returns a tree (or forest) in which each node sees its path to the root.

  tree([-1, 0, 1, 0, 3]), two continuations of one prompt:

      x....
      xx...
      xxx..
      x..x.
      x..xx

  Args:
    parents: the parent of each node, -1 for a root, in preorder: a node
      follows its parent or a completed branch of one of its ancestors.

  Raises:
    ValueError: an order that is not depth-first.
  """
  length = len(parents)
  limit_L = np.full(length, length)
  depth_L = np.zeros(length, np.int64)
  path = []
  for node, parent in enumerate(parents):
    while path and path[-1] != parent:
      limit_L[path.pop()] = node
    if not path and parent != -1:
      raise ValueError(
        f'parents[{node}]={parent}: expected -1 or an ancestor-or-self of node'
        f' {node - 1}. List the nodes in preorder (depth-first), each branch'
        ' complete before the next begins.'
      )
    depth_L[node] = len(path)
    path.append(node)
  return _row(np.arange(length), limit_L, depth_L)


def beams(parents: Sequence[int], leaves: Sequence[int]) -> Visibility:
  """Returns one step of beam search: L live beams over M cache slots.

  A query is the newest token of its beam and already has a slot. Its coordinate
  is the beam's rank in tree order, so that the beams that descend from a token
  are contiguous wherever the token's slot lies. No query sees a token without
  live descendants or a slot that was never filled; both can be reused.

  beams(parents=[-1, 0, 0, 1, 2, 2], leaves=[5, 3]), slot 4 dead:

      x.x..x
      xx.x..

  Ranks work for steps of one token only. All queries of a beam share its rank,
  so the tokens of a longer chunk would see each other. Before such a chunk,
  make coordinates and ranges anew in token order (`tree`).

  Args:
    parents: for each slot, the slot of the token before it; -1 for the first
      token and for empty slots. Slots may be in any order.
    leaves: the slot of each live beam's newest token.

  Raises:
    ValueError: a slot outside the cache, or parents that run in a circle.
  """
  slots = len(parents)
  paths = [_path(parents, leaf) for leaf in leaves]
  order = sorted(range(len(leaves)), key=lambda beam: paths[beam])
  start_M = np.zeros(slots, np.int64)
  limit_M = np.zeros(slots, np.int64)
  depth_M = np.zeros(slots, np.int64)
  rank_L = np.zeros(len(leaves), np.int64)
  for rank, beam in enumerate(order):
    rank_L[beam] = rank
    for depth, slot in enumerate(paths[beam]):
      if start_M[slot] == limit_M[slot]:
        start_M[slot] = rank
      limit_M[slot] = rank + 1
      depth_M[slot] = depth
  depth_L = np.array([len(path) - 1 for path in paths], np.int64)
  fields = start_M, limit_M, rank_L, depth_L, depth_M
  return Visibility(*(field.astype(np.int32)[None] for field in fields))


def side_by_side(parts: Sequence[Visibility], length: int) -> Visibility:
  """Returns one packed row of `parts` that do not see each other.

  A part may be a document, a tree or a row with spans. Each part keeps its own
  positions. The rest of the row is padding: no query sees it, and it sees no
  key.

  side_by_side([tree([-1, 0, 0]), causal(2)], 6):

      x.....
      xx....
      x.x...
      ...x..
      ...xx.
      ......

  Args:
    parts: single rows (B = 1) whose keys are their queries (L = M).
    length: tokens in the row.

  Raises:
    ValueError: a part of another shape, or parts longer than the row.
  """
  token_L = np.arange(length)
  row = _row(token_L, token_L, np.zeros(length))
  offset = 0
  for index, part in enumerate(parts):
    rows, size = part.coordinate_BL.shape
    if rows != 1 or part.start_BM.shape != (1, size):
      raise ValueError(
        f'parts[{index}] has {rows} rows, {size} queries and keys of shape'
        f' {part.start_BM.shape}: expected one row whose keys are its queries.'
      )
    if offset + size > length:
      raise ValueError(
        f'parts[{index}] ends at token {offset + size}: the row holds {length}.'
      )
    here = np.s_[:, offset : offset + size]
    row.start_BM[here] = part.start_BM + offset
    row.limit_BM[here] = part.limit_BM + offset
    row.coordinate_BL[here] = part.coordinate_BL + offset
    row.position_BL[here] = part.position_BL
    row.position_BM[here] = part.position_BM
    offset += size
  return row


def concatenate(visibilities: Sequence[Visibility]) -> Visibility:
  """Returns the rows of all `visibilities` as one batch.

  Raises:
    ValueError: none given, or rows that differ in queries or keys.
  """
  if not visibilities:
    raise ValueError('visibilities is empty: a batch has at least one row.')
  for index, visibility in enumerate(visibilities):
    for name, field, first in zip(
      Visibility._fields, visibility, visibilities[0]
    ):
      if field.shape[1:] != first.shape[1:]:
        raise ValueError(
          f'visibilities[{index}].{name} has rows of {field.shape[1]}, those'
          f' before have {first.shape[1]}: rows of a batch are equally long.'
        )
  return Visibility(*(np.concatenate(field) for field in zip(*visibilities)))


def as_dense(
  visibility: Visibility, window: int | None = None, sinks: int = 0
) -> Any:
  """Returns bool[B, L, M], True where the query sees the key.

  Works on numpy and on jax arrays, and takes B·L·M bytes: for tests, drawings
  and short rows.
  """
  start_BM, limit_BM, coordinate_BL, position_BL, position_BM = visibility
  visible_BLM = (start_BM[:, None, :] <= coordinate_BL[:, :, None]) & (
    coordinate_BL[:, :, None] < limit_BM[:, None, :]
  )
  if window is None:
    return visible_BLM
  position_B1M = position_BM[:, None, :]
  return visible_BLM & (
    (position_BL[:, :, None] - position_B1M < window) | (position_B1M < sinks)
  )


def draw(
  visibility: Visibility,
  window: int | None = None,
  sinks: int = 0,
  row: int = 0,
) -> str:
  """Returns one row of the batch as lines of dots and x's."""
  return '\n'.join(
    ''.join('x' if seen else '.' for seen in line)
    for line in np.asarray(as_dense(visibility, window, sinks)[row])
  )


def check(visibility: Visibility, length: int) -> None:
  """Refuses ranges and coordinates outside [0, length].

  Args:
    visibility: ranges and coordinates as concrete arrays.
    length: number of query coordinates, for a packed row its tokens.

  Raises:
    ValueError: names the field, the place, the value and what would be right.
  """
  rows, keys = np.shape(visibility.start_BM)
  queries = np.shape(visibility.coordinate_BL)[-1]
  for name, field in zip(Visibility._fields, visibility):
    expected = (rows, queries if name.endswith('BL') else keys)
    if np.shape(field) != expected:
      raise ValueError(
        f'{name} has shape {np.shape(field)}: expected {expected}.'
      )
    if np.asarray(field).dtype != np.int32:
      raise ValueError(f'{name} is {np.asarray(field).dtype}: expected int32.')
  _check_range('start_BM', visibility.start_BM, 0, length)
  _check_range('limit_BM', visibility.limit_BM, visibility.start_BM, length)
  _check_range('coordinate_BL', visibility.coordinate_BL, 0, length - 1)
  largest = np.iinfo(np.int32).max
  _check_range('position_BL', visibility.position_BL, 0, largest)
  _check_range('position_BM', visibility.position_BM, 0, largest)


def _check_range(name: str, values, low, high) -> None:
  """Raises ValueError if a value lies outside [low, high], both included."""
  values = np.asarray(values)
  low = np.broadcast_to(low, values.shape)
  outside = np.argwhere((values < low) | (values > high))
  if len(outside):
    row, column = map(int, outside[0])
    raise ValueError(
      f'{name}[{row}, {column}]={values[row, column]}: expected'
      f' {low[row, column]}…{high}.'
    )


def _row(start_L, limit_L, position_L) -> Visibility:
  """Returns a single row whose keys are its queries, in order."""
  token_L = np.arange(len(start_L))
  fields = start_L, limit_L, token_L, position_L, position_L
  return Visibility(*(field.astype(np.int32)[None] for field in fields))


def _path(parents: Sequence[int], leaf: int) -> list[int]:
  """Returns the slots from the root to `leaf`."""
  path = []
  slot = leaf
  while slot != -1:
    if not 0 <= slot < len(parents):
      raise ValueError(
        f'leaf {leaf} leads to slot {slot}: the cache has slots'
        f' 0…{len(parents) - 1}.'
      )
    if len(path) == len(parents):
      raise ValueError(f'leaf {leaf} never reaches a root: parents circle.')
    path.append(slot)
    slot = parents[slot]
  return path[::-1]
