"""A node of the prefix tree: a full page of tokens behind those before it."""

from collections.abc import Iterator
import dataclasses
import hashlib
import itertools
import typing

import numpy as np

from kaiju_jax.decoding.pages import pages as pages_lib

if typing.TYPE_CHECKING:
  from kaiju_jax.decoding.pages import prefix_tree

# Other branches of a node that a lookup looks into: an edited message shares a
# part of a page with the one before it.
_BRANCHES = 8


@dataclasses.dataclass(eq=False, slots=True)
class Node:
  """A full page of tokens behind those of its ancestors.

  Attributes:
    key: hash of all tokens to its end, and of the salt.
    parent: None for the root.
    depth: pages to its end; 0 for the root.
    tokens: the page's, int32 as bytes.
    salt: of its chain and, behind what is shared, of the owner.
    children: by key, in the order in which they came.
    points: those whose last full page this is.
    page: the global page; −1 for the root and where there are no global layers.
    below: points that stand here or below, and need that page.
    local: the local page; −1 where no point needs it.
    readers: points that need the local page.
  """

  key: bytes
  parent: 'Node | None'
  depth: int
  tokens: bytes
  salt: bytes
  children: dict[bytes, 'Node'] = dataclasses.field(default_factory=dict)
  points: list['prefix_tree.Point'] = dataclasses.field(default_factory=list)
  page: int = -1
  below: int = 0
  local: int = -1
  readers: int = 0


def key(parent: Node, tokens: bytes, salt: bytes) -> bytes:
  """Returns the hash of a page behind all pages before it."""
  whole = b''.join((parent.key, tokens, salt))
  return hashlib.blake2b(whole, digest_size=16).digest()


def branches(node: Node, chain: bytes) -> Iterator[Node]:
  """Returns the latest children whose salts begin with `chain`."""
  latest = reversed(node.children.values())
  own = (child for child in latest if child.salt.startswith(chain))
  return itertools.islice(own, _BRANCHES)


def near(node: Node, reach: int | None) -> Iterator['prefix_tree.Point']:
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


def above(point: 'prefix_tree.Point') -> Iterator['prefix_tree.Point']:
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
          and other.cache_salt == point.cache_salt
          and len(other.tail) <= len(behind)
          and np.array_equal(other.tail, behind[: len(other.tail)])
        ):
          yield other
    node, child = node.parent, node


def filled(
  point: 'prefix_tree.Point', page: int, pages: pages_lib.Pages
) -> float:
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
