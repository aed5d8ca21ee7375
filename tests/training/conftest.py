"""What the tests of the training room share."""

import contextlib

import jax
import pytest


@contextlib.contextmanager
def _counted():
  seen = []

  def listen(event, duration, **_):
    if event == '/jax/core/compile/backend_compile_duration':
      seen.append(duration)

  jax.monitoring.register_event_duration_secs_listener(listen)
  try:
    yield seen
  finally:
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.fixture
def compilations():
  """`with compilations() as seen:` has an entry for each XLA compilation."""
  return _counted
