"""Slow clients hardly delay others: what they cost the server's processor.

Who asks meanwhile waits for what the server does with their bytes. Two hundred
of them take 800 turns a second, 16 while an answer of 20 ms is under way. A
turn costs less than 0.4 of a short answer, some 0.12 ms, and all of them a
tenth of the 20 ms. The test counts the server's processor seconds, because on a
busy machine other clocks say little.
"""

import contextlib
import os
import pathlib
import subprocess
import sys
import types

import pytest

from tests.serving import trivial

_SERVER = """
from kaiju_jax.serving.http import server as server_lib
from tests.serving import trivial
server = server_lib.Server(trivial.Application().app)
print(server.port, flush=True)
server.run()
"""
_COUNT, _TURNS, _ANSWERS = 200, 1500, 500
_MOST = 0.4  # Answers that a turn may cost.


def started(stack, *arguments):
  """Returns a Python process with pipes, which ends with the stack."""
  process = stack.enter_context(
    subprocess.Popen(
      [sys.executable, *arguments],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    )
  )
  stack.callback(process.kill)
  return process


def told(process, line):
  """Tells the slow clients something; returns how many turns there were."""
  process.stdin.write(f'{line}\n')
  process.stdin.flush()
  word, count = process.stdout.readline().split()
  assert word == line.split()[0]
  return int(count)


def spent(process):
  """Returns the processor seconds of a process."""
  scheduled = pathlib.Path(f'/proc/{process.pid}/schedstat').read_text()
  return 1e-9 * int(scheduled.split()[0])


def answered(server):
  with trivial.connected(server) as client:
    for _ in range(_ANSWERS):
      client.sendall(trivial.GET)
      assert trivial.answer(client) == (200, b'hello')


@pytest.mark.slow
@pytest.mark.skipif(
  not os.path.exists('/proc/self/schedstat'),
  reason='the kernel does not say what a process spends',
)
def test_slow_clients_hardly_delay_others():
  with contextlib.ExitStack() as stack:
    process = started(stack, '-c', _SERVER)
    server = types.SimpleNamespace(port=int(process.stdout.readline()))
    slow = started(
      stack, '-m', 'tests.serving.slow_clients', str(server.port), str(_COUNT)
    )
    answered(server)
    ratios = []
    for _ in range(3):
      begun = spent(process)
      answered(server)
      answer = (spent(process) - begun) / _ANSWERS
      first = told(slow, 'on')
      begun = spent(process)
      turns = told(slow, f'wait {_TURNS}') - first
      ratios.append((spent(process) - begun) / turns / answer)
      told(slow, 'off')
      print(f'an answer {1e6 * answer:.0f} µs, a turn {ratios[-1]:.2f} of it')
      if ratios[-1] < _MOST:
        return
  pytest.fail(f'a turn costs {ratios} of an answer')
