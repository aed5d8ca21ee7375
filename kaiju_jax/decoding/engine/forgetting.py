"""Forgetting: drops the points of texts that were removed.

A `Forget` is plain data, so that it reaches an engine of another process too.
"""

from typing import NamedTuple

from kaiju_jax.decoding.engine import engine as engine_lib


class Forget(NamedTuple):
  """Texts that a cache must drop.

  Attributes:
    conversations: pairs of owner and conversation, as in `request.Request`.
    salts: cache salts; all texts of each go.
  """

  conversations: tuple[tuple[str, str], ...] = ()
  salts: tuple[str, ...] = ()


def forget(engine: engine_lib.Engine, wanted: Forget) -> None:
  """Drops texts from an engine's cache; call it between two rounds.

  What running requests of these conversations still record goes at their end.
  """
  for owner, conversation in wanted.conversations:
    engine.recorder.remove((owner.encode(), conversation))
  for salt in wanted.salts:
    engine.decoder.account.tree.drop_tree(salt.encode())
