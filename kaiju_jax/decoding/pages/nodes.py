"""Nodes and points, the entries of the prefix tree (`prefix_tree.py`).

With them: what a text brings along to be looked up and recorded.

The scores of a token-level head are stored beside the tokens, NaN until the
host has read them from the device.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import itertools
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.decoding.pages import pages as pages_lib

# How many other branches of a node a lookup tries, because an edited message
# shares a part of a page with the original.
_BRANCHES = 8


class Scores(NamedTuple):
  """A token-level head's scores, by the head's digest `version`."""

  version: bytes
  # float32, for at least all of a text's tokens; NaN where not read back yet.
  score_LC: np.ndarray


class Span(NamedTuple):
  """Which of a text's pages are held in a kind with a window, by index."""

  # The first pages, which hold the sinks.
  pinned: int
  # All from this one on.
  first: int

  def has(self, index: int) -> bool:
    return index < self.pinned or index >= self.first

  def indices(self, count: int) -> set[int]:
    """Returns the indices of a text of `count` pages."""
    first = {*range(min(self.pinned, count))}
    return first | {*range(self.first, count)}


class Memo:
  """A growing text's full pages and last match, for repeated lookups."""

  def __init__(self):
    self.pages: list[tuple[bytes, bytes]] = []
    self.found: tuple[Any, Any] | None = None


@dataclasses.dataclass(eq=False, slots=True)
class Node:
  """One full page of tokens, which follows the pages of its ancestors."""

  parent: 'Node | None'
  # Pages from the root to the end of this one; 0 for the root.
  depth: int
  # The page's int32 tokens as bytes; the head's version at the root.
  tokens: bytes
  # The owner, b'' where all owners may share; `cache_salt` at the root.
  salt: bytes
  # By tokens and salt, in order of insertion.
  children: dict[tuple[bytes, bytes], 'Node'] = dataclasses.field(
    default_factory=dict
  )
  # The points whose last full page this is.
  points: list['Point'] = dataclasses.field(default_factory=list)
  # The global page; −1 for the root or without global layers.
  page: int = -1
  # How many points, here or below, need the global page.
  below: int = 0
  # By kind with a window, the page if points need it, and how many do.
  local: dict[str, int] = dataclasses.field(default_factory=dict)
  readers: dict[str, int] = dataclasses.field(default_factory=dict)
  # The head's scores of each token; None without a head.
  score_SC: np.ndarray | None = None


@dataclasses.dataclass(eq=False, slots=True)
class Point:
  """A text of n tokens, kept in the cache so that a row can go on from it."""

  # The node of its last full page.
  node: Node
  length: int
  # By kind with a window, the pages that it holds.
  spans: dict[str, Span]
  # int32 [n mod S], the tokens behind the last full page.
  tail: np.ndarray
  # By kind, the page with the tail's keys and values; {} without a tail.
  last: dict[str, int]
  # The owner, b'' where all owners may share.
  salt: bytes
  # How many of its first tokens all owners may share.
  shared: int
  # The head's scores of the tail's tokens; None without a head.
  score_TC: np.ndarray | None = None


def branches(node: Node) -> Iterator[Node]:
  """Returns the latest children, at most 8, the newest first."""
  return itertools.islice(reversed(node.children.values()), _BRANCHES)


def find_near(node: Node, reach: int | None) -> Iterator[Point]:
  """Yields the points at a node, or at the first node below it that has any.

  Only the latest branch is followed, by at most `reach` nodes; None for all.
  """
  lowest = None if reach is None else node.depth + reach
  while not node.points and (lowest is None or node.depth < lowest):
    node = next(reversed(node.children.values()))
  yield from reversed(node.points)


def count_common(first: np.ndarray, second: np.ndarray) -> int:
  """Returns the number of first tokens that two pieces share."""
  size = min(len(first), len(second))
  differs = first[:size] != second[:size]
  return int(differs.argmax()) if differs.any() else size


def ancestors(point: Point) -> Iterator[Point]:
  """Yields the points whose texts begin this point's text, the longest first.

  Points of other owners are among them only if all owners may share them.
  """
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


def share_of_pools(point: Point, pages: pages_lib.Pages) -> float:
  """Returns the fraction of the pools that a point fills, summed over kinds.

  A page that k points need counts 1/k for each; if it counted only for the
  point that frees it, shared pages would cost nothing.
  """
  found = dict.fromkeys(pages.kinds, 0.0)
  for kind, last in point.last.items():
    found[kind] += 1 / pages.holders(kind, last)
  node = point.node
  while node.parent is not None:
    if node.page >= 0:
      found['global'] += 1 / node.below
    node = node.parent
  for kind, span in point.spans.items():
    for node in walk_span(point.node, span):
      found[kind] += 1 / node.readers[kind]
  return sum(found[kind] / pages.size(kind) for kind in pages.kinds)


def walk_span(node: Node, span: Span) -> Iterator[Node]:
  """Yields the nodes whose pages a span has, from a point's node upwards."""
  while node.parent is not None and (span.pinned or node.depth > span.first):
    if span.has(node.depth - 1):
      yield node
    node = node.parent


def hold_local(
  point: Point, pages: pages_lib.Pages, own: Mapping[str, Mapping[int, int]]
) -> None:
  """Holds a new point's pages of kinds with a window; `own` by index."""
  for kind, span in point.spans.items():
    for node in walk_span(point.node, span):
      if kind not in node.local:
        node.local[kind] = own[kind][node.depth - 1]
        pages.hold(kind, [node.local[kind]])
      node.readers[kind] = node.readers.get(kind, 0) + 1


def release_local(point: Point, pages: pages_lib.Pages) -> None:
  """Releases the pages that `hold_local` held for a point."""
  for kind, span in point.spans.items():
    for node in walk_span(point.node, span):
      node.readers[kind] -= 1
      if not node.readers[kind]:
        pages.release(kind, [node.local.pop(kind)])


def tokens(point: Point) -> np.ndarray:
  """Returns the tokens of a point's text, int32 [n]."""
  parts, node = [point.tail], point.node
  while node.parent is not None:
    parts.append(np.frombuffer(node.tokens, np.int32))
    node = node.parent
  return np.concatenate(parts[::-1])


def root(point: Point) -> Node:
  """Returns the root of the tree in which a point stands."""
  node = point.node
  while node.parent is not None:
    node = node.parent
  return node


def scores(point: Point) -> np.ndarray:
  """Returns the head's scores of a point's text, float32 [n, C]."""
  parts, node = [point.score_TC], point.node
  while node.parent is not None:
    parts.append(node.score_SC)
    node = node.parent
  return np.concatenate(parts[::-1])


def add_scores(point: Point, score_LC: np.ndarray) -> None:
  """Fills in the scores that are still NaN for a point's text.

  `score_LC` covers the text or its beginning; it is NaN where unknown.
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
