"""Serves a model by several replicas under Ray, behind one port.

    serve_ray.run(settings.Settings(model='runs/chat', ray='auto'))

This process answers no request. It starts the Ray, unless that runs already,
the replicas, and the ingresses, which share one listening socket: where one is
killed, the others take its new connections, and another starts in its place.
Ray starts a killed replica again. A signal ends all of them in order.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
import functools
import importlib.util
import multiprocessing
from multiprocessing import connection
import os
import pathlib
import signal
import socket
import tempfile
import threading
import time
from typing import Any

from kaiju_jax.app import ingress
from kaiju_jax.app import replicas
from kaiju_jax.app import server_folder
from kaiju_jax.app import settings as settings_lib
from kaiju_jax.decoding.device import memory
from kaiju_jax.serving.http import server as server_lib
from kaiju_jax.serving.routing import ray_local
from kaiju_jax.storage import files

# Seconds between polls for signals; that an ingress may take beyond its grace;
# and within which its end counts as a fault of its start (our guesses).
_POLL, _BEYOND, _STARTED = 0.5, 15.0, 10.0
_TRIES = 3


def check(settings: settings_lib.Settings) -> None:
  """Refuses settings that cannot work, before anything starts.

  Raises:
    ImportError: ray is not installed.
    ValueError: names the flags and what is right.
  """
  if settings.ray == settings_lib.AUTO and not settings.replicas:
    raise ValueError(
      '--replicas=0: must be at least 1 with --ray=auto, whose Ray has none.'
    )
  is_file = settings.store == 'sqlite'
  if is_file and settings.ingresses > 1:
    raise ValueError(
      f'--store=sqlite, --ingresses={settings.ingresses}: several processes'
      ' need one store: --store=redis://HOST:PORT/0.'
    )
  if is_file and settings.points == 'all':
    raise ValueError(
      '--store=sqlite, --points=all: a replica that saves private points must'
      ' reach the store: --store=redis://HOST:PORT/0.'
    )
  if settings.ingresses > 1 and settings.metrics_port is None:
    raise ValueError(
      f'--ingresses={settings.ingresses}: each counts for itself: name the'
      ' first of as many ports as --metrics_port.'
    )
  if settings.drift != 'none':
    raise ValueError(
      f'--drift={settings.drift}: must be none with --ray, whose ingresses see'
      ' no codes.'
    )
  if importlib.util.find_spec('ray') is None:
    raise ImportError(
      f'--ray={settings.ray}: Ray is not installed: pip install'
      " 'kaiju_jax[ray]'."
    )


def run(
  settings: settings_lib.Settings,
  accepted: Sequence[str] = (),
  say: Callable[[str], None] = print,
) -> None:
  """Serves until a signal; then replies have time to finish.

  Args:
    settings: the server's.
    accepted: as in `serve.load_model`.
    say: prints a message for the user.

  Raises:
    ImportError, ValueError: as `check`; or an ingress refuses a setting.
    OSError: the port is taken, or a folder cannot be written.
    characters.Unavailable: the store cannot be reached.
    RuntimeError: Ray, a replica or the ingresses do not start.
  """
  check(settings)
  folder = pathlib.Path(settings.folder)
  files.make_folder(folder)
  folder.chmod(0o700)
  # One key of all processes, and a store that all of them reach.
  server_folder.load_key(folder)
  server_folder.open_store(folder, settings.store).close()
  with (
    server_lib.listen(settings.host, settings.port) as listener,
    _joined(settings.ray, say) as ray,
  ):
    say(f'Ray: {ray.address}')
    if settings.replicas:
      say(f'Starting {settings.replicas} replicas of {settings.model} …')
      ray.deploy(
        [f'{ingress.PREFIX}{number}' for number in range(settings.replicas)],
        functools.partial(
          replicas.make, _shared_out(settings, ray.gpus), accepted
        ),
        settings.tensor,
      )
    _Ingresses(ray.address, settings, listener, say).run()


@contextlib.contextmanager
def _joined(address: str, say: Callable[[str], None]) -> Iterator[Any]:
  """Yields a `ray_app.Ray`, and leaves it, or ends one that it started."""
  if address == settings_lib.AUTO:
    os.environ.update(ray_local.environment())
  # Not before: Ray reads its environment as it is imported.
  from kaiju_jax.serving.routing import ray_app

  if address != settings_lib.AUTO:
    ray = ray_app.join(address)
    try:
      yield ray
    finally:
      ray.stop()
    return
  # Only this account reads what it holds; Ray opens the folders within to all.
  with tempfile.TemporaryDirectory(
    prefix='kaiju-', ignore_cleanup_errors=True
  ) as folder:
    say('Starting Ray …')
    ray = ray_app.start(pathlib.Path(folder))
    try:
      yield ray
    finally:
      ray.stop()


def _shared_out(
  settings: settings_lib.Settings, gpus: int
) -> settings_lib.Settings:
  """Returns the settings of one replica of several on this machine.

  Replicas have `gpus` of their own, which this process leaves alone, and share
  a CPU. Raises ValueError: as `Player.check`.
  """
  if gpus or settings.ray != settings_lib.AUTO:
    return settings
  settings.check(settings.lora or settings.model)
  if settings.cache is not None:
    return settings
  cache = memory.budget_cache(settings.tensor) // settings.replicas
  return dataclasses.replace(settings, cache=cache)


class _Ingresses:
  """The ingresses, each of which is started again when it ends."""

  def __init__(
    self,
    address: str,
    settings: settings_lib.Settings,
    listener: socket.socket,
    say: Callable[[str], None],
  ):
    self._address, self._settings = address, settings
    self._listener, self._say = listener, say
    self._processes = {}
    self._begun = {}
    self._faults = 0
    self._stopping = threading.Event()

  def run(self) -> None:
    """Runs them until a signal.

    Raises:
      RuntimeError: one refuses its settings, or does not start again and again.
    """
    numbers = signal.SIGINT, signal.SIGTERM
    former = {
      number: signal.signal(number, lambda *_: self._stopping.set())
      for number in numbers
    }
    try:
      for number in range(self._settings.ingresses):
        self._start(number)
      while not self._stopping.is_set():
        connection.wait([x.sentinel for x in self._processes.values()], _POLL)
        for number, process in list(self._processes.items()):
          if not process.is_alive() and not self._stopping.is_set():
            self._replace(number, process)
    finally:
      self._stop()
      for number, handler in former.items():
        signal.signal(number, handler)

  def _start(self, number: int) -> None:
    process = multiprocessing.get_context('spawn').Process(
      target=ingress.main,
      args=(self._address, number, self._settings, self._listener),
      name=f'ingress {number}',
    )
    process.start()
    self._processes[number], self._begun[number] = process, time.monotonic()

  def _replace(self, number: int, process) -> None:
    """Starts another ingress in the place of one that has ended."""
    if process.exitcode == ingress.REFUSED:
      raise RuntimeError(f'ingress {number} has refused its settings.')
    is_fault = time.monotonic() - self._begun[number] < _STARTED
    self._faults = self._faults + 1 if is_fault else 0
    if self._faults >= _TRIES:
      raise RuntimeError(
        f'ingress {number} ended with {process.exitcode}, {_TRIES} times within'
        f' {_STARTED:g} s of its start.'
      )
    self._say(
      f'Ingress {number} ended with {process.exitcode}; another starts.'
    )
    self._start(number)

  def _stop(self) -> None:
    """Ends all of them, once their replies had time to finish."""
    for process in self._processes.values():
      process.terminate()
    end = time.monotonic() + self._settings.grace + _BEYOND
    for process in self._processes.values():
      process.join(max(end - time.monotonic(), 0))
      if process.is_alive():
        process.kill()
        process.join()
