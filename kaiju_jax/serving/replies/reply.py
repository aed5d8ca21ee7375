"""Turns the tokens of a reply into text that may be shown to the user.

    reply = Reply(stream, moderator.watch(age, owner))
    async for piece in reply: ...
    reply.finish, reply.text, reply.tokens

Tokens that wait in the stream's buffer become one piece, so that a slow reader
catches up. Text that the hold-back holds comes with a later piece, or never
(`safety/release.py`).
"""

import asyncio
import collections
from collections.abc import AsyncIterator
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import contextlib
import itertools
from typing import NamedTuple

import numpy as np

from kaiju_jax.decoding.requests import alternatives as alternatives_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.http import limits
from kaiju_jax.serving.replies import reasoning as reasoning_lib
from kaiju_jax.serving.replies import token_stream
from kaiju_jax.serving.replies import worker as worker_lib
from kaiju_jax.serving.safety import moderation
from kaiju_jax.serving.safety import release as release_lib

# OpenAI's names.
_FINISH = {
  'length': 'length',
  'stop_token': 'stop',
  'stop_string': 'stop',
}
_FILTERED = 'content_filter'
# The number of pieces that a choice may be ahead of its reader.
_AHEAD = 4


class Piece(NamedTuple):
  """Text to show, with its tokens."""

  text: str  # The text to show; '' where all new text is held.
  # The tokens whose log-probabilities may be shown.
  events: list[request_lib.Event]
  reasoning: str = ''  # The reasoning to show.


class _PendingToken(NamedTuple):
  """A token that is not shown yet."""

  event: request_lib.Event
  # Where its first character stands in the text; None for a token that
  # completes no character, or completes a stop string.
  begin: int | None
  # Whether it is the answer's; False for the reasoning's, None for spaces
  # between the two.
  is_answer: bool | None


class Reply:
  """The reply of one choice, as an asynchronous iterator of pieces.

  Attributes:
    text: the text that was shown, without the reasoning.
    reasoning: the reasoning that was shown.
  """

  def __init__(
    self,
    stream: token_stream.TokenStream,
    watch: moderation.Watch,
    said: str = '',
    note: Callable[[token_stream.TokenStream, int], None] = lambda *_: None,
    refused: Callable[[str], None] = lambda _: None,
    cut: reasoning_lib.Cut | None = None,
    begun: str = '',
    kept: tuple[int, ...] | None = (),
  ):
    """Takes over a stream.

    Args:
      stream: the engine's stream.
      watch: the request's judge, which decides what may be shown.
      said: the user's text, for the log of blocked texts.
      note: called with the stream and the number of new tokens when some come.
      refused: called with the safety stage that ended the reply, if one did.
      cut: cuts the text into reasoning and answer; None for no reasoning.
      begun: the text that the reply continues, for the log of blocked texts.
      kept: the tokens of the reply that stand in its prompt, to be kept before
        the drawn ones; None where they are not known.
    """
    self.tokens: list[int] = []  # The drawn tokens, shown or not.
    # OpenAI's finish_reason; None before the end.
    self.finish: str | None = None
    # Whether the prompt was refused. If so, neither prompt nor reply is shown.
    self.is_prompt_refused = False
    self._stream = stream
    self._watch = watch
    self._release = watch.release()
    self._release.begun = begun
    self._said = said
    self._note = note
    self._refused = refused
    self._cut = cut
    self._kept = kept
    self._parts: list[str] = []
    self._thoughts: list[str] = []
    self.thought: int = 0  # The number of tokens of the shown reasoning.
    self._reason: str | None = None
    self._pending: collections.deque[_PendingToken] = collections.deque()
    self._passed = 0  # How many of them moderation lets pass.
    # Characters of the text: those that events brought, those that are held
    # back behind them as well, and those that were shown.
    self._given = self._made = self._shown = 0

  @property
  def text(self) -> str:
    return ''.join(self._parts)

  @property
  def reasoning(self) -> str:
    return ''.join(self._thoughts)

  @property
  def reused(self) -> int:
    """The number of the prompt's tokens that were in the cache."""
    return self._stream.reused

  @property
  def rate(self) -> float | None:
    """The stream's tokens per second (`TokenStream.rate`)."""
    return self._stream.rate

  @property
  def drawn(self) -> tuple[int, ...] | None:
    """The tokens of the text, with what it continues.

    None where the text ends before they do, or they are not known.
    """
    is_whole = self._reason in ('length', 'stop_token')
    if not is_whole or self._kept is None:
      return None
    return (*self._kept, *self.tokens)

  @property
  def reason(self) -> str | None:
    """Why the engine ended the reply; None if safety did, or before its end."""
    if self.finish == _FILTERED:
      return None
    return self.finish or self._stream.reason

  @property
  def prompt_log_probabilities(self) -> np.ndarray | None:
    """The prompt's, once the reply has ended; None if not requested."""
    return self._stream.result().prompt_log_probabilities

  @property
  def prompt_alternatives(self) -> alternatives_lib.Alternatives | None:
    """The likeliest tokens in the prompt's places; None if not requested."""
    return self._stream.result().prompt_alternatives

  def cancel(self) -> None:
    """Ends a reply that has no reader; never waits."""
    self._stream.cancel()

  async def end(self) -> None:
    """Waits for the engine's result of a reply that nobody reads further.

    A reply that safety ends is behind the engine, which still draws.

    Raises:
      errors.ApiError: see `__aiter__`.
    """
    self.cancel()
    async for _ in _events(self._stream):
      pass

  async def __aiter__(self) -> AsyncIterator[Piece]:
    """Yields pieces until the reply's end.

    Raises:
      errors.ApiError: the model's logits were not finite, no row was free in
        time, or the server stops.
    """
    try:
      async for events in _events(self._stream):
        if not self.tokens and self._is_prompt_blocked():
          self.is_prompt_refused: bool = True
          self._filter('prompt')
          return
        self._note(self._stream, len(events))
        self._pending += map(self._place, events)
        self.tokens += [event.token for event in events]
        piece = self._take_released(map(self._push, events))
        if piece is not None:
          yield piece
        if self.finish is not None:
          return
      is_end = self._stream.result().reason != 'stop_string'
      piece = self._take_released([self._release.finish()], is_end)
      if piece is not None:
        yield piece
    finally:
      self._stream.cancel()
    self._reason = self._stream.result().reason
    self.finish = _FINISH.get(self._reason)
    if self.finish is None:
      raise errors.unavailable(f'the reply was ended: {self._reason}.')

  def _is_prompt_blocked(self) -> bool:
    if self._watch.mode != 'moderated':
      return False
    scores = self._stream.prompt_scores
    return self._watch.prompt(scores, self._said).is_blocked

  def _push(self, event: request_lib.Event) -> release_lib.Released:
    if self.finish is not None:  # What came with the token that ended it.
      return release_lib.Released('', 0, False)
    released = self._release.push(event.text, event.scores)
    if released.ended:
      self._filter('head')
    return released

  def _filter(self, stage: str) -> None:
    self.finish = _FILTERED
    self._stream.refuse()
    self._refused(stage)

  def _place(self, event: request_lib.Event) -> _PendingToken:
    """Returns a token with the place of its first character."""
    begin = self._made
    self._given += len(event.text)
    self._made = self._given + event.held
    is_answer = True
    if self._cut is not None and event.reason != 'stop_token':
      is_answer = self._cut.place(event.token, self._made)
    return _PendingToken(
      event, begin if self._made > begin else None, is_answer
    )

  def _take_released(
    self, released: Iterable[release_lib.Released], is_end: bool = False
  ) -> Piece | None:
    """Returns the piece that may be shown now; None for nothing."""
    text = ''
    for one in released:
      text += one.text
      self._passed += one.tokens
    self._shown += len(text)
    count = self._passed
    if not is_end:
      # Tokens of a stop string are not shown: a token is shown with its first
      # character, and one without a character with the next.
      begins = (self._pending[n].begin for n in reversed(range(count)))
      behind = itertools.takewhile(
        lambda begin: begin is None or begin >= self._shown, begins
      )
      count -= sum(1 for _ in behind)
    if not (text or count):
      return None
    self._passed -= count
    thought = ''
    if self._cut is not None:
      thought, text = self._cut.split(text)
      self._thoughts.append(thought)
    self._parts.append(text)
    shown = [self._pending.popleft() for _ in range(count)]
    self.thought += sum(one.is_answer is False for one in shown)
    return Piece(text, [one.event for one in shown if one.is_answer], thought)


async def _events(stream) -> AsyncIterator[list[request_lib.Event]]:
  """Yields all events that have come, at least one each time."""
  try:
    async for event in stream:
      events = [event]
      while stream.has_more:
        events.append(await anext(stream))
      yield events
  except request_lib.Late as error:
    raise errors.busy(str(error), 1.0) from error
  except request_lib.BadLogits as error:
    raise errors.internal() from error
  except worker_lib.Stopped as error:
    raise errors.unavailable('the engine has stopped.') from error


class Choices:
  """The replies to one request, with the stream slot that they share."""

  def __init__(self, replies: Sequence[Reply], slot: limits.Slot):
    self.replies: list[Reply] = list(replies)  # One for each choice.
    self._slot = slot

  @property
  def drawn(self) -> int:
    """The number of tokens drawn, over all choices."""
    return sum(len(reply.tokens) for reply in self.replies)

  def close(self) -> None:
    """Gives the slot back, and ends replies that have not ended.

    It runs before the client sees the answer's end, so that the slot is free
    for its next request. If that is never reached, the exchange's end calls it.
    """
    self._slot.close()
    for reply in self.replies:
      reply.cancel()

  @contextlib.asynccontextmanager
  async def serve(self):
    """Yields what `merge` yields; closes when the caller stops iterating."""
    try:
      async with contextlib.aclosing(merge(self.replies)) as pieces:
        yield pieces
    finally:
      self.close()


async def merge(
  replies: Sequence[Reply],
) -> AsyncIterator[tuple[int, Piece | None]]:
  """Yields (index, piece) of several replies as they come; None ends a reply.

  Raises:
    errors.ApiError: a reply failed; the other replies are cancelled.
  """
  if len(replies) == 1:
    async with contextlib.aclosing(aiter(replies[0])) as pieces:
      async for piece in pieces:
        yield 0, piece
    yield 0, None
    return
  arrived: asyncio.Queue = asyncio.Queue(_AHEAD * len(replies))

  async def pump(index: int, reply: Reply) -> None:
    try:
      async with contextlib.aclosing(aiter(reply)) as pieces:
        async for piece in pieces:
          await arrived.put((index, piece))
      await arrived.put((index, None))
    except Exception as error:
      await arrived.put((index, error))

  tasks = [asyncio.create_task(pump(*one)) for one in enumerate(replies)]
  try:
    left = len(tasks)
    while left:
      index, piece = await arrived.get()
      if isinstance(piece, Exception):
        raise piece
      left -= piece is None
      yield index, piece
  finally:
    for task in tasks:
      task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
