"""Clients that keep a server waiting, in a process of their own.

    python -m tests.serving.slow_clients PORT COUNT

Each line 'on' on the standard input connects them, each 'off' takes them away;
either is answered by a line when it is done. They send a byte now and then, of
the headers or of a body, or read one of a long answer. They come one by one,
within two seconds, and whoever is thrown out comes again.
"""

import asyncio
import contextlib
import sys

_PAUSE = 0.25
_HEAD = b'POST /echo HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n'


async def _send(port, begun, connected):
  reader, writer = await asyncio.open_connection('127.0.0.1', port)
  with contextlib.closing(writer):
    writer.write(begun)
    connected()
    while not reader.at_eof():
      writer.write(b'a')
      await writer.drain()
      with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(reader.read(4096), _PAUSE)


async def _read(port, target, connected):
  reader, writer = await asyncio.open_connection('127.0.0.1', port, limit=64)
  with contextlib.closing(writer):
    writer.write(b'GET %s HTTP/1.1\r\nHost: a\r\n\r\n' % target)
    connected()
    while await reader.read(1):
      await asyncio.sleep(_PAUSE)


async def _slow(port, number, delay, connected):
  await asyncio.sleep(delay)
  kinds = (
    lambda: _send(port, b'GET / HTTP/1.1\r\nA: ', connected),
    lambda: _send(port, _HEAD + b'Content-Length: 9999\r\n\r\n', connected),
    lambda: _read(port, b'/large?size=1000000', connected),
    lambda: _read(port, b'/stream?pause=0.25', connected),
  )
  while True:
    with contextlib.suppress(ConnectionError):
      await kinds[number % len(kinds)]()


async def _main(port, count):
  loop = asyncio.get_running_loop()
  tasks = []
  while line := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
    for task in tasks:
      task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    tasks = []
    if line == 'on':
      events = [asyncio.Event() for _ in range(count)]
      tasks = [
        loop.create_task(_slow(port, n, 2 * n / count, event.set))
        for n, event in enumerate(events)
      ]
      await asyncio.gather(*(event.wait() for event in events))
    print(line, flush=True)


if __name__ == '__main__':
  asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2])))
