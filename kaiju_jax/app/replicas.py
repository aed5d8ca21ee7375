"""Makes the replicas of a server, each in a process of its own.

    make = functools.partial(replicas.make, settings, accepted)
    made = make('kaiju-0')    # in that process

A replica loads the model itself: no weights are sent. It tells its ingresses
what they need of the model to write prompts and read replies (`Front`).
"""

import asyncio
from collections.abc import Sequence
import functools
import hashlib
import pathlib
from typing import NamedTuple

from kaiju_jax.app import serve
from kaiju_jax.app import server_folder
from kaiju_jax.app import serving_engine
from kaiju_jax.app import settings as settings_lib
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.device import judge
from kaiju_jax.decoding.device import memory
from kaiju_jax.decoding.engine import forgetting
from kaiju_jax.runs import load
from kaiju_jax.serving.replies import saved_points
from kaiju_jax.serving.replies import worker as worker_lib
from kaiju_jax.serving.routing import replica as replica_lib
from kaiju_jax.serving.routing import replica_host
from kaiju_jax.serving.safety import moderation


class Front(NamedTuple):
  """The facts of a model that its ingresses need."""

  loaded: load.Loaded  # The model without its weights.
  weights: str  # Its digest.
  length: int  # Tokens of a prompt and its reply.


def make(
  settings: settings_lib.Settings, accepted: Sequence[str], name: str
) -> replica_host.OwnedReplica:
  """Returns a replica that runs, whose engine is compiled.

  Args:
    settings: the server's; its folder is on this machine.
    accepted: as in `serve.load_model`.
    name: the replica's.

  Raises:
    OSError, ValueError: as `serve.assemble`.
    characters.Unavailable: as `serve.assemble`, where points are saved.
  """
  say = functools.partial(print, flush=True)
  loaded = serve.load_model(settings, accepted)
  weights = serve.check_promoted(loaded, settings)
  tokenizer, defaults, head = serve.read_beside(loaded, settings)
  written = defaults.format
  folder, store = pathlib.Path(settings.folder), None
  if settings.points != 'none':
    store = server_folder.open_store(folder, settings.store)
  engine = serving_engine.make(loaded, tokenizer, settings, head, say)
  serve.warm(engine)
  working = worker_lib.Worker(engine, on_compiled=memory.trim)
  digest = tokenizer_lib.digest(tokenizer) + (written.digest if written else '')
  points = serving_engine.open_points(
    working, settings, store, digest, weights, name
  )
  serving_engine.restore_points(points, say)
  working.start()
  if points is not None:
    points.start()
  names = replica_lib.Pseudonyms(server_folder.load_key(folder))
  replica = Replica(name, working, _build(weights, digest, head), names, points)

  def close() -> None:
    if points is not None:
      points.stop()
    working.stop()
    if store is not None:
      store.close()

  facts = Front(
    loaded._replace(params=None, replica=None, experiment=None),
    weights,
    engine.decoder.length,
  )
  return replica_host.OwnedReplica(replica, settings.lease, facts, close)


class Replica(replica_lib.LocalReplica):
  """A replica whose points are saved, too."""

  def __init__(
    self,
    name: str,
    worker: worker_lib.Worker,
    build: str,
    names: replica_lib.Pseudonyms,
    points: saved_points.SavedPoints | None,
  ):
    super().__init__(name, worker, build, names)
    self._points = points

  async def forget(self, wanted: forgetting.Forget) -> None:
    """Drops texts from its cache, and their files."""
    await super().forget(wanted)
    if self._points is not None:
      await asyncio.to_thread(self._points.forget, wanted)


def _build(weights: str, tokenizer: str, head: judge.Head | None) -> str:
  """Returns the digest of all that decides what is drawn, and released."""
  version = ''
  if head is not None:
    params, config = head
    version = moderation.head_version(params, config.names)
  text = f'{weights} {tokenizer} {version}'
  return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
