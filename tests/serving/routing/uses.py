"""Uses of sessions, drawn."""

import numpy as np

from kaiju_jax.serving.routing import affinity as affinity_lib
from tests.serving import trivial

NOW = 1_000_000.0
NAMES = 'a', 'b', 'c'


def make(slots=64, clock=None, **options):
  return affinity_lib.Affinity(slots, clock=clock or trivial.Clock(), **options)


def rows(name, *uses):
  """Returns uses: pairs of a session and of seconds."""
  sessions, times = zip(*uses) if uses else ((), ())
  return affinity_lib.Rows(
    name,
    np.array(sessions, np.int64),
    np.array([1000 * x for x in times], np.int64),
  )


def uses_of(affinity):
  """Returns {session: (replica, seconds)}."""
  return {
    session: (one.name, milliseconds / 1000)
    for one in affinity.list_all()
    for session, milliseconds in zip(one.sessions.tolist(), one.times.tolist())
  }
