"""Turns over one row of the cache: what was said stays there."""

import functools
from typing import Self
import weakref

from kaiju_jax.decoding import interrupts
from kaiju_jax.decoding import request as request_lib
from kaiju_jax.decoding import runner as runner_lib
from kaiju_jax.decoding import sequence as sequence_lib
from kaiju_jax.decoding import stream as stream_lib


class Conversation:
  """Turns over one row, each of which prefills only its own tokens.

  What a turn draws belongs to the text of the next, the stop token included. A
  cancelled turn leaves what it had drawn; a prompt that was cut off goes on
  with the next turn. A conversation that is closed or dropped frees its row.
  """

  def __init__(self, runner: runner_lib.Runner, length: int):
    """Opens a row.

    Args:
      runner: runs the turns.
      length: tokens of all turns, prompts and answers.

    Raises:
      ValueError: no row could ever hold it, or a length below 1.
      pages.Full: no row is free now.
    """
    self._runner = runner
    with interrupts.held():
      self._history = sequence_lib.History(runner.open(length))
      self._dropped = weakref.finalize(
        self, runner.abandon, functools.partial(runner.end, self._history)
      )
      self._dropped.atexit = False

  @property
  def row(self) -> int | None:
    """The row of the cache; None once the conversation is closed."""
    return self._history.row

  @property
  def left(self) -> int:
    """How many tokens further turns may have, prompts and answers.

    Raises:
      ValueError: the conversation is closed.
    """
    return self._runner.left(self._history)

  def stream(self, request: request_lib.Request) -> stream_lib.Stream:
    """Returns the answer to a turn; see `Stream`.

    Raises:
      TypeError, ValueError: names the field that is wrong; the turn before has
        not ended, or the conversation is closed.
    """
    last = self._history.last
    if last is not None and last.reason is None:
      raise ValueError(
        'the turn before has not ended: read its stream to the end, or close'
        ' it.'
      )
    turn = self._runner.submit(request, self._history)
    return stream_lib.Stream(self._runner, turn, keeps=self)

  def close(self) -> None:
    """Frees the row; cancels a turn that has not ended."""
    self._dropped.detach()
    self._runner.end(self._history)

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *_) -> None:
    self.close()
