"""Talks with a server for minutes, and watches its memory."""

import asyncio
import pathlib
import random
import re
import tempfile
import time
from typing import Any
from typing import NamedTuple

import httpx
import numpy as np

from kaiju_jax.experiments.benchmarks.parts import served
from kaiju_jax.reporting import report

# What the first third does is warm-up: caches fill up to their bounds.
_WARM = 1 / 3
_WORDS = 'Hello', 'What do you like?', 'Tell me more', 'Why?', 'Good night'


class Look(NamedTuple):
  """The server at one moment: seconds, MiB of memory, files and threads."""

  seconds: float
  memory: float
  files: int
  threads: int


def measure(
  settings: Any,
) -> tuple[report.Report, list[Look], dict[str, int]]:
  """Returns what happened in words, the looks, and how requests ended."""
  with tempfile.TemporaryDirectory() as folder:
    server = served.start(settings.model, folder)
    try:
      looks, counts = asyncio.run(_soak(server, settings))
    finally:
      server.process.terminate()
      status = server.process.wait(60)
  kept = [one for one in looks if one.seconds >= _WARM * looks[-1].seconds]
  minutes, memory = (
    np.array([one.seconds / 60 for one in kept]),
    np.array([one.memory for one in kept]),
  )
  slope = np.polyfit(minutes, memory, 1)[0] if len(kept) > 2 else float('nan')
  page = report.Report()
  page.say(', '.join(f'{count:,} {name}' for name, count in counts.items()))
  page.say(
    f'Memory: {memory[0]:,.1f} MiB after {minutes[0]:.0f} minutes,'
    f' {memory[-1]:,.1f} MiB after {minutes[-1]:.0f}:'
    f' {slope:+.3f} MiB per minute ({100 * slope / memory[0]:+.3f} %)'
  )
  page.say(
    f'Open files {kept[0].files} → {kept[-1].files}, threads'
    f' {kept[0].threads} → {kept[-1].threads}; exit status {status}.'
  )
  return page, looks, counts


async def _soak(
  server: served.Served, settings: Any
) -> tuple[list[Look], dict[str, int]]:
  """Returns what was seen of the server, and how requests ended."""
  counts = {'replies': 0, 'left': 0, 'refused': 0, 'failed': 0}
  begun = time.monotonic()
  end = begun + 60 * settings.minutes
  looks = []
  name = pathlib.PurePath(settings.model).stem
  options = server.client | {'timeout': 120}
  async with httpx.AsyncClient(**options) as client:
    talkers = [
      asyncio.create_task(_talker(client, random.Random(n), end, counts, name))
      for n in range(settings.talkers)
    ]
    while time.monotonic() < end:
      looks.append(_look(server.process.pid, time.monotonic() - begun))
      await asyncio.sleep(settings.every)
    await asyncio.gather(*talkers)
    answer = await client.get('/metrics')
    answer.raise_for_status()
  return looks, counts


async def _talker(client, drawn, end: float, counts, name: str) -> None:
  listed = (await client.get('/v1/characters')).json()['data']
  while time.monotonic() < end:
    character = drawn.choice(listed)['id']
    session = (
      await client.post('/v1/sessions', json={'character': character})
    ).json()['id']
    for _ in range(drawn.randint(1, 8)):
      await _turn(client, drawn, session, counts, name)
      await asyncio.sleep(drawn.random())
    if drawn.random() < 0.5:
      await client.delete(f'/v1/sessions/{session}')


async def _turn(client, drawn, session: str, counts, name: str) -> None:
  """Sends a message; may leave in the middle of the reply."""
  body = {
    'model': name,
    'session': session,
    'messages': [{'role': 'user', 'content': drawn.choice(_WORDS)}],
    'max_tokens': drawn.randint(8, 120),
    'stream': True,
  }
  leaves = drawn.random() < 0.2
  async with client.stream('POST', '/v1/chat/completions', json=body) as answer:
    if answer.status_code == 429:
      counts['refused'] += 1
      return
    if answer.status_code != 200:
      counts['failed'] += 1
      return
    pieces = 0
    async for line in answer.aiter_lines():
      pieces += line.startswith('data: ')
      if leaves and pieces > 5:
        counts['left'] += 1
        return
    counts['replies'] += 1


def _look(pid: int, seconds: float) -> Look:
  status = pathlib.Path(f'/proc/{pid}/status').read_text()
  memory = int(re.search(r'VmRSS:\s+(\d+)', status)[1]) / 1024
  threads = int(re.search(r'Threads:\s+(\d+)', status)[1])
  opened = len(list(pathlib.Path(f'/proc/{pid}/fd').iterdir()))
  return Look(seconds, memory, opened, threads)
