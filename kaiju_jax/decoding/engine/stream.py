"""A stream: the tokens of one sequence, as an iterator that runs rounds."""

import functools
from typing import Self
import weakref

from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.engine import sequence as sequence_lib
from kaiju_jax.decoding.requests import request as request_lib


class Stream:
  """The drawn tokens of one sequence, as an iterator of `Event`.

  Closing it, leaving its `with` or dropping it cancels the sequence and frees
  its row, at once or in the next round. Its iterator raises BadLogits, Late,
  the errors of a search, and pages.Full: no row will ever become free.
  """

  def __init__(
    self,
    engine: engine_lib.Engine,
    sequence: sequence_lib.Sequence,
  ):
    self._engine = engine
    self._sequence = sequence
    self._is_told = False
    self._dropped = weakref.finalize(
      self,
      engine.call_between_rounds,
      functools.partial(engine.cancel, sequence),
    )
    self._dropped.atexit = False

  def __iter__(self) -> Self:
    return self

  def __next__(self) -> request_lib.Event:
    sequence = self._sequence
    self._engine.read(sequence)
    while not sequence.events:
      # A caller that waits here for a row keeps the lease.
      self._engine.read(sequence)
      if sequence.error is not None and not self._is_told:
        self._is_told = True
        raise sequence.error
      if sequence.reason is not None:
        raise StopIteration
      self._engine.advance()
    return sequence.events.popleft()

  def close(self) -> None:
    """Cancels the sequence if it has not ended; the iterator stops."""
    self._dropped.detach()
    self._sequence.events.clear()
    self._engine.cancel(self._sequence)

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *_) -> None:
    self.close()

  @property
  def result(self) -> request_lib.Result:
    """The result so far; whole if its `reason` is not None."""
    return self._sequence.result()
