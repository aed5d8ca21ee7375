"""Recording: makes points of a request's text, and drops outgrown ones.

A point is a text that a later prompt can resume from the cache. It holds the
local pages of a whole window, which cost as much as the global pages of
thousands of tokens. So few are made, where conversations are likely to go on:

    end of the shared prefix   another conversation with the same character
    end of the prompt          a swipe: the same prompt again
    end of the answer          the next message
    where it resumed           an edit of the last message

A long prefill also records a point every 8,192 tokens, in place of the one
before it, so that a cancelled prefill is not lost. When a turn ends, the points
of the turn before it are dropped, except the one that was resumed: it shares
most of its local pages with later points. A swipe starts no new turn: the
answers to one prompt keep their points until the next prompt chooses one. All
other removal is eviction (`prefix_tree.py`). The sources are silent: all of
this is our guess.
"""

from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import hashlib
from typing import NamedTuple

import numpy as np

from kaiju_jax.decoding.pages import nodes
from kaiju_jax.decoding.pages import prefix_tree

# Tokens of a prefill between two points.
EVERY = 8_192
# Tokens of a message and its answer: the last turn's points hold the window
# before the turn, and the turn.
_TURN = 256


def find_stops(
  resumed: int, prompt: int, shared: int, every: int = EVERY
) -> list[int]:
  """Returns the lengths at which a prefill records points, ascending.

  `resumed` tokens of the prompt need no prefill; all owners may share the first
  `shared`; at most `every` tokens lie between two points.
  """
  found = set(range(resumed + every, prompt, every)) | {prompt}
  if resumed < shared < prompt:
    found.add(shared)
  return sorted(found)


def count_resumable(
  text: prefix_tree.Text,
  stops: Iterable[int],
  other: prefix_tree.Text,
  least: int = 1,
) -> int:
  """Returns how many tokens of `other` can be resumed once `text` has run.

  Running `text` records points at the lengths `stops`. To save time the result
  may be 0 where the two texts share fewer than `least` tokens.
  """
  size = min(len(text.tokens), len(other.tokens))
  if text.cache_salt != other.cache_salt:
    return 0
  # Most texts differ at this token, so that no longer comparison is needed.
  if size < least or text.tokens[least - 1] != other.tokens[least - 1]:
    return 0
  differs = text.tokens[:size] != other.tokens[:size]
  common = int(differs.argmax()) if differs.any() else size
  if text.owner != other.owner:
    common = min(common, text.shared, other.shared)
  most = min(common, len(other.tokens) - 1)
  # An equal prompt resumes a point up to its last token but one.
  return max((min(x, most) for x in stops if x <= most + 1), default=0)


def local_share(
  page_bytes: Mapping[str, int], page: int, window: int, context: int
) -> float:
  """Returns the fraction of a cache's bytes that local pages should get.

  With it both kinds of pages run out at once if each conversation holds the
  local pages of a window and its last turn, and the global pages of a quarter
  of `context`, the longest text: half of it is the shared prefix, and histories
  are half full on average. Our guess. `page_bytes` is over all layers of a
  kind.
  """
  local = -(-(window - 1 + _TURN) // page) + 1
  local_bytes = local * page_bytes[prefix_tree.LOCAL]
  global_bytes = context / 4 / page * page_bytes[prefix_tree.GLOBAL]
  return local_bytes / (local_bytes + global_bytes)


@dataclasses.dataclass(eq=False)
class _PromptPoints:
  """The points of a conversation's requests with one and the same prompt.

  They recorded `points`, or resumed them from the turn before. The points of
  `before`, the previous prompt, are dropped once a request of this one has an
  answer. `running` counts the requests that have not ended. Once the
  conversation `is_removed`, what they still record is dropped at their end.
  """

  prompt: bytes
  points: list[nodes.Point] = dataclasses.field(default_factory=list)
  before: '_PromptPoints | None' = None
  running: int = 0
  is_removed: bool = False

  def add(self, point: nodes.Point) -> None:
    if point not in self.points:
      self.points.append(point)


class Conversation(NamedTuple):
  """A conversation's name, the digest of its latest prompt, and its points."""

  name: Hashable
  prompt: bytes
  points: tuple[nodes.Point, ...]


class Recorder:
  """Starts the recording of requests, and keeps each conversation's points."""

  def __init__(self, tree: prefix_tree.PrefixTree, every: int = EVERY):
    self.tree = tree
    self.every = every
    self._latest: dict[Hashable, _PromptPoints] = {}
    # The requests that have not ended.
    self._open: set[RequestPoints] = set()

  def __len__(self) -> int:
    """Returns the number of conversations whose points it keeps."""
    return len(self._latest)

  def open_request(
    self,
    prompt: prefix_tree.Text,
    match: prefix_tree.Match | None,
    conversation: Hashable | None = None,
  ) -> 'RequestPoints':
    """Returns an object that records one request's points.

    The request resumes `match`. `conversation` is any key that all turns of a
    conversation have; without one, only eviction drops the points.
    """
    tokens = np.ascontiguousarray(prompt.tokens, np.int32)
    ours = _PromptPoints(hashlib.blake2b(tokens, digest_size=16).digest())
    if conversation is not None:
      self._forget()
      before = self._latest.get(conversation)
      if before is not None:
        before.points = self._there(before.points)
      if before is not None and before.prompt == ours.prompt:
        ours = before
      else:
        ours.before = before
        if before is not None and before.before is not None:
          # That prompt got no answer, so that the points of both are dropped.
          before.points += self._there(before.before.points)
          before.before = None
        self._latest[conversation] = ours
    ours.running += 1
    points = RequestPoints(self, prompt, match, ours)
    self._open.add(points)
    return points

  def conversations(self) -> Iterator[Conversation]:
    """Yields the conversations that have points, and these points."""
    for conversation, ours in self._latest.items():
      found = [] if ours.before is None else self._there(ours.before.points)
      found += [x for x in self._there(ours.points) if x not in found]
      if found:
        yield Conversation(conversation, ours.prompt, tuple(found))

  def restore(self, found: Conversation) -> None:
    """Takes over the points of a conversation of another process."""
    ours = self._latest.setdefault(found.name, _PromptPoints(found.prompt))
    for point in found.points:
      ours.add(point)

  def remove(self, conversation: Hashable) -> None:
    """Drops all points of a conversation, and those that it still makes."""
    ours = self._latest.pop(conversation, None)
    while ours is not None:
      ours.is_removed = True
      for point in self._there(ours.points):
        self.tree.drop(point)
      ours = ours.before

  def drop_tree(self, cache_salt: bytes) -> None:
    """Drops all points of texts with a salt, and those that they still make."""
    self.tree.drop_tree(cache_salt)
    for one in self._open:
      one.is_dropped |= one.cache_salt == cache_salt

  def close_request(self, points: 'RequestPoints') -> None:
    """Notes that a request has ended."""
    self._open.remove(points)

  def _there(self, points: list[nodes.Point]) -> list[nodes.Point]:
    return [point for point in points if point in self.tree]

  def _forget(self) -> None:
    """Forgets conversations without points, once they are many."""
    if len(self._latest) > 64 + 2 * len(self.tree):
      self._latest = {
        conversation: ours
        for conversation, ours in self._latest.items()
        if ours.running or self._there(ours.points)
      }


class RequestPoints:
  """The points of one request.

  Attributes:
    stops: the lengths at which its prefill records, ascending.
    is_dropped: whether its tree was dropped, so that its points go at its end.
  """

  def __init__(
    self,
    recorder: Recorder,
    prompt: prefix_tree.Text,
    match: prefix_tree.Match | None,
    ours: _PromptPoints,
  ):
    self.is_dropped = False
    self._recorder, self._tree = recorder, recorder.tree
    self._prompt = prompt
    self._resumed = None if match is None else match.point
    self._ours = ours
    # A point in the middle of the prefill; the next point replaces it.
    self._passing: nodes.Point | None = None
    self._is_whole = False
    self._made: list[nodes.Point] = []
    self.stops = find_stops(
      0 if match is None else match.length,
      len(prompt.tokens),
      prompt.shared,
      recorder.every,
    )

  @property
  def cache_salt(self) -> bytes:
    """The cache salt of its text."""
    return self._prompt.cache_salt

  def forget(self) -> None:
    """Drops the points that a request made whose logits were not finite.

    A request that resumed one would fail too. The point that the failed request
    resumed stays, because it may belong to another owner, or to all.
    """
    self._recorder.close_request(self)
    self._drop_made()
    self._passing = None
    self._ours.running -= 1

  def _drop_made(self, least: int = 0) -> None:
    """Drops the points that it made of `least` tokens or more."""
    for point in self._made:
      if point in self._tree and point.length >= least:
        self._tree.drop(point)

  def record(
    self, text: prefix_tree.Text, pages: Mapping[str, Mapping[int, int]]
  ) -> nodes.Point:
    """Records a point at one of the stops or at the end of the answer.

    A point in the middle of the prefill is dropped when the next one is made.
    The arguments are those of `PrefixTree.record`.
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
      self._ours.add(point)
    return point

  def add_scores(self, text: prefix_tree.Text) -> None:
    """Adds scores that were read after the request's points were made."""
    for point in self._made:
      if point in self._tree:
        self._tree.add_scores(point, text)

  def end(self) -> None:
    """Ends the request; drops the last turn's points but the resumed one.

    A request cancelled within its prompt drops nothing, because that prompt or
    the one before it may come again.
    """
    self._recorder.close_request(self)
    ours, before = self._ours, self._ours.before
    ours.running -= 1
    if self.is_dropped:
      self._drop_made()
    if ours.is_removed:
      self._drop_made(self._prompt.shared + 1)
      return
    if self._passing is not None:
      ours.add(self._passing)
      self._passing = None
    if before is None or not self._is_whole:
      return
    ours.before = None
    for point in before.points:
      if point is self._resumed:
        ours.add(point)
      elif point in self._tree and point not in ours.points:
        self._tree.drop(point)
