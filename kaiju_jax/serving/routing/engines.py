"""Engines: what the routes ask, whether one engine answers or several.

One `worker.Worker` is the server of a single process; a `router.Router` makes
several replicas one.
"""

from collections.abc import Sequence
from typing import Protocol

from kaiju_jax.decoding.engine import forgetting
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.serving.http import metrics
from kaiju_jax.serving.replies import token_stream


class Engines(Protocol):
  """One engine, or several as one.

  Attributes:
    is_alive: whether requests can be answered.
    wait: the most seconds that a request may wait for its row; None for any.
    alternatives: the most alternatives of a token that a request may ask for.
    compilations: how many were left for later at the start.
    ready: how many of them are done.
  """

  @property
  def is_alive(self) -> bool: ...

  @property
  def wait(self) -> float | None: ...

  @property
  def alternatives(self) -> int: ...

  @property
  def compilations(self) -> int: ...

  @property
  def ready(self) -> int: ...

  async def begin(self) -> None:
    """Prepares for requests, in the server's loop, before the first."""

  async def submit(
    self, *requests: request_lib.Request, before: int = 0
  ) -> Sequence[token_stream.TokenStream]:
    """Submits requests and returns their streams; takes all of them, or none.

    Args:
      *requests: the choices of one answer.
      before: tokens of the prompts that belong to earlier turns.

    Raises:
      TypeError, ValueError: names the field that is wrong.
      request.Busy: the queue or the wait is too long, or the engines drain.
      worker.Stopped: no engine is left.
    """

  async def forget(self, wanted: forgetting.Forget) -> None:
    """Drops texts from all caches; raises `worker.Stopped`."""

  async def drain(self, seconds: float) -> int:
    """Refuses requests; returns how many had to be ended after `seconds`."""

  def reading(self) -> metrics.Reading | None:
    """Returns the engines' state; None if late. It blocks: use a thread."""

  def stop(self) -> None:
    """Ends the engines and all streams."""
