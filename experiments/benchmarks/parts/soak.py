r"""Does a server's memory stay flat while people come, talk and leave?

    python -m experiments.benchmarks.soak --model=runs/chat --minutes=30
        [--talkers=6] [--json=PATH] [--figure=PATH]

Starts `experiments.serve` as a process of its own. Talkers open conversations
with its characters, talk some turns, ask for other candidates, edit, leave in
the middle of replies, and remove what they began. Every few seconds the
server's resident memory, open files and threads are read from /proc, and its
pages and points from /metrics. Printed are the memory at the end of the warm-up
and at the end, its slope, and the requests and refusals. Linux only.
"""

import asyncio
from collections.abc import Sequence
import logging
import pathlib
import random
import re
import tempfile
import time
from typing import NamedTuple

from absl import flags
import httpx
import numpy as np

from kaiju_jax.experiments.benchmarks.parts import served
from kaiju_jax.reporting import figures
from kaiju_jax.runs import command
from kaiju_jax.storage import files

_MODEL = flags.DEFINE_string(
  'model', None, 'A workdir, an export or a Hugging Face folder.'
)
_MINUTES = flags.DEFINE_float('minutes', 30.0, 'How long.', 0.1)
_TALKERS = flags.DEFINE_integer('talkers', 6, 'People at once.', 1)
_EVERY = flags.DEFINE_float('every', 5.0, 'Seconds between two looks.', 0.1)
_JSON = flags.DEFINE_string('json', None, 'Where the figures go as JSON.')
_FIGURE = flags.DEFINE_string('figure', None, 'Where the figure goes (png).')
# What the first third does is warm-up: caches fill up to their bounds.
_WARM = 1 / 3
_WORDS = 'Hello', 'What do you like?', 'Tell me more', 'Why?', 'Good night'


class Look(NamedTuple):
  """The server at one moment: seconds, MiB of memory, files and threads."""

  seconds: float
  memory: float
  files: int
  threads: int


def main(argv: Sequence[str]) -> None:
  command.check(argv, _MODEL)
  logging.getLogger('httpx').setLevel(logging.WARNING)  # A line per request.
  with tempfile.TemporaryDirectory() as folder:
    server = served.start(_MODEL.value, folder)
    try:
      pid = server.process.pid
      looks, counts = asyncio.run(_soak(pid, server.address, server.key))
    finally:
      server.process.terminate()
      status = server.process.wait(60)
  _report(looks, counts, status)


async def _soak(
  pid: int, address: str, key: str
) -> tuple[list[Look], dict[str, int]]:
  """Returns what was seen of the server, and how requests ended."""
  counts = {'replies': 0, 'left': 0, 'refused': 0, 'failed': 0}
  begun = time.monotonic()
  end = begun + 60 * _MINUTES.value
  looks = []
  headers = {'Authorization': f'Bearer {key}'}
  async with httpx.AsyncClient(
    base_url=address, headers=headers, timeout=120
  ) as client:
    talkers = [
      asyncio.create_task(_talker(client, random.Random(n), end, counts))
      for n in range(_TALKERS.value)
    ]
    while time.monotonic() < end:
      looks.append(_look(pid, time.monotonic() - begun))
      await asyncio.sleep(_EVERY.value)
    await asyncio.gather(*talkers)
    answer = await client.get('/metrics')
    answer.raise_for_status()
  return looks, counts


async def _talker(client, drawn: random.Random, end: float, counts) -> None:
  listed = (await client.get('/v1/characters')).json()['data']
  while time.monotonic() < end:
    character = drawn.choice(listed)['id']
    session = (
      await client.post('/v1/sessions', json={'character': character})
    ).json()['id']
    for _ in range(drawn.randint(1, 8)):
      await _turn(client, drawn, session, counts)
      await asyncio.sleep(drawn.random())
    if drawn.random() < 0.5:
      await client.delete(f'/v1/sessions/{session}')


async def _turn(client, drawn: random.Random, session: str, counts) -> None:
  """Says something, or asks for another reply; may leave in its middle."""
  body = {
    'model': _name(),
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


def _name() -> str:
  return pathlib.PurePath(_MODEL.value).stem


def _look(pid: int, seconds: float) -> Look:
  status = pathlib.Path(f'/proc/{pid}/status').read_text()
  memory = int(re.search(r'VmRSS:\s+(\d+)', status)[1]) / 1024
  threads = int(re.search(r'Threads:\s+(\d+)', status)[1])
  opened = len(list(pathlib.Path(f'/proc/{pid}/fd').iterdir()))
  return Look(seconds, memory, opened, threads)


def _report(looks: list[Look], counts: dict[str, int], status: int) -> None:
  kept = [one for one in looks if one.seconds >= _WARM * looks[-1].seconds]
  minutes, memory = (
    np.array([one.seconds / 60 for one in kept]),
    np.array([one.memory for one in kept]),
  )
  slope = np.polyfit(minutes, memory, 1)[0] if len(kept) > 2 else float('nan')
  print(', '.join(f'{count:,} {name}' for name, count in counts.items()))
  print(
    f'Memory: {memory[0]:,.1f} MiB after {minutes[0]:.0f} minutes,'
    f' {memory[-1]:,.1f} MiB after {minutes[-1]:.0f}:'
    f' {slope:+.3f} MiB per minute ({100 * slope / memory[0]:+.3f} %)'
  )
  print(
    f'Open files {kept[0].files} → {kept[-1].files}, threads'
    f' {kept[0].threads} → {kept[-1].threads}; exit status {status}.'
  )
  if _JSON.value:
    found = {'looks': [one._asdict() for one in looks], 'counts': counts}
    files.write_json(pathlib.Path(_JSON.value), found)
  if _FIGURE.value:
    page = figures.figure(6, 3)
    axes = page.subplots()
    axes.plot(
      [one.seconds / 60 for one in looks], [one.memory for one in looks]
    )
    axes.set_xlabel('minutes')
    axes.set_ylabel('resident memory, MiB')
    axes.set_ylim(bottom=0)
    figures.save(page, _FIGURE.value)


if __name__ == '__main__':
  command.run(main)
