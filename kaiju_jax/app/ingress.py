"""An ingress: HTTP in front of replicas that Ray Serve reaches.

    ingress.run(address, settings)

It is a process of its own, with no engine. Others may share its port, and the
replicas. It finds replicas by their names, also those that come later.
"""

import asyncio
from collections.abc import Callable
import contextlib
import dataclasses
import functools
import logging
import multiprocessing
import os
import pathlib
import signal
import socket
import sys
import threading
import time
from typing import Any

from kaiju_jax.app import serve
from kaiju_jax.app import server_folder
from kaiju_jax.app import settings as settings_lib
from kaiju_jax.serving.http import log
from kaiju_jax.serving.routes import operations
from kaiju_jax.serving.routing import remote_replica
from kaiju_jax.serving.routing import rollouts as rollouts_lib
from kaiju_jax.serving.routing import router as router_lib
from kaiju_jax.serving.stores import characters

_LOG = logging.getLogger(__name__)
# How the names of replicas begin.
PREFIX = 'kaiju-'
# What `main` exits with where a setting is wrong.
REFUSED = 3
# Seconds to wait for the first replica, for each try of one, and between polls
# for new ones.
_FIRST, _EACH, _POLL = 600.0, 0.2, 2.0
# Seconds to wait for the other replicas (our guess). Without them an ingress
# that starts again would move their conversations to the first one.
_OTHERS = 3.0


class Replicas:
  """The replicas of a Ray, as they come and go."""

  def __init__(self, ray: Any):
    self._ray = ray
    self._remotes: dict[str, remote_replica.RemoteReplica] = {}
    self._added: set[str] = set()
    self._router: router_lib.Router | None = None
    self._call: Callable[[Callable[[], None]], None] = lambda change: change()
    self._bring: Callable[[remote_replica.RemoteReplica], None] | None = None
    self._beginning: asyncio.Task | None = None
    self._stopping = threading.Event()
    self._thread = threading.Thread(
      target=self._run, name='replicas', daemon=True
    )

  def wait(
    self, seconds: float, others: float = _OTHERS
  ) -> remote_replica.RemoteReplica:
    """Returns a replica that has answered.

    Args:
      seconds: until one has answered, at most.
      others: from then until all have, at most.

    Raises:
      ValueError: there is none, or none has answered in time.
    """
    self._poll()
    if not self._remotes:
      raise ValueError('--replicas=0: no replica runs in this Ray; start some.')
    first = self._wait_for_one(time.monotonic() + seconds)
    if first is None:
      raise ValueError(f'no replica has answered in {seconds:g} s.')
    end = time.monotonic() + others
    for remote in self._remotes.values():
      remote.wait(max(end - time.monotonic(), 0))
    return first

  def _wait_for_one(self, end: float) -> remote_replica.RemoteReplica | None:
    while time.monotonic() < end:
      for remote in self._remotes.values():
        if remote.wait(_EACH):
          return remote
    return None

  def fill(self, router: router_lib.Router) -> None:
    """Adds the replicas that have answered to a router, which runs not yet."""
    self._router = router
    self._bring = router.add
    self._add()

  def start(self, rollouts: rollouts_lib.Rollouts) -> None:
    """Keeps the router's replicas those of Ray; call it in its loop.

    `rollouts` warm later replicas before they serve.
    """
    self._bring = rollouts.add
    loop = asyncio.get_running_loop()
    self._call = loop.call_soon_threadsafe
    self._beginning = loop.create_task(self._router.begin())
    self._thread.start()

  def stop(self) -> None:
    """Stops polling, and leaves all replicas."""
    self._stopping.set()
    if self._thread.is_alive():
      self._thread.join()
    for remote in self._remotes.values():
      remote.stop()

  def _poll(self) -> None:
    """Connects to new replicas, and leaves those that are gone."""
    names = self._ray.list(PREFIX)
    for name in names:
      if name not in self._remotes:
        remote = remote_replica.RemoteReplica(name, self._ray.transport(name))
        self._remotes[name] = remote
        remote.start()
    for name in set(self._remotes) - set(names):
      remote = self._remotes.pop(name)
      if name in self._added:
        self._added.discard(name)
        self._call(functools.partial(self._remove, name))
      remote.stop()

  def _remove(self, name: str) -> None:
    # An operator may have done so.
    with contextlib.suppress(ValueError):
      self._router.remove(name)

  @property
  def answered(self) -> dict[str, remote_replica.RemoteReplica]:
    """The replicas that have answered, by name."""
    return {name: one for name, one in self._remotes.items() if one.build}

  def _add(self) -> None:
    for name, remote in self.answered.items():
      if name not in self._added:
        self._added.add(name)
        self._call(functools.partial(self._bring, remote))

  def _run(self) -> None:
    while not self._stopping.wait(_POLL):
      try:
        self._poll()
        self._add()
      except Exception as error:
        # The replicas that it had may answer all the same.
        _LOG.warning('Ray does not answer: %s', type(error).__name__)


def run(
  address: str,
  settings: settings_lib.Settings,
  listener: socket.socket | None = None,
  say: Callable[[str], None] = print,
) -> None:
  """Answers requests until a signal, by the replicas of a Ray.

  Args:
    address: of the Ray.
    settings: the server's; those of the engine are the replicas'.
    listener: the socket that it shares; None for the host and port of the
      settings.
    say: prints a message for the user.

  Raises:
    OSError, ValueError, characters.Unavailable: as `serve.assemble`.
    ConnectionError: the Ray does not answer.
  """
  from kaiju_jax.serving.routing import ray_app

  ray = ray_app.join(address)
  found = Replicas(ray)
  try:
    front = found.wait(_FIRST).facts
    loaded = front.loaded
    beside = serve.read_beside(loaded, settings)
    opened = server_folder.open_parts(settings, beside.head, say)
    router = router_lib.Router(
      server_folder.load_key(pathlib.Path(settings.folder)),
      router_lib.Settings(
        max_wait_s=settings.wait,
        max_alternatives=settings.top_logprobs,
        table='' if settings.store == 'sqlite' else settings.store,
        owns_replicas=False,
      ),
    )
    found.fill(router)
    context = serve.assemble_over(
      router,
      loaded.config,
      front.length,
      beside,
      settings,
      loaded.origin,
      opened,
      front.weights,
    )
    start = functools.partial(found.start, operations.rollouts_of(context))
    serve.run(context, settings, say, listener, start)
  finally:
    found.stop()
    ray.stop()


def main(
  address: str,
  number: int,
  settings: settings_lib.Settings,
  listener: socket.socket,
) -> None:
  """Runs an ingress in a process of its own; number 0 prints."""
  threading.Thread(target=_follow_parent, daemon=True).start()
  say = functools.partial(print, flush=True) if number == 0 else lambda _: None
  if settings.metrics_port:
    settings = dataclasses.replace(
      settings, metrics_port=settings.metrics_port + number
    )
  try:
    with log.write_to(sys.stderr, settings.log):
      run(address, settings, listener, say)
  except (OSError, ValueError, characters.Unavailable) as error:
    print(f'error: {error}', file=sys.stderr, flush=True)
    sys.exit(REFUSED)


def _follow_parent() -> None:
  """Ends this process when the one that started it is gone."""
  multiprocessing.parent_process().join()
  os.kill(os.getpid(), signal.SIGTERM)
