"""Forgetting: drops the points of texts that were removed.

A `Forget` is plain data, so that it reaches an engine of another process too.
"""

from typing import NamedTuple

from kaiju_jax.decoding.engine import engine as engine_lib


class Forget(NamedTuple):
  """Texts that a cache must drop, or that must leave the disk."""

  # Pairs of owner and conversation, as in `request.Request`.
  conversations: tuple[tuple[str, str], ...] = ()
  # Cache salts; all texts of each go.
  salts: tuple[str, ...] = ()
  # Cache salts of texts that are no longer everybody's. They stay in the cache
  # for those who still read them; what saves points decides anew.
  withdrawn: tuple[str, ...] = ()
  # The same, of texts that the safety gate blocks. This process saves none of
  # them again as everybody's.
  blocked: tuple[str, ...] = ()


def forget(engine: engine_lib.Engine, wanted: Forget) -> None:
  """Drops texts from an engine's cache; call it between two rounds.

  What running requests of them still record goes at their end.
  """
  for owner, conversation in wanted.conversations:
    engine.recorder.remove((owner.encode(), conversation))
  for salt in wanted.salts:
    engine.recorder.drop_tree(salt.encode())
