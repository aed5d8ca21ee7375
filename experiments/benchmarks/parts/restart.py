"""Restarts a server, and counts the hits of its cache before and after."""

from collections.abc import Callable
import pathlib
import re
import shutil
import tempfile
import time
from typing import Any
from typing import NamedTuple

import httpx

from kaiju_jax.experiments.benchmarks.parts import served

_KINDS = 'none', 'public', 'all'
_WORDS = 'sea', 'wind', 'lamp', 'boat', 'rain', 'bread', 'stone', 'door', 'song'


class Row(NamedTuple):
  """A start: hits, seconds of points, start and end, files and MiB."""

  points: str
  before: float
  after: float
  restored: float
  ready: float
  stopped: float
  files: int
  size: float


def measure(plan: Any, say: Callable[[str], None] = print) -> list[Row]:
  """Returns a row per kind of --points; `say` prints how far it is.

  Args:
    plan: the command's settings.
    say: prints a line.
  """
  with tempfile.TemporaryDirectory() as folder:
    first = pathlib.Path(folder) / 'first'
    server, client = _start(plan, first, 'all')
    sessions = _open(plan, client)
    for turn in range(plan.turns):
      before = _talk(plan, client, sessions, turn)
    say(f'Stopped after {_end(server):.1f} s.')
    rows = []
    for kind in _KINDS:
      copy = pathlib.Path(folder) / kind
      shutil.copytree(first, copy)
      if kind == 'public':
        _keep_public(copy)
      rows.append(_restart(plan, copy, kind, sessions, before))
      say(f'{kind}: {100 * rows[-1].after:.1f} % of the tokens are cached.')
      shutil.rmtree(copy)
  return rows


def _keep_public(folder: pathlib.Path) -> None:
  """Removes what a server with --points=public would not have written."""
  for path in (folder / 'points').glob('*.points'):
    if not path.name.startswith('shared-'):
      path.unlink()


def _restart(
  plan: Any, folder: pathlib.Path, kind: str, sessions, before: float
) -> Row:
  found = list((folder / 'points').glob('*.points'))
  size = sum(path.stat().st_size for path in found) / 2**20
  if kind == 'none':
    found, size = [], 0.0
  begun = time.monotonic()
  server, client = _start(plan, folder, kind)
  ready, restored = time.monotonic() - begun, 0.0
  for line in server.said:
    if said := re.search(r'taken back in ([\d.]+) s', line):
      restored = float(said[1])
  after = _talk(plan, client, sessions, plan.turns)
  end = _end(server)
  return Row(kind, before, after, restored, ready, end, len(found), size)


def _start(
  plan: Any, folder: pathlib.Path, kind: str
) -> tuple[served.Served, httpx.Client]:
  more = (
    f'--points={kind}',
    '--log=faults',
    f'--points_size={plan.points_size}',
    f'--cache={plan.cache}',
  )
  server = served.start(plan.model, str(folder), *more)
  return server, httpx.Client(**server.client)


def _end(server: served.Served) -> float:
  """Ends a server; returns the seconds that this takes."""
  begun = time.monotonic()
  server.process.terminate()
  server.process.wait(120)
  return time.monotonic() - begun


def _open(plan: Any, client: httpx.Client) -> list[str]:
  """Returns sessions, with one character after another."""
  listed = client.get('/v1/characters').json()['data']
  sessions = []
  for number in range(plan.sessions):
    body = {'character': listed[number % len(listed)]['id']}
    answer = client.post('/v1/sessions', json=body)
    answer.raise_for_status()
    sessions.append(answer.json()['id'])
  return sessions


def _talk(
  plan: Any, client: httpx.Client, sessions: list[str], turn: int
) -> float:
  """Has each conversation take a turn; returns the share of cached tokens."""
  name = client.get('/v1/models').json()['data'][0]['id']
  prompt = cached = 0
  for number, session in enumerate(sessions):
    words = [_WORDS[(number * 7 + turn * 3 + x) % 9] for x in range(6)]
    body = {
      'model': name,
      'session': session,
      'messages': [{'role': 'user', 'content': ' '.join(words)}],
      'max_tokens': plan.tokens,
    }
    answer = client.post('/v1/chat/completions', json=body)
    answer.raise_for_status()
    prompt += answer.json()['usage']['prompt_tokens']
    cached += answer.json()['kaiju']['cached_tokens']
  return cached / prompt
