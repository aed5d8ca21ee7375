"""Decides at which lengths the prefix cache keeps a text, and drops old ones.

A *point* is the beginning of a text, of a certain length, whose keys and values
stay in the cache so that a later prompt can resume there. It holds the local
pages of a whole window, which cost as much as the global pages of thousands of
tokens. So a request records few points, where a conversation is likely to go
on:

    end of the shared prefix   another conversation with the same character
    end of the prompt          a swipe: the same prompt again
    end of the answer          the next message

and every 8,192 tokens of a long prefill an interim point, which the next point
replaces, so that a cancelled prefill is not lost.

When a turn ends, the points of the turn before are dropped, except the one that
it resumed: an edit of the last message resumes there, and it shares most of its
local pages with later points. A swipe starts no new turn: the answers to one
prompt keep their points until the next prompt resumes one. All other removal is
eviction (`eviction.py`). All of this is our guess.
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
INTERVAL = 8_192
# Typical tokens of a message and its answer.
_TURN = 256


def choose_lengths(
  resumed: int, prompt: int, shared: int, interval: int = INTERVAL
) -> list[int]:
  """Returns the lengths at which a prefill records points, ascending.

  The prefill runs the prompt's tokens from `resumed` to `prompt`. The first
  `shared` tokens, a character's, may serve the prompts of all owners (users).
  At most `interval` tokens lie between two points.
  """
  lengths = set(range(resumed + interval, prompt, interval)) | {prompt}
  if resumed < shared < prompt:
    lengths.add(shared)
  return sorted(lengths)


def count_resumable(
  running: prefix_tree.Text,
  lengths: Iterable[int],
  waiting: prefix_tree.Text,
  minimum: int = 1,
) -> int:
  """Returns how many tokens `waiting` can resume once `running` has run.

  `running` will record points at `lengths`. A result below `minimum` may be
  given as 0, which saves a comparison of the texts.
  """
  size = min(len(running.tokens), len(waiting.tokens))
  if running.cache_salt != waiting.cache_salt or size < minimum:
    return 0
  # Most texts differ at this token, so that no longer comparison is needed.
  if running.tokens[minimum - 1] != waiting.tokens[minimum - 1]:
    return 0
  common = nodes.count_common(running.tokens, waiting.tokens)
  if running.owner != waiting.owner:
    common = min(common, running.shared, waiting.shared)
  limit = min(common, len(waiting.tokens) - 1)
  # An equal prompt resumes a point up to its last token but one.
  return max((min(x, limit) for x in lengths if x <= limit + 1), default=0)


def compute_local_fraction(
  page_bytes: Mapping[str, int], page: int, window: int, context: int
) -> float:
  """Returns the fraction of a cache's bytes that local pages should get.

  With it both kinds of pages run out at once if each conversation holds the
  local pages of a window and its last turn, and the global pages of a quarter
  of `context`, the longest text: half of it is the shared prefix, and histories
  are half full on average. Our guess. `page` is a page's tokens, `page_bytes`
  by kind its bytes over all layers of the kind.
  """
  local = -(-(window - 1 + _TURN) // page) + 1
  local_bytes = local * page_bytes[prefix_tree.LOCAL]
  global_bytes = context / 4 / page * page_bytes[prefix_tree.GLOBAL]
  return local_bytes / (local_bytes + global_bytes)


@dataclasses.dataclass(eq=False)
class _PromptPoints:
  """A group: the points of a conversation's requests with the same prompt."""

  # The prompt's digest.
  digest: bytes
  # Recorded by the requests, or resumed by them from the previous turn.
  points: list[nodes.Point] = dataclasses.field(default_factory=list)
  # The previous prompt's, dropped once a request ends that ran all of this one.
  previous: '_PromptPoints | None' = None
  # How many of the requests have not ended.
  running: int = 0
  # Whether the conversation was removed, so that its requests drop at their end
  # what they recorded since.
  is_removed: bool = False

  def add(self, point: nodes.Point) -> None:
    if point not in self.points:
      self.points.append(point)


class ConversationPoints(NamedTuple):
  """The points of one conversation's latest prompt, and of the one before."""

  # The key that all requests of the conversation have.
  conversation: Hashable
  # The digest of its latest prompt.
  digest: bytes
  points: tuple[nodes.Point, ...]


class Recorder:
  """Makes a `RequestRecorder` per request; knows each conversation's points."""

  def __init__(self, tree: prefix_tree.PrefixTree, interval: int = INTERVAL):
    self.tree = tree
    self._interval = interval
    # By conversation, the points of its latest prompt.
    self._latest: dict[Hashable, _PromptPoints] = {}
    # Those of the requests that have not ended.
    self._open: set[RequestRecorder] = set()

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
  ) -> 'RequestRecorder':
    """Returns the recorder of a new request, which resumes `match`.

    `conversation` is any key that all turns of a conversation have; without
    one, only eviction drops the points.
    """
    tokens = np.ascontiguousarray(prompt.tokens, np.int32)
    digest = hashlib.blake2b(tokens, digest_size=16).digest()
    if conversation is None:
      group = _PromptPoints(digest)
    else:
      self._drop_empty()
      group = self._find_group(conversation, digest)
    group.running += 1
    lengths = choose_lengths(
      0 if match is None else match.length,
      len(tokens),
      prompt.shared,
      self._interval,
    )
    recorder = RequestRecorder(self, prompt, match, group, lengths)
    self._open.add(recorder)
    return recorder

  def _find_group(self, conversation: Hashable, digest: bytes) -> _PromptPoints:
    """Returns the group of a conversation's prompt, now its latest."""
    previous = self._latest.get(conversation)
    if previous is not None:
      previous.points = self._still_cached(previous.points)
      if previous.digest == digest:
        return previous
      if previous.previous is not None:
        # No request has run all of that prompt: its points are dropped later,
        # with those of the one before.
        previous.points += self._still_cached(previous.previous.points)
        previous.previous = None
    group = _PromptPoints(digest, previous=previous)
    self._latest[conversation] = group
    return group

  def conversations(self) -> Iterator[ConversationPoints]:
    """Yields each conversation that has points in the cache."""
    for conversation, group in self._latest.items():
      previous, found = group.previous, []
      if previous is not None:
        found = self._still_cached(previous.points)
      found += [x for x in self._still_cached(group.points) if x not in found]
      if found:
        yield ConversationPoints(conversation, group.digest, tuple(found))

  def restore(self, saved: ConversationPoints) -> None:
    """Adds points of a conversation that another process had saved."""
    group = self._latest.setdefault(
      saved.conversation, _PromptPoints(saved.digest)
    )
    for point in saved.points:
      group.add(point)

  def remove(self, conversation: Hashable) -> None:
    """Drops a conversation's points.

    Its running requests drop at their end what they record until then.
    """
    group = self._latest.pop(conversation, None)
    while group is not None:
      group.is_removed = True
      for point in self._still_cached(group.points):
        self.tree.drop(point)
      group = group.previous

  def drop_tree(self, cache_salt: bytes) -> None:
    """Drops the points of texts with a cache salt, now and as requests end."""
    self.tree.drop_tree(cache_salt)
    for one in self._open:
      one.is_dropped |= one.prompt.cache_salt == cache_salt

  def close_request(self, recorder: 'RequestRecorder') -> None:
    """Notes that a request has ended."""
    self._open.remove(recorder)

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


class RequestRecorder:
  """Records the points of one request, and drops those of the turn before."""

  def __init__(
    self,
    recorder: Recorder,
    prompt: prefix_tree.Text,
    match: prefix_tree.Match | None,
    group: _PromptPoints,
    lengths: list[int],
  ):
    self.prompt = prompt
    # The lengths at which its prefill records, ascending.
    self.lengths = lengths
    # Whether its tree was dropped, so that its points go at its end.
    self.is_dropped = False
    self._recorder, self._tree = recorder, recorder.tree
    self._resumed = None if match is None else match.point
    self._group = group
    # Every point that it made, and the interim one, if that is the last.
    self._made: list[nodes.Point] = []
    self._interim: nodes.Point | None = None
    # Whether a point holds the whole prompt.
    self._is_whole = False

  def record(
    self, text: prefix_tree.Text, pages: Mapping[str, Mapping[int, int]]
  ) -> nodes.Point:
    """Records a point, in place of an interim one.

    `text` has one of `lengths`, or all tokens of the request. The arguments are
    those of `PrefixTree.record`.
    """
    count, length = len(self._tree), len(text.tokens)
    point = self._tree.record(text, pages)
    is_new = len(self._tree) > count
    if is_new:
      self._made.append(point)
    if self._interim is not None and self._interim in self._tree:
      self._tree.drop(self._interim)
    self._interim = None
    self._is_whole = length >= len(self.prompt.tokens)
    if not self._is_whole and length != self.prompt.shared:
      self._interim = point if is_new else None
    elif length > self.prompt.shared:
      self._group.add(point)
    return point

  def add_scores(self, text: prefix_tree.Text) -> None:
    """Adds the head's scores of tokens that the host read later (`nodes`)."""
    for point in self._made:
      if point in self._tree:
        self._tree.add_scores(point, text)

  def end(self) -> None:
    """Ends the request; drops the previous turn's points but the resumed one.

    A request that was cancelled within its prompt drops nothing, because this
    prompt or the previous one may come again.
    """
    self._recorder.close_request(self)
    group, previous = self._group, self._group.previous
    group.running -= 1
    if self.is_dropped:
      self._drop_made()
    if group.is_removed:
      self._drop_made(self.prompt.shared + 1)
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

  def discard(self) -> None:
    """Ends a request whose logits were not finite; drops the points it made.

    A request that resumed one would fail too. The point that this one resumed
    stays, because it may belong to another owner, or to all.
    """
    self._recorder.close_request(self)
    self._drop_made()
    self._interim = None
    self._group.running -= 1

  def _drop_made(self, minimum: int = 0) -> None:
    """Drops the points that it made of at least `minimum` tokens."""
    for point in self._made:
      if point in self._tree and point.length >= minimum:
        self._tree.drop(point)
