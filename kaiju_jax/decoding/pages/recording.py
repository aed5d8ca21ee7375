"""At which lengths a request leaves a point, and which points it replaces.

A point costs the local pages of a whole window, which is as much as the global
pages of thousands of tokens. So few are kept, those from which a conversation
may go on:

    end of the shared prefix   another conversation with the same character
    end of the prompt          a swipe: the same prompt again
    end of the answer          the next message
    where it resumed           an edit of the last message

While a prompt is prefilled, a point follows every 8,192 tokens, so that a
cancelled prefill is not lost; the next point replaces it. When a turn ends,
what the turn before it left goes, but for the point that was resumed: it shares
most of its local pages with those behind it. A swipe is no turn: the answers to
one prompt stay until the next prompt chooses one of them.

What else goes is the tree's to say (`prefix_tree.py`): this file drops what
nobody will ask for. The sources are silent: all of this is our guess.
"""

from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
import hashlib

import numpy as np

from kaiju_jax.decoding.pages import nodes
from kaiju_jax.decoding.pages import prefix_tree

# Tokens of a prefill between two points.
EVERY = 8_192
# A message and its answer: the last turn's points hold a window before it, and
# the turn.
_TURN = 256


def stops(
  resumed: int, prompt: int, shared: int, every: int = EVERY
) -> list[int]:
  """Returns the lengths at which a prefill records, rising.

  Args:
    resumed: tokens that need no prefill.
    prompt: tokens of the prompt.
    shared: how many of the first ones everybody may share.
    every: most tokens between two points.
  """
  found = set(range(resumed + every, prompt, every)) | {prompt}
  if resumed < shared < prompt:
    found.add(shared)
  return sorted(found)


def soon(
  text: prefix_tree.Text,
  stops: Iterable[int],
  other: prefix_tree.Text,
  least: int = 1,
) -> int:
  """Returns how much of another text can be resumed once a prompt has run.

  Args:
    text: of the prompt.
    stops: the lengths at which it records.
    other: the text that could wait for it.
    least: less than so much counts as nothing.
  """
  size = min(len(text.tokens), len(other.tokens))
  if text.cache_salt != other.cache_salt:
    return 0
  # Most texts differ there, and need no comparison from the beginning.
  if size < least or text.tokens[least - 1] != other.tokens[least - 1]:
    return 0
  differs = text.tokens[:size] != other.tokens[:size]
  common = int(differs.argmax()) if differs.any() else size
  if text.owner != other.owner:
    common = min(common, text.shared, other.shared)
  most = min(common, len(other.tokens) - 1)
  # A point serves the token before its last, for a prompt that is the same.
  return max((min(x, most) for x in stops if x <= most + 1), default=0)


def local_share(
  page_bytes: Mapping[str, int], page: int, window: int, context: int
) -> float:
  """Returns the part of a cache's bytes that local pages should get.

  Both kinds of pages are then used up at once by conversations that hold the
  local pages of a window and of the last turn, and the global pages of a
  quarter of the longest context: half of it is the shared prefix, and a history
  is half as long as it may become, on average. Our guess.

  Args:
    page_bytes: of a page of each kind, over all layers of the kind.
    page: S, tokens of a page.
    window: of the local layers.
    context: tokens of the longest text.
  """
  local = -(-(window - 1 + _TURN) // page) + 1
  local_bytes = local * page_bytes[prefix_tree.LOCAL]
  global_bytes = context / 4 / page * page_bytes[prefix_tree.GLOBAL]
  return local_bytes / (local_bytes + global_bytes)


@dataclasses.dataclass(eq=False)
class _Left:
  """What the requests with one prompt left behind.

  Attributes:
    prompt: hash of it.
    points: they made these, or resumed them.
    before: what goes when a request with this prompt has its answer.
    running: requests that have not ended.
  """

  prompt: bytes
  points: list[nodes.Point] = dataclasses.field(default_factory=list)
  before: '_Left | None' = None
  running: int = 0

  def add(self, point: nodes.Point) -> None:
    if point not in self.points:
      self.points.append(point)


class Recorder:
  """Records points in a tree, and drops those that a conversation outgrew."""

  def __init__(self, tree: prefix_tree.PrefixTree, every: int = EVERY):
    """Knows no conversation yet.

    Args:
      tree: of the points.
      every: most tokens of a prefill between two of them.
    """
    self.tree = tree
    self.every = every
    self._left: dict[Hashable, _Left] = {}

  def __len__(self) -> int:
    """Returns how many conversations are known."""
    return len(self._left)

  def begin(
    self,
    prompt: prefix_tree.Text,
    match: prefix_tree.Match | None,
    conversation: Hashable | None = None,
  ) -> 'RequestPoints':
    """Returns what records a request's points.

    Args:
      prompt: its text.
      match: what it resumes.
      conversation: whatever names it; None if the request belongs to none, and
        its points stay until they are evicted.
    """
    tokens = np.ascontiguousarray(prompt.tokens, np.int32)
    left = _Left(hashlib.blake2b(tokens, digest_size=16).digest())
    if conversation is not None:
      self._forget()
      before = self._left.get(conversation)
      if before is not None:
        before.points = self._there(before.points)
      if before is not None and before.prompt == left.prompt:
        left = before
      else:
        left.before = before
        if before is not None and before.before is not None:
          # Nobody answered that prompt, so that both go now.
          before.points += self._there(before.before.points)
          before.before = None
        self._left[conversation] = left
    left.running += 1
    return RequestPoints(self, prompt, match, left)

  def _there(self, points: list[nodes.Point]) -> list[nodes.Point]:
    return [point for point in points if point in self.tree]

  def _forget(self) -> None:
    """Forgets conversations without points, once they are the most."""
    if len(self._left) > 64 + 2 * len(self.tree):
      self._left = {
        conversation: left
        for conversation, left in self._left.items()
        if left.running or self._there(left.points)
      }


class RequestPoints:
  """The points of one request.

  Attributes:
    stops: the lengths at which its prefill records, rising.
  """

  def __init__(
    self,
    recorder: Recorder,
    prompt: prefix_tree.Text,
    match: prefix_tree.Match | None,
    left: _Left,
  ):
    self._tree = recorder.tree
    self._prompt = prompt
    self._resumed = None if match is None else match.point
    self._left = left
    # In the middle of the prefill; the next point replaces it.
    self._passing: nodes.Point | None = None
    self._is_whole = False
    self._made: list[nodes.Point] = []
    self.stops = stops(
      0 if match is None else match.length,
      len(prompt.tokens),
      prompt.shared,
      recorder.every,
    )

  def forget(self) -> None:
    """Drops the points that the request made, and no others.

    What gave no numbers once would give none to whoever goes on from there. A
    point that it resumed may be another owner's, or everybody's prefix.
    """
    for point in self._made:
      if point in self._tree:
        self._tree.drop(point)
    self._passing = None
    self._left.running -= 1

  def record(
    self, text: prefix_tree.Text, pages: Mapping[str, Mapping[int, int]]
  ) -> nodes.Point:
    """Records a point: at one of the stops, or where the answer ends.

    Args:
      text: all tokens whose keys and values the row holds.
      pages: by kind {index: page}, the row's.
    """
    count, length = len(self._tree), len(text.tokens)
    point = self._tree.record(text, pages)
    is_new = len(self._tree) > count
    if is_new:
      self._made.append(point)
    if self._passing is not None and self._passing in self._tree:
      self._tree.drop(self._passing)
    self._passing = None
    self._is_whole = length >= len(self._prompt.tokens)
    if not self._is_whole and length != self._prompt.shared:
      self._passing = point if is_new else None
    elif length > self._prompt.shared:
      self._left.add(point)
    return point

  def add_scores(self, text: prefix_tree.Text) -> None:
    """Adds what a head gave the text since its points were made."""
    for point in self._made:
      if point in self._tree:
        self._tree.add_scores(point, text)

  def end(self) -> None:
    """Drops what the conversation's prompt before this one left.

    A request that is cancelled in its prompt drops nothing, because the prompt
    may come again, or the one before it.
    """
    left, before = self._left, self._left.before
    left.running -= 1
    if self._passing is not None:
      left.add(self._passing)
      self._passing = None
    if before is None or not self._is_whole:
      return
    left.before = None
    for point in before.points:
      if point is self._resumed:
        left.add(point)
      elif point in self._tree and point not in left.points:
        self._tree.drop(point)
