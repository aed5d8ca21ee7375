"""The entries of the prefix tree (`prefix_tree.py`): nodes, and points on them.

What a token-level head gave each token lies with the tokens, as keys and values
do: it is NaN while the call that judges the token has not been read.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import itertools

import numpy as np

from kaiju_jax.decoding.pages import eviction
from kaiju_jax.decoding.pages import pages as pages_lib

# Other branches of a node that a lookup looks into: an edited message shares a
# part of a page with the one before it.
_BRANCHES = 8


@dataclasses.dataclass(eq=False, slots=True)
class Node:
  """A full page of tokens behind those of its ancestors.

  Attributes:
    parent: None for the root.
    depth: pages to its end; 0 for the root.
    tokens: the page's, int32 as bytes.
    salt: the owner's, b'' where all of its tree may share.
    children: by their tokens and salts, in the order in which they came.
    points: those whose last full page this is.
    page: the global page; −1 for the root and where there are no global layers.
    below: points that stand here or below, and need that page.
    local: the local page; −1 where no point needs it.
    readers: points that need the local page.
    score_SC: what a head gave each token; None without one.
  """

  parent: 'Node | None'
  depth: int
  tokens: bytes
  salt: bytes
  children: dict[tuple[bytes, bytes], 'Node'] = dataclasses.field(
    default_factory=dict
  )
  points: list['Point'] = dataclasses.field(default_factory=list)
  page: int = -1
  below: int = 0
  local: int = -1
  readers: int = 0
  score_SC: np.ndarray | None = None


@dataclasses.dataclass(eq=False, slots=True)
class Point:
  """A text at which a row can go on.

  Attributes:
    node: of its last full page.
    length: n, tokens of the text.
    first: the position from which it holds local pages; of a page's beginning.
    tail: int32 [n mod S], the tokens behind the last full page.
    last: by kind, the page that holds the tail's; {} without a tail.
    salt: the owner's, b'' where all may share.
    shared: how many of its first tokens everybody may share.
    use: who is expected at it.
    score_TC: what a head gave each token of the tail; None without one.
  """

  node: Node
  length: int
  first: int
  tail: np.ndarray
  last: dict[str, int]
  salt: bytes
  shared: int
  use: eviction.Use
  score_TC: np.ndarray | None = None


def branches(node: Node) -> Iterator[Node]:
  """Returns the latest children."""
  return itertools.islice(reversed(node.children.values()), _BRANCHES)


def near(node: Node, reach: int | None) -> Iterator[Point]:
  """Yields the points at a node, or at the first below it that has any.

  Args:
    node: at which, or below which, a point stands.
    reach: how many nodes below, on the latest branch; None for all.
  """
  lowest = None if reach is None else node.depth + reach
  while not node.points and (lowest is None or node.depth < lowest):
    node = next(reversed(node.children.values()))
  yield from reversed(node.points)


def common(first: np.ndarray, second: np.ndarray) -> int:
  """Returns how many tokens two pieces begin with alike."""
  size = min(len(first), len(second))
  differs = first[:size] != second[:size]
  return int(differs.argmax()) if differs.any() else size


def ancestors(point: Point) -> Iterator[Point]:
  """Yields the points that a point goes on from, the longest first."""
  node, child = point.node, None
  while node is not None:
    if node.points:
      behind = point.tail
      if child is not None:
        behind = np.frombuffer(child.tokens, np.int32)
      for other in sorted(node.points, key=lambda one: -one.length):
        if (
          other is not point
          and other.salt in (b'', point.salt)
          and len(other.tail) <= len(behind)
          and np.array_equal(other.tail, behind[: len(other.tail)])
        ):
          yield other
    node, child = node.parent, node


def share_of_pools(point: Point, page: int, pages: pages_lib.Pages) -> float:
  """Returns the part of the pools that a point fills, summed over kinds.

  A page that several points need is divided by their number: what points share
  would cost none of them anything, if it were counted to who frees it alone.

  Args:
    point: whose pages are counted.
    page: S, tokens of a page.
    pages: of the pools.
  """
  found = {'global': 0.0, 'local': 0.0}
  for kind, last in point.last.items():
    found[kind] += 1 / pages.holders(kind, last)
  node, lowest = point.node, point.first // page
  while node.parent is not None:
    if node.page >= 0:
      found['global'] += 1 / node.below
    if node.readers and node.depth > lowest:
      found['local'] += 1 / node.readers
    node = node.parent
  return sum(found[kind] / pages.size(kind) for kind in pages.kinds)


def hold_local(
  node: Node, lowest: int, pages: pages_lib.Pages, own: Mapping[int, int]
) -> None:
  """Holds the local pages of a new point at a node.

  Args:
    node: of its last full page.
    lowest: the index of the first page that it needs.
    pages: of the pools.
    own: the row's local pages, by index.
  """
  while node.parent is not None and node.depth > lowest:
    if not node.readers:
      node.local = own[node.depth - 1]
      pages.hold('local', [node.local])
    node.readers += 1
    node = node.parent


def release_local(node: Node, lowest: int, pages: pages_lib.Pages) -> None:
  """Releases what a point at a node held; see `hold_local`."""
  while node.parent is not None and node.depth > lowest:
    node.readers -= 1
    if not node.readers:
      pages.release('local', [node.local])
      node.local = -1
    node = node.parent


def scores(point: Point) -> np.ndarray:
  """Returns what a head gave each token of a point's text, float32 [n, C]."""
  parts, node = [point.score_TC], point.node
  while node.parent is not None:
    parts.append(node.score_SC)
    node = node.parent
  return np.concatenate(parts[::-1])


def add_scores(point: Point, score_LC: np.ndarray) -> None:
  """Fills in what is not known yet of a point's tokens.

  Args:
    point: whose tokens, and those of the nodes up to the root.
    score_LC: of its text, or of its beginning; NaN where it is not known.
  """
  node, end = point.node, point.length - len(point.tail)
  _fill(point.score_TC, score_LC[end : point.length])
  while node.parent is not None and np.isnan(node.score_SC).any():
    begin = end - len(node.score_SC)
    _fill(node.score_SC, score_LC[begin:end])
    node, end = node.parent, begin


def _fill(known_LC: np.ndarray, new_LC: np.ndarray) -> None:
  known_LC = known_LC[: len(new_LC)]
  np.copyto(known_LC, new_LC, where=np.isnan(known_LC))
