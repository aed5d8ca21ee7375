"""Clients that keep a server waiting, in a process of their own.

    python -m tests.serving.slow_clients PORT COUNT

Each line 'on' on the standard input connects them, each 'off' takes them away,
and 'wait N' waits for N more turns. Each is answered when it is done, by its
word and the number of turns so far. In a turn a client sends a byte, of the
headers or of a body, or reads one of a long answer. They come one by one,
within two seconds, and whoever is thrown out comes again.
"""

import asyncio
import contextlib
import sys

_PAUSE = 0.25
_HEAD = b'POST /echo HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n'


class _Client:
  """One of them; `turns` counts those of all."""

  turns = 0

  def __init__(self, port, connected):
    self._port = port
    self._connected = connected

  def _count(self):
    _Client.turns += 1

  async def send(self, begun):
    reader, writer = await asyncio.open_connection('127.0.0.1', self._port)
    with contextlib.closing(writer):
      writer.write(begun)
      self._connected()
      while not reader.at_eof():
        writer.write(b'a')
        self._count()
        await writer.drain()
        with contextlib.suppress(TimeoutError):
          await asyncio.wait_for(reader.read(4096), _PAUSE)

  async def read(self, target):
    reader, writer = await asyncio.open_connection(
      '127.0.0.1', self._port, limit=64
    )
    with contextlib.closing(writer):
      writer.write(b'GET %s HTTP/1.1\r\nHost: a\r\n\r\n' % target)
      self._connected()
      while await reader.read(1):
        self._count()
        await asyncio.sleep(_PAUSE)


async def _slow(port, number, delay, connected):
  await asyncio.sleep(delay)
  client = _Client(port, connected)
  kinds = (
    lambda: client.send(b'GET / HTTP/1.1\r\nA: '),
    lambda: client.send(_HEAD + b'Content-Length: 9999\r\n\r\n'),
    lambda: client.read(b'/large?size=1000000'),
    lambda: client.read(b'/stream?pause=0.25'),
  )
  while True:
    with contextlib.suppress(ConnectionError):
      await kinds[number % len(kinds)]()


async def _main(port, count):
  loop = asyncio.get_running_loop()
  tasks = []
  while line := (await loop.run_in_executor(None, sys.stdin.readline)).split():
    if line[0] == 'wait':
      last = _Client.turns + int(line[1])
      while _Client.turns < last:
        await asyncio.sleep(0.01)
    else:
      for task in tasks:
        task.cancel()
      await asyncio.gather(*tasks, return_exceptions=True)
      tasks = []
    if line[0] == 'on':
      events = [asyncio.Event() for _ in range(count)]
      tasks = [
        loop.create_task(_slow(port, n, 2 * n / count, event.set))
        for n, event in enumerate(events)
      ]
      await asyncio.gather(*(event.wait() for event in events))
    print(line[0], _Client.turns, flush=True)


if __name__ == '__main__':
  asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2])))
