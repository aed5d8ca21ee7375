"""Decides where the prefix cache gets points, and drops superseded ones.

A point is a snapshot of a text in the cache that a later prompt can resume. It
holds the local pages of a whole window, which cost as much as the global pages
of thousands of tokens. So few are made, where conversations are likely to go
on:

    end of the shared prefix   another conversation with the same character
    end of the prompt          a swipe: the same prompt again
    end of the answer          the next message
    where it resumed           an edit of the last message

A long prefill also records a point every 8,192 tokens, in place of the one
before it, so that a cancelled prefill is not lost. When a turn ends, the points
of the previous turn are dropped, except the one that was resumed: it shares
most of its local pages with later points. A swipe starts no new turn: the
answers to one prompt keep their points until the next prompt chooses one. All
other removal is eviction. All of this is our guess.
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
  """The points of a conversation's requests with one and the same prompt."""

  # The prompt's digest.
  prompt: bytes
  # Recorded by the requests, or resumed by them from the previous turn.
  points: list[nodes.Point] = dataclasses.field(default_factory=list)
  # The previous prompt's, dropped once a request of this one has an answer.
  previous: '_PromptPoints | None' = None
  # Requests that have not ended.
  running: int = 0
  # Whether the conversation was removed: points made since go at their end.
  is_removed: bool = False

  def add(self, point: nodes.Point) -> None:
    if point not in self.points:
      self.points.append(point)


class RecordedPrompt(NamedTuple):
  """A conversation's name, its latest prompt's digest, and its points."""

  conversation: Hashable
  prompt: bytes
  points: tuple[nodes.Point, ...]


class Recorder:
  """Starts the recording of requests, and keeps each conversation's points."""

  def __init__(self, tree: prefix_tree.PrefixTree, every: int = EVERY):
    self.tree = tree
    self.every = every
    # By conversation, the points of its latest prompt.
    self._latest: dict[Hashable, _PromptPoints] = {}
    # The requests that have not ended.
    self._open: set[RequestPoints] = set()

  def __len__(self) -> int:
    """Returns the number of conversations whose points it keeps."""
    return len(self._latest)

  @property
  def is_idle(self) -> bool:
    """Whether no request records."""
    return not self._open

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
    digest = hashlib.blake2b(tokens, digest_size=16).digest()
    if conversation is None:
      group = _PromptPoints(digest)
    else:
      self._drop_empty()
      group = self._find_group(conversation, digest)
    group.running += 1
    points = RequestPoints(self, prompt, match, group)
    self._open.add(points)
    return points

  def _find_group(self, conversation: Hashable, digest: bytes) -> _PromptPoints:
    """Returns the points of a conversation's prompt, now its latest."""
    previous = self._latest.get(conversation)
    if previous is not None:
      previous.points = self._still_cached(previous.points)
      if previous.prompt == digest:
        return previous
      if previous.previous is not None:
        # That prompt got no answer, so that the points of both are dropped.
        previous.points += self._still_cached(previous.previous.points)
        previous.previous = None
    group = _PromptPoints(digest, previous=previous)
    self._latest[conversation] = group
    return group

  def recorded_prompts(self) -> Iterator[RecordedPrompt]:
    """Yields each conversation that has points, and these points."""
    for conversation, group in self._latest.items():
      previous, found = group.previous, []
      if previous is not None:
        found = self._still_cached(previous.points)
      found += [x for x in self._still_cached(group.points) if x not in found]
      if found:
        yield RecordedPrompt(conversation, group.prompt, tuple(found))

  def restore(self, found: RecordedPrompt) -> None:
    """Takes over the points of a conversation of another process."""
    group = self._latest.setdefault(
      found.conversation, _PromptPoints(found.prompt)
    )
    for point in found.points:
      group.add(point)

  def remove(self, conversation: Hashable) -> None:
    """Drops all points of a conversation, and those that it still makes."""
    group = self._latest.pop(conversation, None)
    while group is not None:
      group.is_removed = True
      for point in self._still_cached(group.points):
        self.tree.drop(point)
      group = group.previous

  def drop_tree(self, cache_salt: bytes) -> None:
    """Drops all points of texts with a salt, and those that they still make."""
    self.tree.drop_tree(cache_salt)
    for one in self._open:
      one.is_dropped |= one.cache_salt == cache_salt

  def close_request(self, points: 'RequestPoints') -> None:
    """Notes that a request has ended."""
    self._open.remove(points)

  def _still_cached(self, points: list[nodes.Point]) -> list[nodes.Point]:
    return [point for point in points if point in self.tree]

  def _drop_empty(self) -> None:
    """Forgets conversations without points, once they are many."""
    if len(self._latest) > 64 + 2 * len(self.tree):
      self._latest = {
        conversation: group
        for conversation, group in self._latest.items()
        if group.running or self._still_cached(group.points)
      }


class RequestPoints:
  """The points of one request."""

  def __init__(
    self,
    recorder: Recorder,
    prompt: prefix_tree.Text,
    match: prefix_tree.Match | None,
    group: _PromptPoints,
  ):
    # Whether its tree was dropped, so that its points go at its end.
    self.is_dropped = False
    self._recorder, self._tree = recorder, recorder.tree
    self._prompt = prompt
    self._resumed = None if match is None else match.point
    self._group = group
    # A point in the middle of the prefill; the next point replaces it.
    self._interim: nodes.Point | None = None
    self._is_whole = False
    self._made: list[nodes.Point] = []
    # The lengths at which its prefill records, ascending.
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
    if self._interim is not None and self._interim in self._tree:
      self._tree.drop(self._interim)
    self._interim = None
    self._is_whole = length >= len(self._prompt.tokens)
    if not self._is_whole and length != self._prompt.shared:
      self._interim = point if is_new else None
    elif length > self._prompt.shared:
      self._group.add(point)
    return point

  def add_scores(self, text: prefix_tree.Text) -> None:
    """Adds scores that were read after the request's points were made."""
    for point in self._made:
      if point in self._tree:
        self._tree.add_scores(point, text)

  def end(self) -> None:
    """Ends the request; drops the last turn's points but the resumed one.

    A request cancelled within its prompt drops nothing, because that prompt or
    the previous one may come again.
    """
    self._recorder.close_request(self)
    group, previous = self._group, self._group.previous
    group.running -= 1
    if self.is_dropped:
      self._drop_made()
    if group.is_removed:
      self._drop_made(self._prompt.shared + 1)
      return
    if self._interim is not None:
      group.add(self._interim)
      self._interim = None
    if previous is None or not self._is_whole:
      return
    group.previous = None
    for point in previous.points:
      if point is self._resumed:
        group.add(point)
      elif point in self._tree and point not in group.points:
        self._tree.drop(point)

  def forget(self) -> None:
    """Ends a request whose logits were not finite; drops the points it made.

    A request that resumed one would fail too. The point that the failed request
    resumed stays, because it may belong to another owner, or to all.
    """
    self._recorder.close_request(self)
    self._drop_made()
    self._interim = None
    self._group.running -= 1

  def _drop_made(self, least: int = 0) -> None:
    """Drops the points that it made of `least` tokens or more."""
    for point in self._made:
      if point in self._tree and point.length >= least:
        self._tree.drop(point)
