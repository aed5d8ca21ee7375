"""The prefix tree: finds the longest earlier text that a prompt can resume.

    root ── 64 tokens ── 64 tokens ── 64 tokens ●        a node per full page
                 └────── 64 tokens ●  ●                  ● a point

A *node* is a full page of tokens behind the pages of its ancestors. It holds
the global page of their keys and values, and lives as long as a point stands at
it or below. A *point* is a text of n tokens at which a row can go on. It stands
at the node of its last full page and holds the pages that layers with a window
need there, the local ones, and the pages of the tokens behind the last full
page. Only points are recorded (`recording.py`) and evicted (`eviction.py`).

Resuming is exact. A row that resumes m ≤ n tokens of a point reads, in each
kind with a window, the slots of the sinks, which lie in the first, pinned
pages, and those of the window − 1 tokens before m. It needs all of their pages.
A window rebuilt from global pages would not be exact, because a local layer
depends on depth × window tokens. The last token of a prompt always runs, for
the logits behind it: m < the prompt's length.

Texts with another `cache_salt`, or scored by another head, stand in another
tree, and owners share nothing behind a shared prefix. So the time to the first
token tells a request nothing about texts that it may not read (CVE-2025-46570).
A node's key is its page itself, not a hash that two texts could share (vLLM
GHSA-rm76-4mrf-v9r8). The sources name prefix caching and no data structure: all
of this is our guess.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import itertools
from typing import NamedTuple

import numpy as np

from kaiju_jax.decoding.pages import eviction
from kaiju_jax.decoding.pages import nodes
from kaiju_jax.decoding.pages import pages as pages_lib

# The kinds of pages of a stack whose local layers have one window.
GLOBAL, LOCAL = 'global', 'local'


class Ring(NamedTuple):
  """What the layers of a kind with a window read."""

  window: int
  # Pages that hold the sinks.
  pinned: int = 0


class Match(NamedTuple):
  """A point to resume, and m, how many of its tokens."""

  point: nodes.Point
  length: int


class Text(NamedTuple):
  """A text, and the owners that may share it."""

  # int32 [n].
  tokens: np.ndarray
  # How many of the first tokens all owners with this salt may share.
  shared: int = 0
  # The owner of the other tokens.
  owner: bytes = b''
  # Texts of different salts share nothing.
  cache_salt: bytes = b''
  # A token-level head's, None without one; a text resumes only points of the
  # same head's version.
  scores: nodes.Scores | None = None
  # For repeated lookups of a growing text; None for none.
  memo: nodes.Memo | None = None

  @property
  def tree(self) -> tuple[bytes, bytes]:
    """The key of the tree it belongs to: the head's version, and the salt."""
    version = b'' if self.scores is None else self.scores.version
    return version, self.cache_salt

  def salt(self, length: int) -> bytes:
    """Returns the owner of the first `length` tokens; b'' for all owners."""
    return self.owner if length > self.shared else b''


class PrefixTree:
  """The points of one engine: of one model, tokenizer and kind of cache."""

  def __init__(
    self,
    pages: pages_lib.Pages,
    page: int,
    rings: Mapping[str, Ring],
    policy: eviction.Policy,
  ):
    """Makes an empty tree over pages of the kind 'global' and those of `rings`.

    `page` is S; `policy` decides which points are evicted, and is this tree's
    alone.
    """
    self._pages = pages
    self._page = page
    self._rings = rings
    # The pages from a branch to a point behind it that has a window there.
    self._reach = None
    if rings:
      self._reach = min(ring.window for ring in rings.values()) // page + 2
    # By `Text.tree`; a root goes with its last point.
    self._roots: dict[tuple[bytes, bytes], nodes.Node] = {}
    # The least recently used first.
    self._points: dict[nodes.Point, None] = {}
    self.policy = policy
    # How many points were evicted.
    self.evicted: int = 0
    # How often points were made and dropped.
    self._changes = 0

  @property
  def version(self) -> int:
    """Changes as points are made or dropped."""
    return self._changes

  def __len__(self) -> int:
    return len(self._points)

  def __contains__(self, point: nodes.Point) -> bool:
    return point in self._points

  def points(self) -> Iterator[nodes.Point]:
    """Yields the points, the least recently used first."""
    return iter(self._points)

  def match(self, text: Text) -> Match | None:
    """Returns the longest beginning of a text that can be resumed, if any.

    It changes nothing (`touch` does), and does not hold the pages: the caller
    holds those that `pages` names before anything is evicted.
    """
    if text.memo is None:
      return self._longest(text)
    key = self, self._changes, len(text.tokens)
    if text.memo.found is None or text.memo.found[0] != key:
      text.memo.found = key, self._longest(text)
    return text.memo.found[1]

  def _longest(self, text: Text) -> Match | None:
    best = None
    for node in reversed(self._path(text)):
      base = node.depth * self._page
      if best is not None and best.length >= base + self._page:
        break
      page = text.tokens[base : base + self._page]
      for point in reversed(node.points):
        best = self._better(
          best, text, point, base + nodes.count_common(point.tail, page)
        )
      for child in nodes.branches(node):
        common = base + nodes.count_common(
          np.frombuffer(child.tokens, np.int32), page
        )
        if best is not None and common <= best.length:
          continue
        # A point further below than a window has no local pages here.
        for point in nodes.find_near(child, self._reach):
          best = self._better(best, text, point, common)
    return best

  def touch(self, match: Match, owner: bytes) -> None:
    """Notes that an owner's request resumes a match."""
    self.policy.note(eviction.Event.RESUMED, match.point, owner)
    self.use(match.point)

  def use(self, point: nodes.Point) -> None:
    """Marks a point, and those that it goes on from, as used most recently."""
    for used in (point, *nodes.ancestors(point)):
      del self._points[used]
      self._points[used] = None

  def pages(self, match: Match) -> dict[str, dict[int, int]]:
    """Returns the pages that hold what a match resumes, by kind {index: page}.

    A page's first token has position index · S. They are all global pages, and
    the local ones of the sinks and of the window before `length`. If `length`
    is no multiple of S, copy the last page: it holds more, or another row
    appends to it.
    """
    return self._pages_of(*match, self._needed(match.length))

  def held_pages(self, point: nodes.Point) -> dict[str, dict[int, int]]:
    """Returns all pages that a point holds, by kind {index: page}."""
    return self._pages_of(point, point.length, point.spans)

  def _pages_of(
    self, point: nodes.Point, length: int, spans: Mapping[str, nodes.Span]
  ) -> dict[str, dict[int, int]]:
    """Returns a point's pages, in kinds with a window those of `spans`."""
    S = self._page
    found = {kind: {} for kind in self._pages.kinds}
    if length > point.node.depth * S:
      for kind, page in point.last.items():
        found[kind][point.node.depth] = page
    node = point.node
    while node.parent is not None:
      index = node.depth - 1
      if index * S < length:
        if GLOBAL in found:
          found[GLOBAL][index] = node.page
        for kind, span in spans.items():
          if span.has(index):
            found[kind][index] = node.local[kind]
      node = node.parent
    return found

  def standing_pages(self, text: Text) -> dict[str, dict[int, int]]:
    """Returns the full pages of a text that points hold, {index: page}."""
    found = {kind: {} for kind in self._pages.kinds}
    for node in self._path(text)[1:]:
      if GLOBAL in found:
        found[GLOBAL][node.depth - 1] = node.page
      for kind, page in node.local.items():
        found[kind][node.depth - 1] = page
    return found

  def record(
    self, text: Text, pages: Mapping[str, Mapping[int, int]]
  ) -> nodes.Point:
    """Makes a point of a row's text, and holds its pages.

    `text` is all tokens whose keys and values the row holds. `pages` are by
    kind {index: page} the row's: all global ones, and at least the local ones
    of the sinks and of the window before the text's end. A text that has a
    point keeps it. Raises ValueError: one of these pages is missing.
    """
    S, length = self._page, len(text.tokens)
    depth = length // S
    for kind, missing in self._missing(length, pages).items():
      span = self._needed(length)[kind]
      raise ValueError(
        f'{kind} page {max(missing)} is missing: a point of {length} tokens'
        f' needs the first {span.pinned}, and those from {span.first} on.'
      )
    tail = np.array(text.tokens[depth * S :], np.int32)
    root = nodes.Node(None, 0, *text.tree)
    node = self._roots.setdefault(text.tree, root)
    for page in self._split(text):
      node = self._grow(node, page, text, pages)
    point = self._find_point(node, text)
    if point is not None:
      self.add_scores(point, text)
      return self._note_end(point, text.owner)
    last = {}
    if length > depth * S:
      last = {kind: own[depth] for kind, own in pages.items()}
      for kind, page in last.items():
        self._pages.hold(kind, [page])
    salt, shared = text.salt(length), text.shared
    spans = self._held(length, pages)
    point = nodes.Point(node, length, spans, tail, last, salt, shared)
    nodes.hold_local(point, self._pages, pages)
    point.score_TC = self._unknown(text, len(tail))
    node.points.append(point)
    while node.parent is not None:
      node.below += 1
      node = node.parent
    self._points[point] = None
    self._changes += 1
    self.add_scores(point, text)
    return self._note_end(point, text.owner)

  def add_scores(self, point: nodes.Point, text: Text) -> None:
    """Fills in the head's scores of a point's text that are still unknown."""
    if text.scores is not None:
      nodes.add_scores(point, text.scores.score_LC)

  def scores(self, match: Match) -> np.ndarray:
    """Returns the head's scores of a match, float32 [m, C]; NaN if unread."""
    return nodes.scores(match.point)[: match.length]

  def _note_end(self, point: nodes.Point, owner: bytes) -> nodes.Point:
    """Notes that an owner's conversation ends at a point, and returns it."""
    self.policy.note(eviction.Event.RECORDED, point, owner)
    self.use(point)
    return point

  def drop_tree(self, cache_salt: bytes) -> None:
    """Drops all points of texts with a salt, whichever head judged them."""
    for point in list(self._points):
      if nodes.root(point).salt == cache_salt:
        self.drop(point)

  def drop(self, point: nodes.Point) -> None:
    """Removes a point, and the nodes and pages that only it needed."""
    del self._points[point]
    self._changes += 1
    self.policy.note(eviction.Event.DROPPED, point)
    node = point.node
    node.points.remove(point)
    for kind, page in point.last.items():
      self._pages.release(kind, [page])
    nodes.release_local(point, self._pages)
    while node.parent is not None:
      node.below -= 1
      if not node.below:
        if node.page >= 0:
          self._pages.release(GLOBAL, [node.page])
        del node.parent.children[node.tokens, node.salt]
      node = node.parent
    if not (node.children or node.points):
      del self._roots[node.tokens, node.salt]

  def clear(self) -> None:
    """Drops all points."""
    for point in list(self._points):
      self.drop(point)

  def evict(self) -> bool:
    """Drops the point that the policy picks; returns whether there was one."""
    if not self._points:
      return False
    self.drop(self.policy.pick(self._points))
    self.evicted += 1
    return True

  def make_room(self, needs: Mapping[str, int]) -> None:
    """Evicts points until so many pages are free; or raises pages.Full."""
    for kind, count in needs.items():
      while self._pages.free(kind) < count:
        if not self.evict():
          raise pages_lib.Full(
            f'{count} {kind} pages are needed and {self._pages.free(kind)} are'
            ' free; rows hold all others.'
          )

  def _find_point(self, node: nodes.Node, text: Text) -> nodes.Point | None:
    """Returns the point of a text at the node of its last full page."""
    tail = text.tokens[node.depth * self._page :]
    salt = text.salt(len(text.tokens))
    for point in node.points:
      if point.salt == salt and np.array_equal(point.tail, tail):
        return point
    return None

  def _path(self, text: Text) -> list[nodes.Node]:
    """Returns the root and the nodes that a text goes through; [] for none."""
    node = self._roots.get(text.tree)
    if node is None:
      return []
    path = [node]
    for page in self._split(text):
      node = node.children.get(page)
      if node is None:
        break
      path.append(node)
    return path

  def _unknown(self, text: Text, count: int) -> np.ndarray | None:
    """Returns NaN scores for `count` tokens; None without a head."""
    if text.scores is None:
      return None
    classes = text.scores.score_LC.shape[1]
    return np.full((count, classes), np.nan, np.float32)

  def _split(self, text: Text) -> Iterator[tuple[bytes, bytes]]:
    """Returns the tokens and the salt of each full page."""
    count = len(text.tokens) // self._page
    pages = [] if text.memo is None else text.memo.pages
    for index in range(len(pages), count):
      end = (index + 1) * self._page
      tokens = np.ascontiguousarray(
        text.tokens[end - self._page : end], np.int32
      )
      pages.append((tokens.tobytes(), text.salt(end)))
    return itertools.islice(pages, count)

  def _better(self, best, text: Text, point: nodes.Point, common: int):
    """Returns the longer of a match and what a point allows to resume."""
    length = min(common, len(text.tokens) - 1, point.length)
    if point.salt != text.owner:
      length = min(length, text.shared, point.shared)
    if length <= (0 if best is None else best.length):
      return best
    for kind, span in self._needed(length).items():
      indices = span.indices(-(-length // self._page))
      if not all(map(point.spans[kind].has, indices)):
        return best
    return Match(point, length)

  def _needed(self, length: int) -> dict[str, nodes.Span]:
    """Returns the pages that a resume of so many tokens reads, by ring."""
    return {
      kind: nodes.Span(pinned, max(0, length - (window - 1)) // self._page)
      for kind, (window, pinned) in self._rings.items()
    }

  def can_record(
    self, length: int, pages: Mapping[str, Mapping[int, int]]
  ) -> bool:
    """Returns whether a row's pages hold what a point of `length` needs."""
    return not self._missing(length, pages)

  def _missing(
    self, length: int, pages: Mapping[str, Mapping[int, int]]
  ) -> dict[str, set[int]]:
    """Returns the indices of pages that a point would lack, by ring."""
    count, found = -(-length // self._page), {}
    for kind, span in self._needed(length).items():
      lacking = span.indices(count) - pages.get(kind, {}).keys()
      if lacking:
        found[kind] = lacking
    return found

  def _held(
    self, length: int, pages: Mapping[str, Mapping[int, int]]
  ) -> dict[str, nodes.Span]:
    """Returns which of a row's pages a point of its text holds, by ring."""
    spans = {}
    for kind, ring in self._rings.items():
      first = -(-length // self._page)
      while first - 1 in pages[kind]:
        first -= 1
      spans[kind] = nodes.Span(ring.pinned, first)
    return spans

  def _grow(
    self, node: nodes.Node, page: tuple[bytes, bytes], text: Text, pages
  ) -> nodes.Node:
    """Returns the node of a text's next page; makes it if there is none."""
    child = node.children.get(page)
    if child is None:
      child = nodes.Node(node, node.depth + 1, *page)
      child.score_SC = self._unknown(text, self._page)
      if GLOBAL in pages:
        child.page = pages[GLOBAL][node.depth]
        self._pages.hold(GLOBAL, [child.page])
      node.children[page] = child
    return child
