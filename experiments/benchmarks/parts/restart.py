"""Restarts a server, and counts the hits of its cache before and after."""

from collections.abc import Callable
import functools
import pathlib
import re
import shutil
import tempfile
import time
from typing import NamedTuple

import httpx
import numpy as np

from kaiju_jax.costs import cache_plan
from kaiju_jax.decoding.device import page_copies
from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.engine import saving as saving_lib
from kaiju_jax.decoding.pages import prefix_tree
from kaiju_jax.experiments.benchmarks.parts import open_shapes
from kaiju_jax.experiments.benchmarks.parts import served
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.runs import load
from kaiju_jax.runs import play
from kaiju_jax.serving.replies import saved_points
from kaiju_jax.serving.replies import worker as worker_lib

# Tokens of a text of --shape.
_TEXT = 2_048
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


class Plan(NamedTuple):
  """What people do before the end, and what the server is started with.

  Attributes:
    model: as `serve`'s.
    sessions: conversations.
    turns: of each, before the end.
    tokens: of a reply.
    flags: of the server.
  """

  model: str
  sessions: int
  turns: int
  tokens: int
  flags: tuple[str, ...]


def measure(plan: Plan, say: Callable[[str], None] = print) -> list[Row]:
  """Returns a row per kind of --points; `say` prints how far it is."""
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


def fill(
  shape: str, size: int, say: Callable[[str], None] = print
) -> saved_points.Restored:
  """Saves and restores a whole cache of points; `say` prints the figures.

  Args:
    shape: a name in `open_shapes.SHAPES`; the weights are random.
    size: the cache's bytes.
    say: prints a line.
  """
  with open_shapes.provide(shape) as path:
    quantization = quantization_config.for_serving('all', 'int8')
    loaded = load.from_anywhere(path, quantization=quantization)
  plan = cache_plan.plan(loaded.config, size, 32, _TEXT, 0)
  decoder = play.decoder(
    loaded, None, rows=2, length=_TEXT, page_counts=plan.pages
  )
  engine = engine_lib.Engine(decoder)
  account, rng = decoder.account, np.random.default_rng(0)
  # One public prefix each; nothing ran, so that keys and values are zeros.
  while not account.tree.evicted:
    text = prefix_tree.Text(
      rng.integers(0, 1000, _TEXT, np.int32),
      _TEXT,
      cache_salt=rng.bytes(32).hex().encode(),
    )
    row = account.open(_TEXT, text=text).row
    account.tree.record(text, account.pages_of(row))
    account.close(row)
  copies = page_copies.PageCopies(decoder)
  copies.warm()
  saving = saving_lib.Saving(engine, 'root', copies)
  worker = worker_lib.Worker(engine)
  held: list[float] = []

  def timed(function, *arguments):
    begun = time.monotonic()
    found = function(*arguments)
    held.append(time.monotonic() - begun)
    return found

  for name in 'select', 'copy':
    setattr(saving, name, functools.partial(timed, getattr(saving, name)))
  with tempfile.TemporaryDirectory() as name:
    folder = saved_points.Folder(pathlib.Path(name), b's' * 32, 4 * size)
    points = saved_points.SavedPoints(worker, saving, folder, most=size)
    worker.start()
    begun, worked = time.monotonic(), time.process_time()
    count = points.save()
    seconds = time.monotonic() - begun
    worked = time.process_time() - worked
    worker.stop()
    made = sum(x.stat().st_size for x in folder.list()) / 2**20
    say(
      f'{shape}: {count} points of {_TEXT:,} tokens, {made:,.0f} MiB: saved in'
      f' {seconds:.2f} s ({worked:.1f} of a processor); the engine was held'
      f' {len(held)} times, at most'
      f' {1000 * max(held):.1f} ms, {1000 * held[0]:.1f} ms of them to choose.'
    )
    was = len(account.tree)
    account.tree.clear()
    worked = time.process_time()
    back = points.restore()
    worked = time.process_time() - worked
    say(
      f'Taken back: {back.points} of {was} points in {back.seconds:.2f} s'
      f' ({worked:.1f} of a processor),'
      f' {back.refused} files refused.'
    )
  return back


def _keep_public(folder: pathlib.Path) -> None:
  """Removes what a server with --points=public would not have written."""
  for path in (folder / 'points').glob('*.points'):
    if not path.name.startswith('shared-'):
      path.unlink()


def _restart(
  plan: Plan, folder: pathlib.Path, kind: str, sessions, before: float
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
  plan: Plan, folder: pathlib.Path, kind: str
) -> tuple[served.Served, httpx.Client]:
  more = f'--points={kind}', '--log=faults', *plan.flags
  server = served.start(plan.model, str(folder), *more)
  headers = {'Authorization': f'Bearer {server.key}'}
  client = httpx.Client(base_url=server.address, headers=headers, timeout=600)
  return server, client


def _end(server: served.Served) -> float:
  """Ends a server; returns the seconds that this takes."""
  begun = time.monotonic()
  server.process.terminate()
  server.process.wait(120)
  return time.monotonic() - begun


def _open(plan: Plan, client: httpx.Client) -> list[str]:
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
  plan: Plan, client: httpx.Client, sessions: list[str], turn: int
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
