"""The engine's prefix tree with an eviction that knows the future requests.

It evicts the point whose conversation's next request comes last; for a
character's prefix that is the first request of its next conversation. This is
Belady's rule, which is best where all entries have one size. Points differ in
size and share pages: the result is no upper bound, but shows how much an
eviction without foresight could still gain.
"""

import collections
from collections.abc import Iterable
from collections.abc import Sequence
import math

from kaiju_jax.decoding.pages import eviction
from kaiju_jax.decoding.pages import nodes
from kaiju_jax.fleet import caches
from kaiju_jax.fleet import traffic


class Foresight(caches.Points):
  """The engine's prefix tree, with an eviction that knows the trace."""

  def __init__(
    self,
    requests: Sequence[traffic.Request],
    sizes: caches.CacheSizes,
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
    super().__init__(
      sizes, memory, local, make_policy=lambda *unused: self._coming
    )

  def serve(self, request: traffic.Request) -> int:
    """Records the request; returns how many prompt tokens it resumed."""
    self._coming.serve(request)
    return super().serve(request)


class _Coming:
  """The policy that knows the requests to come, by number."""

  def __init__(self, requests: Sequence[traffic.Request]):
    # {conversation: its requests}.
    self._turns = collections.defaultdict(collections.deque)
    # {character: the first request of each of its conversations}.
    self._firsts = collections.defaultdict(collections.deque)
    # {point: the requests to come that may resume there}.
    self._later: dict[nodes.Point, collections.deque[int]] = {}
    self._request: traffic.Request | None = None
    for number, request in enumerate(requests):
      if request.session not in self._turns:
        self._firsts[request.character].append(number)
      self._turns[request.session].append(number)

  def serve(self, request: traffic.Request) -> None:
    self._request = request
    number = self._turns[request.session].popleft()
    firsts = self._firsts[request.character]
    if firsts and firsts[0] == number:
      firsts.popleft()

  def note(
    self, event: eviction.Event, point: nodes.Point, owner: bytes = b''
  ) -> None:
    if event is eviction.Event.DROPPED:
      del self._later[point]
    elif event is eviction.Event.RECORDED:
      self._later[point] = (
        self._firsts[self._request.character]
        if point.length <= point.shared
        else self._turns[self._request.session]
      )

  def pick(self, points: Iterable[nodes.Point]) -> nodes.Point:
    """Returns the point that is asked for last."""
    return max(points, key=self._when)

  def _when(self, point: nodes.Point) -> float:
    later = self._later[point]
    return later[0] if later else math.inf
