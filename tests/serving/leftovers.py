"""Finds what requests left behind in a server that nobody asks any more."""

import os
import pathlib
import time

from kaiju_jax.serving.http import server as server_lib
from kaiju_jax.serving.routes import chat


def of_context(context) -> dict:
  """Returns what is still taken, by what it is; {} where nothing is."""
  worker, streams = context.engines, context.limits._streams
  engine = worker.engine
  found = {
    'slots': streams.taken,
    'slots by owner': dict(streams._counts),
    'streams': len(worker._streams),
    'waiting': list(engine._waiting),
    'running': list(engine._running),
    'rows': list(engine.decoder.account.open_rows),
    'rounds that nobody has read': len(engine._flights),
    'replies that are being stored': len(chat._KEEPING),
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
