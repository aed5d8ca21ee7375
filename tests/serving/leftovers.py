"""Finds what requests left behind in a server that nobody asks any more."""

import os
import pathlib
import time

from kaiju_jax.serving.http import server as server_lib
from kaiju_jax.serving.routes import chat
from kaiju_jax.serving.routing import router


def of_context(context) -> dict:
  """Returns what is still taken, by what it is; {} where nothing is."""
  streams = context.limits._streams
  found = {
    'slots': streams.taken,
    'slots by owner': dict(streams._counts),
    'replies that are being stored': len(chat._KEEPING),
  }
  workers = [context.engines]
  if isinstance(context.engines, router.Router):
    places = list(context.engines._replicas)
    workers = [x.replica.worker for x in places if x.replica.is_alive]
    found['routed streams'] = len(context.engines._streams)
    found['loads'] = sum(x.charged for x in places)
  for number, worker in enumerate(workers):
    engine = worker.engine
    found |= {
      f'streams of {number}': len(worker._streams),
      f'waiting at {number}': list(engine.state.waiting),
      f'running at {number}': list(engine.state.running),
      f'rows of {number}': list(engine.decoder.account.open_rows),
      f'rounds of {number} that nobody has read': len(engine._inflight),
    }
  return {name: what for name, what in found.items() if what}


def of_server(server: server_lib.Server) -> dict:
  """Returns the tasks and connections of a server that has ended."""
  state = server.server_state
  slots = server.config.http_protocol_class.keywords['slots']
  found = {
    'tasks': len(state.tasks),
    'connections': len(state.connections),
    'slots of connections': slots.taken,
  }
  return {name: what for name, what in found.items() if what}


def of_store(path: pathlib.Path) -> list[str]:
  """Returns the files that this process holds open below a folder."""
  links = pathlib.Path('/proc/self/fd')
  if not links.is_dir():
    return []
  found = []
  for link in links.iterdir():
    try:
      target = os.readlink(link)
    except OSError:
      continue
    if target.startswith(f'{path}{os.sep}'):
      found.append(target)
  return found


def within(seconds: float, look) -> dict:
  """Returns what `look` finds, as soon as that is nothing, or at the end."""
  end = time.monotonic() + seconds
  while found := look():
    if time.monotonic() > end:
      return found
    time.sleep(0.01)
  return {}
