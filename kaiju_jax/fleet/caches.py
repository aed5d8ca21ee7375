"""Simulated caches of prompts: points, blocks, and an oracle.

Each serves requests one after another and keeps what a request leaves behind.
They are compared at equal bytes. They differ in what a prompt can resume:

    Points    the engine's own `prefix_tree.PrefixTree` of points: texts whose
              keys and values are kept
    Blocks    pages of 64 tokens as entries of their own, as other engines keep
              them; the least recently used is dropped first. A prompt resumes
              where its global pages are kept, and the local pages of the window
    Oracle    every token that it ever saw; no cache has more hits

No tokens are generated. A simulated row takes, holds and releases pages of the
real tree as the engine's rows do. The pages of attention sinks are left out.
"""

from collections.abc import Callable
from collections.abc import Mapping
import hashlib
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.decoding.pages import eviction
from kaiju_jax.decoding.pages import nodes
from kaiju_jax.decoding.pages import pages as pages_lib
from kaiju_jax.decoding.pages import prefix_tree
from kaiju_jax.decoding.pages import recording
from kaiju_jax.fleet import traffic

_KINDS = prefix_tree.GLOBAL, prefix_tree.LOCAL


class CacheSizes(NamedTuple):
  """Bytes and tokens of a model's pages."""

  page: int  # S, tokens of a page.
  window: int  # Tokens of the local layers' window.
  # {kind: bytes of a page, over all layers of the kind}.
  page_bytes: Mapping[str, int]
  context: int  # Tokens of the longest text.

  @property
  def token_bytes(self) -> float:
    """Returns the bytes per token whose keys and values are all kept."""
    return sum(self.page_bytes.values()) / self.page

  @property
  def local_fraction(self) -> float:
    """Returns the fraction of a cache's bytes for local pages, by default."""
    return recording.compute_local_fraction(
      self.page_bytes, self.page, self.window, self.context
    )


class Oracle:
  """A cache that keeps everything.

  Attributes:
    tokens: tokens seen; tokens that follow different texts count separately.
  """

  def __init__(self):
    self._chains: dict[tuple[int, int], int] = {}
    self.tokens: int = 0

  def serve(self, request: traffic.Request) -> int:
    """Returns how many of the prompt's tokens the oracle had seen."""
    hits, is_known, chain = 0, True, 0
    for piece in (*request.prompt, request.answer):
      link = chain, piece.number
      is_known = is_known and link in self._chains
      if is_known:
        hits += len(piece.tokens)
      elif link not in self._chains:
        self.tokens += len(piece.tokens)
      chain = self._chains.setdefault(link, len(self._chains) + 1)
    return min(hits, request.length - 1)


# Makes a policy of eviction: the tree's pages, and a clock of seconds.
MakePolicy = Callable[[pages_lib.Pages, Callable[[], float]], eviction.Policy]


def least_recently_used(*unused: Any) -> eviction.Policy:
  """Makes the plain policy, to compare the engine's with."""
  return eviction.LeastRecentlyUsed()


class Points:
  """The engine's prefix tree, with pools of a given size."""

  def __init__(
    self,
    sizes: CacheSizes,
    memory: float,
    local: float | None = None,
    between_turns: bool = True,
    make_policy: MakePolicy = eviction.LeastWorth,
  ):
    """Makes an empty tree.

    Args:
      sizes: sizes of the model's pages.
      memory: bytes of both pools together.
      local: the fraction of `memory` for local pages; None for the default.
      between_turns: whether prompts and answers are recorded; otherwise only
        prefixes are.
      make_policy: makes the policy of eviction; the engine's by default.
    """
    self._sizes = sizes
    self._seconds = 0.0
    local = sizes.local_fraction if local is None else local
    share = {prefix_tree.GLOBAL: 1 - local, prefix_tree.LOCAL: local}
    self.pages: pages_lib.Pages = pages_lib.Pages(
      {
        kind: int(memory * share[kind] / sizes.page_bytes[kind])
        for kind in _KINDS
      }
    )
    self.tree: prefix_tree.PrefixTree = prefix_tree.PrefixTree(
      self.pages,
      sizes.page,
      {prefix_tree.LOCAL: prefix_tree.Ring(sizes.window)},
      make_policy(self.pages, lambda: self._seconds),
    )
    self._recorder = recording.Recorder(self.tree)
    self._between_turns = between_turns

  def serve(self, request: traffic.Request) -> int:
    """Records the request; returns how many prompt tokens it resumed."""
    self._seconds = request.seconds
    prompt = request.tokens()
    whole = np.concatenate([prompt, request.answer.tokens])
    owner, memo = request.owner, nodes.Memo()

    def text(length: int) -> prefix_tree.Text:
      tokens = whole[:length]
      return prefix_tree.Text(tokens, request.shared, owner, memo=memo)

    row = _Row(self.tree, self.pages, self._sizes)
    match = self.tree.match(text(len(prompt)))
    if match is not None:
      self.tree.touch(match, owner)
    recorder = self._recorder.open_request(
      text(len(prompt)), match, request.session
    )
    try:
      row.resume(match)
      for length in (*recorder.lengths, len(whole)):
        row.grow(length)
        if self._between_turns or length <= request.shared:
          recorder.record(text(length), row.tables)
    except pages_lib.Full:
      pass  # The request alone exceeds the pools: nothing more is recorded.
    finally:
      row.close()
      recorder.end()
    return 0 if match is None else match.length


class _Row:
  """The page tables of a row while a request runs."""

  def __init__(self, tree, pages: pages_lib.Pages, sizes: CacheSizes):
    self._tree = tree
    self._pages = pages
    self._sizes = sizes
    self.tables: dict[str, dict[int, int]] = {kind: {} for kind in _KINDS}

  def resume(self, match: prefix_tree.Match | None) -> None:
    """Holds the pages of a match, and copies the last one if it is partial."""
    if match is None:
      return
    tables = self._tree.pages(match)
    for kind, table in tables.items():
      self._pages.hold(kind, table.values())
    self.tables = tables
    last = match.length // self._sizes.page
    if match.length % self._sizes.page:
      self._tree.make_room(dict.fromkeys(_KINDS, 1))
      for kind, table in self.tables.items():
        (copy,) = self._pages.take(kind, 1)
        self._pages.release(kind, [table[last]])
        table[last] = copy

  def grow(self, length: int) -> None:
    """Takes the pages of a longer text; releases those behind the window."""
    S, window = self._sizes.page, self._sizes.window
    count = -(-length // S)
    lowest = max(0, length - (window - 1)) // S
    ring = self.tables[prefix_tree.LOCAL]
    for index in [index for index in ring if index < lowest]:
      self._pages.release(prefix_tree.LOCAL, [ring.pop(index)])
    for kind, first in zip(_KINDS, (0, lowest)):
      table = self.tables[kind]
      missing = [index for index in range(first, count) if index not in table]
      self._tree.make_room({kind: len(missing)})
      for index, page in zip(missing, self._pages.take(kind, len(missing))):
        table[index] = page

  def close(self) -> None:
    for kind, table in self.tables.items():
      self._pages.release(kind, table.values())


class Blocks:
  """Pages as separate entries; the least recently used is dropped first.

  Pages of both kinds share one budget of bytes and one order of use. A request
  touches its last pages first, so that a prefix outlives what follows it.
  """

  def __init__(self, sizes: CacheSizes, memory: float):
    self._sizes = sizes
    self._left = memory
    # (kind, hash of all tokens to the page's end), the least recent first.
    self._held: dict[tuple[str, bytes], None] = {}

  def serve(self, request: traffic.Request) -> int:
    """Stores the request's pages; returns the prompt tokens that it resumed."""
    prompt = request.tokens()
    keys = self._keys(np.concatenate([prompt, request.answer.tokens]))
    blocks = self._resumed(keys, (len(prompt) - 1) // self._sizes.page)
    self._use(keys, blocks)
    return blocks * self._sizes.page

  def _keys(self, tokens: np.ndarray) -> list[bytes]:
    S, key, keys = self._sizes.page, b'', []
    for begin in range(0, len(tokens) - S + 1, S):
      page = tokens[begin : begin + S].tobytes()
      key = hashlib.blake2b(key + page, digest_size=16).digest()
      keys.append(key)
    return keys

  def _resumed(self, keys: list[bytes], most: int) -> int:
    """Returns how many of the first `most` pages can be resumed."""
    reach = -(-(self._sizes.window - 1) // self._sizes.page)
    best = together = 0
    for index, key in enumerate(keys[:most]):
      if (prefix_tree.GLOBAL, key) not in self._held:
        break
      is_held = (prefix_tree.LOCAL, key) in self._held
      together = together + 1 if is_held else 0
      if together >= min(index + 1, reach):
        best = index + 1
    return best

  def _use(self, keys: list[bytes], blocks: int) -> None:
    reach = -(-(self._sizes.window - 1) // self._sizes.page)
    for index in reversed(range(len(keys))):
      kinds = _KINDS if index >= blocks - reach else _KINDS[:1]
      for kind in kinds:
        entry = kind, keys[index]
        if entry in self._held:
          del self._held[entry]
        else:
          self._left -= self._sizes.page_bytes[kind]
        self._held[entry] = None
    while self._left < 0:
      kind, key = next(iter(self._held))
      del self._held[kind, key]
      self._left += self._sizes.page_bytes[kind]
