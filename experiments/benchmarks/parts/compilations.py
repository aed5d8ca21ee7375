"""Counts what XLA compiles, to show that nothing does."""

from collections.abc import Iterator
import contextlib

import jax

_EVENT = '/jax/core/compile/backend_compile_duration'


@contextlib.contextmanager
def record() -> Iterator[list[float]]:
  """Yields a list that gets the seconds of each compilation in the block."""
  found: list[float] = []

  def listen(event, duration, **_):
    if event == _EVENT:
      found.append(duration)

  jax.monitoring.register_event_duration_secs_listener(listen)
  try:
    yield found
  finally:
    jax.monitoring.unregister_event_duration_listener(listen)
