"""A conversation: turns of one text, kept in the cache while there is room."""

import dataclasses
from typing import Self
import uuid

import numpy as np

from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.engine import sequence as sequence_lib
from kaiju_jax.decoding.engine import stream as stream_lib
from kaiju_jax.decoding.requests import request as request_lib


class Conversation:
  """A text to which each turn adds a prompt and an answer.

  All drawn tokens of a turn, the stop token included, belong to the next turn's
  text. A cancelled turn leaves what it had drawn; a prompt that was cut off
  goes on with the next turn. Between turns it holds no row: the text is resumed
  from the cache, and runs again as far as it was evicted.
  """

  def __init__(self, engine: engine_lib.Engine, length: int):
    """Starts empty; `length` is of all turns, a ValueError if no row has it."""
    if not 1 <= length <= engine.decoder.length:
      raise ValueError(
        f'length={length}: a row of this cache holds'
        f' 1…{engine.decoder.length} tokens.'
      )
    self._engine = engine
    self._length = length
    self._key = uuid.uuid4()
    self._last: sequence_lib.Sequence | None = None
    self._is_closed = False

  @property
  def tokens(self) -> np.ndarray:
    """The text so far, int32: all turns' prompts and answers."""
    if self._last is None:
      return np.zeros(0, np.int32)
    return self._last.text().tokens.copy()

  @property
  def left(self) -> int:
    """The most tokens of further turns; ValueError once it is closed."""
    if self._is_closed:
      raise ValueError('the conversation is closed: open another.')
    return self._length - len(self.tokens)

  def stream(self, request: request_lib.Request) -> stream_lib.Stream:
    """Returns the answer to a turn, whose tokens follow the text so far.

    `shared` and `cache_salt` are those of the first turn. Raises TypeError,
    ValueError: a field is wrong, the turn before has not ended, or the
    conversation is closed or another owner's; request.Busy: the engine takes
    none now.
    """
    left = self.left
    if self._last is not None and self._last.reason is None:
      raise ValueError(
        'the turn before has not ended: read its stream to the end, or close'
        ' it.'
      )
    prefix = request
    if self._last is not None:
      prefix, owner = self._last.request, self._last.request.owner
      if request.owner != owner:
        raise ValueError(
          f'request.owner={request.owner!r}: the conversation is that of'
          f' {owner!r}.'
        )
      request = dataclasses.replace(request, shared=0)
    tokens_L = self._engine.check(request, length=left)
    before = self.tokens
    whole = dataclasses.replace(
      request,
      tokens=np.concatenate([before, tokens_L]),
      shared=prefix.shared,
      cache_salt=prefix.cache_salt,
      conversation=self._key,
    )
    self._last = self._engine.submit(whole, len(before))
    return stream_lib.Stream(self._engine, self._last)

  def close(self) -> None:
    """Takes no further turn; cancels one that has not ended."""
    self._is_closed = True
    if self._last is not None:
      self._engine.cancel(self._last)

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *_) -> None:
    self.close()
