"""A stream of tokens that survives the loss of its replica.

When the replica dies or is drained, the prompt is submitted to another replica
of the same build, with the same seed and the tokens given out so far as
`Request.drawn`: no token is lost, drawn twice or given out twice. The reader
fails over itself while it waits for the next event, so that nothing runs on for
a client that has left. Tokens that the token-level head had not judged were
never given out; they are drawn and judged anew.

A search gives out its result at once, and starts again if it was not complete.
"""

import asyncio
import collections
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Hashable
import contextlib
import dataclasses
from typing import NamedTuple

import numpy as np

from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.serving.replies import token_stream
from kaiju_jax.serving.replies import worker as worker_lib
from kaiju_jax.serving.routing import replica as replica_lib
from kaiju_jax.serving.routing import replica_states
from kaiju_jax.serving.routing import rollout

# Seconds between two tries while all replicas are busy, at most.
_AGAIN = 1.0
# The result of a replica that drew nothing more.
_NOTHING = request_lib.Result(
  np.zeros(0, np.int32), '', np.zeros(0, np.float32), None, None, None
)


class Failover(NamedTuple):
  """How a stream continues at another replica."""

  # Submits a request to the best replica of a build (None: of any build) but
  # those given; returns the replica's state and its stream.
  resubmit: Callable[
    [request_lib.Request, str | None, list[replica_states.ReplicaState]],
    Awaitable[tuple[replica_states.ReplicaState, token_stream.TokenStream]],
  ]
  # Called once with a stream that has ended or was cancelled.
  on_close: Callable[['RoutedStream'], None]
  # After so many lost replicas in succession, with no new token, a text fails:
  # it may be what kills them.
  max_losses: int
  # Seconds for which a text that has begun waits while all replicas are busy.
  busy_timeout_s: float


class RoutedStream(token_stream.TokenStream):
  """A `TokenStream` over the streams of one replica after another."""

  def __init__(
    self,
    failover: Failover,
    request: request_lib.Request,
    state: replica_states.ReplicaState,
    inner: token_stream.TokenStream,
  ):
    """Reads a replica's stream, until that replica is lost.

    Args:
      state: the replica's.
      inner: the replica's stream.
    """
    super().__init__()
    self.failovers: int = 0  # How often it continued at another replica.
    # Whether its conversation was removed while it ran.
    self.is_removed = False
    self._losses = 0
    self._tried: list[replica_states.ReplicaState] = []
    self._failover = failover
    self._request = request
    # Read and not given out yet: those of a search, until it is complete.
    self._events: collections.deque[request_lib.Event] = collections.deque()
    self._given: list[request_lib.Event] = []
    # How many of these came from earlier replicas.
    self._earlier = 0
    self._cancelled = asyncio.Event()
    self._is_closed = self._is_refused = False
    self._attach(state, inner)

  async def __anext__(self) -> request_lib.Event:
    while not self.has_more:
      if self._result is not None:
        raise StopAsyncIteration
      await self._read_next()
    event = self._events.popleft() if self._events else await anext(self._inner)
    self._give_out(event)
    return event

  @property
  def has_more(self) -> bool:
    if self._request.guided is None:
      return bool(self._events) or self._inner.has_more
    return bool(self._events) and self._events[-1].reason is not None

  @property
  def conversation(self) -> tuple[str, Hashable | None]:
    """The owner and the conversation of its request."""
    return self._request.owner, self._request.conversation

  @property
  def rate(self) -> float | None:
    """The latest replica's tokens per second."""
    return self._inner.rate

  @property
  def reason(self) -> str | None:
    if self._result is None and self._is_closed:
      return self._inner.reason
    return super().reason

  def cancel(self) -> None:
    """Ends the sequence, also during a failover; never waits."""
    if self._result is None:
      self._cancelled.set()
      self._inner.cancel()
      self._close()

  def refuse(self) -> None:
    """Ends the sequence, and counts it as refused at its replica."""
    self._is_refused = True
    if self._is_closed:
      self._state.ended += rollout.RequestCounts(refusals=1)
    self.cancel()

  def _attach(
    self, state: replica_states.ReplicaState, inner: token_stream.TokenStream
  ) -> None:
    self._state, self._inner = state, inner
    self._is_counted = False
    self._tried.append(state)
    # Its prompt loads the replica until a token comes, itself until its end.
    self._load = 0
    self._set_load(len(self._request.tokens) + len(self._given) + 1)

  def _count_request(self, has_failed: bool) -> None:
    """Counts the request at its replica, once."""
    if not self._is_counted:
      self._is_counted = True
      self._state.ended += rollout.RequestCounts(
        1, int(has_failed), int(self._is_refused)
      )

  def _set_load(self, load: int) -> None:
    """Sets the part of its replica's load that is this stream's."""
    self._state.charge(load - self._load)
    self._load = load

  def _give_out(self, event: request_lib.Event) -> None:
    if not self._given:
      inner = self._inner
      self.waited, self.reused = inner.waited, inner.reused
      self.prompt_scores = inner.prompt_scores
    self._set_load(min(self._load, 1))
    self._losses = 0
    self._given.append(event)

  async def _read_next(self) -> None:
    """Reads an event, fails over, or ends."""
    try:
      self._events.append(await anext(self._inner))
    except StopAsyncIteration:
      result = self._inner.result()
      if result.reason != 'drained' or not await self._fail_over(None):
        self._finish(result)
    except worker_lib.Stopped as error:
      if self._cancelled.is_set():
        self._finish(_NOTHING._replace(reason='cancelled'))
      elif self._is_closed:
        raise
      elif self._given and self._given[-1].reason is not None:
        self._finish_complete(error)
      else:
        await self._fail_over(error)
    except Exception:
      self._close(has_failed=True)
      raise

  def _finish_complete(self, error: worker_lib.Stopped) -> None:
    """Ends a text whose last token was given out, but not its result."""
    if self._request.scores_prompt:
      raise error
    self._earlier = len(self._given)
    self._finish(_NOTHING._replace(reason=self._given[-1].reason))

  async def _fail_over(self, error: worker_lib.Stopped | None) -> bool:
    """Continues at another replica; False if a drained text cannot."""
    self._losses += error is not None
    self._set_load(0)
    if error is not None:
      self._count_request(has_failed=True)
    try:
      if self._losses > self._failover.max_losses:
        raise replica_lib.Lost(f'{self._losses} replicas ended under it.')
      found = await self._resubmit()
    except (request_lib.Busy, worker_lib.Stopped, TypeError, ValueError) as why:
      if error is None:
        return False
      self._close()
      raise replica_lib.Lost(f'a text cannot go on: {why}') from why
    if found is None:
      self._finish(_NOTHING._replace(reason='cancelled'))
      return True
    state, inner = found
    self._events.clear()
    self._earlier = len(self._given)
    self.failovers += 1
    self._attach(state, inner)
    if self._cancelled.is_set():
      self._set_load(0)
      inner.cancel()
    return True

  async def _resubmit(self):
    """Returns another replica's state and stream; None if cancelled."""
    request, build = self._request, None
    if self._given:
      tokens = [event.token for event in self._given]
      request = dataclasses.replace(request, drawn=tokens)
      build = self._state.build
    clock = asyncio.get_running_loop().time
    end = clock() + self._failover.busy_timeout_s
    while not self._cancelled.is_set():
      try:
        return await self._failover.resubmit(request, build, self._tried)
      except request_lib.Busy as busy:
        if busy.seconds is None or clock() >= end:
          raise
        wait = min(busy.seconds, _AGAIN)
      with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(self._cancelled.wait(), wait)
    return None

  def _finish(self, result: request_lib.Result) -> None:
    """Ends with the last replica's result, behind earlier replicas' tokens."""
    if self._earlier or self._given:
      result = result._replace(
        reused=self.reused, prompt_scores=self.prompt_scores
      )
    kept = self._given[: self._earlier]
    if kept:
      own = [event.log_probability for event in kept]
      result = result._replace(
        tokens=np.array([*(x.token for x in kept), *result.tokens], np.int32),
        text=''.join(event.text for event in kept) + result.text,
        log_probabilities=np.array(
          [*own, *result.log_probabilities], np.float32
        ),
      )
    self._result = result
    self._close()

  def _close(self, has_failed: bool = False) -> None:
    """Takes its load off its replica, and reports its end; once."""
    if not self._is_closed:
      self._is_closed = True
      self._set_load(0)
      self._count_request(has_failed)
      self._failover.on_close(self)
