"""The engine's prefix tree with an eviction that knows the future requests.

It evicts the point whose conversation's next request comes last; for a
character's prefix that is the first request of its next conversation. This is
Belady's rule, which is best where all entries have one size. Points differ in
size and share pages: the result is no upper bound, but shows how much an
eviction without foresight could still gain.
"""

import collections
from collections.abc import Mapping
from collections.abc import Sequence
import math

from kaiju_jax.decoding.pages import nodes
from kaiju_jax.decoding.pages import prefix_tree
from kaiju_jax.fleet import caches
from kaiju_jax.fleet import traffic


class Foresight(caches.Points):
  """The engine's prefix tree, with an eviction that knows the trace."""

  def __init__(
    self,
    requests: Sequence[traffic.Request],
    sizes: caches.Sizes,
    memory: float,
    local: float | None = None,
  ):
    """Makes an empty tree.

    Args:
      requests: the whole trace, in the order of serving.
      sizes: sizes of the model's pages.
      memory: bytes of both pools together.
      local: the fraction of `memory` for local pages; None for the default.
    """
    self._coming = _Coming(requests)
    super().__init__(sizes, memory, local)

  def _made_tree(self) -> prefix_tree.PrefixTree:
    return _Tree(
      self._coming,
      self._pages,
      self._sizes.page,
      self._sizes.window,
      self._clock,
    )

  def serve(self, request: traffic.Request) -> int:
    """Records the request; returns how many prompt tokens it resumed."""
    self._coming.serve(request)
    return super().serve(request)


class _Coming:
  """The numbers of the requests that are still to come.

  Attributes:
    turns: {conversation: its requests}.
    firsts: {character: the first request of each of its conversations}.
    request: the request that is being served.
  """

  def __init__(self, requests: Sequence[traffic.Request]):
    self.turns = collections.defaultdict(collections.deque)
    self.firsts = collections.defaultdict(collections.deque)
    self.request: traffic.Request | None = None
    for number, request in enumerate(requests):
      if request.session not in self.turns:
        self.firsts[request.character].append(number)
      self.turns[request.session].append(number)

  def serve(self, request: traffic.Request) -> None:
    self.request = request
    number = self.turns[request.session].popleft()
    firsts = self.firsts[request.character]
    if firsts and firsts[0] == number:
      firsts.popleft()


class _Tree(prefix_tree.PrefixTree):
  """A prefix tree that evicts the point that is needed last."""

  def __init__(self, coming: _Coming, *sizes):
    super().__init__(*sizes)
    self._coming = coming
    # {point: the requests to come that may resume there}.
    self._asked: dict[nodes.Point, collections.deque[int]] = {}

  def record(
    self, text: prefix_tree.Text, pages: Mapping[str, Mapping[int, int]]
  ) -> nodes.Point:
    point, request = super().record(text, pages), self._coming.request
    self._asked[point] = (
      self._coming.firsts[request.character]
      if len(text.tokens) <= text.shared
      else self._coming.turns[request.session]
    )
    return point

  def drop(self, point: nodes.Point) -> None:
    super().drop(point)
    del self._asked[point]

  def evict(self) -> bool:
    if not len(self):
      return False
    self.drop(max(self.points(), key=self._when))
    self.evicted += 1
    return True

  def _when(self, point: nodes.Point) -> float:
    asked = self._asked[point]
    return asked[0] if asked else math.inf
