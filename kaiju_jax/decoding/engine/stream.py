"""The drawn tokens of one sequence, one after another."""

import functools
from typing import Self
import weakref

from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.engine import sequence as sequence_lib
from kaiju_jax.decoding.requests import request as request_lib


class Stream:
  """The drawn tokens of one sequence, as an iterator of `Event`.

  Closing it, leaving its `with` or dropping it cancels the sequence; its row
  is free for the next one, at once or in the next round.

  Raises:
    BadLogits, Late: from the iterator: the model gave no numbers, or there was
      no row in time.
    pages.Full: from the iterator, where no row will ever become free.
  """

  def __init__(
    self,
    engine: engine_lib.Engine,
    sequence: sequence_lib.Sequence,
  ):
    """Takes over a sequence.

    Args:
      engine: runs it.
      sequence: that was submitted.
    """
    self._engine = engine
    self._sequence = sequence
    self._is_told = False
    self._dropped = weakref.finalize(
      self, engine.abandon, functools.partial(engine.cancel, sequence)
    )
    self._dropped.atexit = False

  def __iter__(self) -> Self:
    return self

  def __next__(self) -> request_lib.Event:
    sequence = self._sequence
    self._engine.read(sequence)
    while not sequence.events:
      # Who waits here for a row reads it all the time.
      self._engine.read(sequence)
      if sequence.error is not None and not self._is_told:
        self._is_told = True
        raise sequence.error
      if sequence.reason is not None:
        raise StopIteration
      self._engine.advance()
    return sequence.events.popleft()

  def close(self) -> None:
    """Cancels what has not ended; the iterator stops."""
    self._dropped.detach()
    self._sequence.events.clear()
    self._engine.cancel(self._sequence)

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *_) -> None:
    self.close()

  @property
  def result(self) -> request_lib.Result:
    """What there is so far; whole where its `reason` is not None."""
    return self._sequence.result()
