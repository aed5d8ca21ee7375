"""What of earlier texts can be resumed: a tree of pages, and points on it.

    root ── 64 tokens ── 64 tokens ── 64 tokens ●        a node per full page
                 └────── 64 tokens ●  ●                  ● a point

A *node* is a full page of tokens behind the pages of its ancestors, and holds
the global page of its keys and values. A *point* is a text of n tokens at which
a row can go on: it stands at the node of its last full page, and holds what
layers with a window need there, the local pages from position `first`, and the
pages of its last tokens where they fill none. A node lives as long as a point
stands at it or below. So points are all that is recorded and evicted, and there
is no second account to disagree with. Which are recorded, and which of them a
new one replaces: `recording.py`. Which of some, drawn at random, is
evicted: `eviction.py`.

Resuming is exact. A row that resumes m ≤ n tokens of a point reads the local
slots of the window − 1 tokens before m, so that it needs

    first == 0   or   m − (window − 1) ≥ first

Rebuilding a window from global pages would not be exact, because what a local
layer reads reaches back depth × window tokens: no point, no resume. The last
token of a prompt always runs, for the logits behind it: m < its length.

Chains are salted: texts of different `cache_salt` share nothing, and behind a
prefix that is meant to be shared, owners share nothing. So no request can find
out, by its time to the first token, what it may not read (CVE-2025-46570).
Keys are hashes, tokens are compared on every hit (vLLM GHSA-rm76-4mrf-v9r8).

Host memory alone; the device's pages are numbers here (`pages.py`). The sources
name prefix caching and no data structure: all of this is our guess.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import time
from typing import NamedTuple

import numpy as np

from kaiju_jax.decoding.pages import eviction
from kaiju_jax.decoding.pages import nodes
from kaiju_jax.decoding.pages import pages as pages_lib

GLOBAL, LOCAL = 'global', 'local'
# Of so many points the least worth is evicted; each costs a walk up its text.
_DRAWN = 16


@dataclasses.dataclass(eq=False, slots=True)
class Point:
  """A text at which a row can go on.

  Attributes:
    node: of its last full page.
    length: n, tokens of the text.
    first: the position from which it holds local pages; of a page's beginning.
    tail: int32 [n mod S], the tokens behind the last full page.
    last: by kind, the page that holds the tail's; {} without a tail.
    salt: the owner's, b'' where all of one `cache_salt` may share.
    cache_salt: see `Text`.
    shared: how many of its first tokens those may share.
    is_pinned: whether eviction passes it over.
    use: who is expected at it.
  """

  node: nodes.Node
  length: int
  first: int
  tail: np.ndarray
  last: dict[str, int]
  salt: bytes
  cache_salt: bytes
  shared: int
  is_pinned: bool
  use: eviction.Use


class Match(NamedTuple):
  """What a lookup found.

  Attributes:
    point: whose pages are resumed.
    length: m, how many of its tokens.
  """

  point: Point
  length: int


class Text(NamedTuple):
  """A text and whom it may be shared with.

  Attributes:
    tokens: int32 [n].
    shared: how many of the first tokens all of one `cache_salt` may share.
    owner: whose the others are.
    cache_salt: texts of different ones share nothing.
  """

  tokens: np.ndarray
  shared: int = 0
  owner: bytes = b''
  cache_salt: bytes = b''

  def salt(self, length: int) -> bytes:
    """Returns whose the first `length` tokens are; b'' for all owners'."""
    return self.owner if length > self.shared else b''

  @property
  def chain(self) -> bytes:
    """What the salts of all its pages begin with, and of no other chain's."""
    return len(self.cache_salt).to_bytes(4, 'little') + self.cache_salt


class PrefixTree:
  """The points of one engine.

  One tree is for one checkpoint, calibration, tokenizer and setting of keys and
  values: what differs in any of them is another engine's.

  Attributes:
    evicted: how many points were evicted.
  """

  def __init__(
    self,
    pages: pages_lib.Pages,
    page: int,
    window: int | None,
    clock: Callable[[], float] = time.monotonic,
  ):
    """Makes an empty tree.

    Args:
      pages: who holds each; kinds 'global' and 'local', as far as there are.
      page: S, tokens of a page.
      window: of the local layers; None without any.
      clock: seconds, from any moment on.
    """
    self._pages = pages
    self._page = page
    self._window = window if LOCAL in pages.kinds else None
    self._root = nodes.Node(b'', None, 0, b'', b'')
    # From the least recently used on.
    self._points: dict[Point, None] = {}
    self._drawn = eviction.Drawn()
    self._demand = eviction.Demand(clock)
    self.evicted = 0

  def __len__(self) -> int:
    return len(self._points)

  def __contains__(self, point: Point) -> bool:
    return point in self._points

  def points(self) -> Iterator[Point]:
    """Yields the points, the least recently used first."""
    return iter(self._points)

  def match(self, text: Text) -> Match | None:
    """Returns the longest beginning of a text that can be resumed.

    The point counts as used. Its pages are held by the tree alone: hold them
    (`pages`) before anything is evicted.
    """
    *path, node = self._path(text)
    best = None
    while True:
      base = node.depth * self._page
      if best is not None and best.length >= base + self._page:
        break
      page = text.tokens[base : base + self._page]
      for point in reversed(node.points):
        best = self._better(
          best, text, point, base + nodes.common(point.tail, page)
        )
      for child in nodes.branches(node, text.chain):
        common = base + nodes.common(
          np.frombuffer(child.tokens, np.int32), page
        )
        if best is not None and common <= best.length:
          continue
        # Points further below than a window lack its pages here.
        reach = None if self._window is None else self._window // self._page + 2
        for point in nodes.near(child, reach):
          best = self._better(best, text, point, common)
      if not path:
        break
      node = path.pop()
    if best is not None:
      self._demand.resume(best.point.use, text.owner)
      self._demand.learn(point.use for point in self._points)
      self.use(best.point)
    return best

  def use(self, point: Point) -> None:
    """Makes a point the most recently used, but for those that it goes on from.

    These count as used, too.
    """
    for used in (point, *nodes.above(point)):
      del self._points[used]
      self._points[used] = None

  def pages(self, match: Match) -> dict[str, dict[int, int]]:
    """Returns the pages that hold what a match resumes.

    Returns:
      By kind {index: page}, where index · S is the position of the page's
      first token: all global pages, and the local ones of the window before
      `length`. Where `length` is no multiple of S, the last page holds more
      than it, or is another row's to append to: copy it.
    """
    S, (point, length) = self._page, match
    found = {kind: {} for kind in self._pages.kinds}
    if length > point.node.depth * S:
      for kind, page in point.last.items():
        found[kind][point.node.depth] = page
    lowest = self._lowest(length)
    node = point.node
    while node.parent is not None:
      index = node.depth - 1
      if index * S < length:
        if GLOBAL in found:
          found[GLOBAL][index] = node.page
        if LOCAL in found and index * S >= lowest:
          found[LOCAL][index] = node.local
      node = node.parent
    return found

  def find(self, text: Text) -> Point | None:
    """Returns the point of exactly this text, if there is one."""
    *_, node = self._path(text)
    if node.depth < len(text.tokens) // self._page:
      return None
    return self._at(node, text)

  def record(self, text: Text, pages: Mapping[str, Mapping[int, int]]) -> Point:
    """Makes a point of a row's text; returns the one that is there, if any.

    Args:
      text: all tokens whose keys and values the row holds.
      pages: by kind {index: page}, the row's: all global ones, and the local
        ones of the window before the text's end at least. The tree holds those
        that it keeps.

    Raises:
      ValueError: a page of the window is missing.
    """
    S, length = self._page, len(text.tokens)
    depth = length // S
    first = self._first(pages.get(LOCAL, {}), length)
    tail = np.array(text.tokens[depth * S :], np.int32)
    node = self._root
    for index, (tokens, owner) in enumerate(self._split(text)):
      node = self._grown(node, tokens, owner, index, pages)
    point = self._at(node, text)
    if point is not None:
      return self._left(point, text.owner)
    self._read(node, first, pages)
    last = {}
    if length > depth * S:
      last = {kind: own[depth] for kind, own in pages.items()}
      for kind, page in last.items():
        self._pages.hold(kind, [page])
    salts = text.salt(length), text.cache_salt
    use = self._demand.made(length <= text.shared)
    point = Point(
      node, length, first, tail, last, *salts, text.shared, False, use
    )
    node.points.append(point)
    while node.parent is not None:
      node.below += 1
      node = node.parent
    self._points[point] = None
    self._drawn.add(point)
    return self._left(point, text.owner)

  def _left(self, point: Point, owner: bytes) -> Point:
    """Returns a point, where an owner's conversation ends now."""
    above = (other.use for other in nodes.above(point))
    self._demand.leave(point.use, owner, above)
    self.use(point)
    return point

  def drop(self, point: Point) -> None:
    """Takes a point away, and all that only it needed."""
    del self._points[point]
    self._drawn.remove(point)
    node = point.node
    node.points.remove(point)
    for kind, page in point.last.items():
      self._pages.release(kind, [page])
    if self._window is not None:
      self._unread(node, point.first)
    while node.parent is not None:
      node.below -= 1
      if not node.below:
        if node.page >= 0:
          self._pages.release(GLOBAL, [node.page])
        del node.parent.children[node.key]
      node = node.parent

  def evict(self) -> bool:
    """Drops the point that is worth least of some, if any is not pinned.

    Whoever was expected at it is expected where it went on from.
    """
    few = len(self) <= _DRAWN
    drawn = self._points if few else self._drawn.some(_DRAWN)
    # A draw may be of pinned ones alone.
    free = _unpinned(drawn) or _unpinned(self._points)
    if not free:
      return False
    point = min(free, key=self._worth)
    above = next(nodes.above(point), None)
    self._demand.inherit(point.use, None if above is None else above.use)
    self.drop(point)
    self.evicted += 1
    return True

  def _worth(self, point: Point) -> float:
    """Returns the tokens that a point is expected to save, for its cost.

    They are those beyond the point that it goes on from. The cost is the part
    of both pools that its pages fill, each divided by the points that need it.
    """
    above = next(nodes.above(point), None)
    saved = point.length - (0 if above is None else above.length)
    cost = nodes.filled(point, self._page, self._pages)
    return self._demand.rate(point.use) * saved / max(cost, 1e-9)

  def make_room(self, needs: Mapping[str, int]) -> None:
    """Evicts until so many pages of each kind are free.

    Raises:
      pages.Full: they cannot be: rows and pinned points hold the others.
    """
    for kind, count in needs.items():
      while self._pages.free(kind) < count:
        if not self.evict():
          raise pages_lib.Full(
            f'{count} {kind} pages are needed and {self._pages.free(kind)} are'
            ' free; rows and pinned points hold all others.'
          )

  def _at(self, node: nodes.Node, text: Text) -> Point | None:
    """Returns the point of a text at the node of its last full page."""
    tail = text.tokens[node.depth * self._page :]
    salts = text.salt(len(text.tokens)), text.cache_salt
    for point in node.points:
      is_theirs = (point.salt, point.cache_salt) == salts
      if is_theirs and np.array_equal(point.tail, tail):
        return point
    return None

  def _path(self, text: Text) -> list[nodes.Node]:
    """Returns the root and the nodes that a text goes through."""
    node, path = self._root, [self._root]
    for tokens, salt in self._split(text):
      child = node.children.get(nodes.key(node, tokens, salt))
      if child is None or child.tokens != tokens or child.salt != salt:
        break
      node = child
      path.append(node)
    return path

  def _split(self, text: Text) -> Iterator[tuple[bytes, bytes]]:
    """Yields the tokens and the salt of each full page."""
    whole = np.ascontiguousarray(text.tokens, np.int32).tobytes()
    size = 4 * self._page
    for begin in range(0, len(whole) - size + 1, size):
      end = begin + size
      yield whole[begin:end], text.chain + text.salt(end // 4)

  def _better(self, best, text: Text, point: Point, common: int):
    """Returns the better one of a match and what a point allows."""
    if point.cache_salt != text.cache_salt:
      return best
    length = min(common, len(text.tokens) - 1, point.length)
    if point.salt != text.owner:
      length = min(length, text.shared, point.shared)
    if length <= (0 if best is None else best.length):
      return best
    if point.first and self._lowest(length) < point.first:
      return best
    return Match(point, length)

  def _lowest(self, length: int) -> int:
    """Returns where the page of the first token that a resume reads begins."""
    if self._window is None:
      return 0
    return max(0, length - (self._window - 1)) // self._page * self._page

  def _first(self, pages: Mapping[int, int], length: int) -> int:
    """Returns the position from which local pages lack none."""
    if self._window is None:
      return 0
    index = -(-length // self._page)
    while index - 1 in pages:
      index -= 1
    first = index * self._page
    if first > self._lowest(length):
      raise ValueError(
        f'local page {index - 1} is missing: a point of {length} tokens needs'
        f' those from position {self._lowest(length)} on.'
      )
    return first

  def _grown(
    self, node: nodes.Node, tokens: bytes, salt: bytes, index: int, pages
  ) -> nodes.Node:
    """Returns the node of a text's page, made where there is none."""
    key = nodes.key(node, tokens, salt)
    child = node.children.get(key)
    if child is None:
      child = nodes.Node(key, node, node.depth + 1, tokens, salt)
      if GLOBAL in pages:
        child.page = pages[GLOBAL][index]
        self._pages.hold(GLOBAL, [child.page])
      node.children[key] = child
    return child

  def _read(self, node: nodes.Node, first: int, pages) -> None:
    """Holds the local pages of a new point at a node."""
    if self._window is None:
      return
    while node.parent is not None and (node.depth - 1) * self._page >= first:
      if not node.readers:
        node.local = pages[LOCAL][node.depth - 1]
        self._pages.hold(LOCAL, [node.local])
      node.readers += 1
      node = node.parent

  def _unread(self, node: nodes.Node, first: int) -> None:
    while node.parent is not None and (node.depth - 1) * self._page >= first:
      node.readers -= 1
      if not node.readers:
        self._pages.release(LOCAL, [node.local])
        node.local = -1
      node = node.parent


def _unpinned(points: Iterable[Point]) -> list[Point]:
  return [point for point in points if not point.is_pinned]
