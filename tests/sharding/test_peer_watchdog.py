"""Which process is gone, and which ones say so: real processes without jax."""

import json
import pathlib
import signal
import subprocess
import sys

import pytest

from kaiju_jax.sharding import peer_watchdog

ROOT = pathlib.Path(__file__).parents[2]
COUNT = 3
_PROGRAM = """
import json, sys, time
from kaiju_jax.sharding import peer_watchdog
index, count = int(sys.argv[1]), int(sys.argv[2])
if index == 0:
  server = peer_watchdog.Server()
  print(json.dumps(server.address), flush=True)
  peers = server.accept(count, 100)
else:
  peers = {0: peer_watchdog.connect(json.loads(sys.argv[3]), index)}
line = peer_watchdog.PeerWatchdog(index, count, peers)
print('ready', flush=True)
what = sys.stdin.readline().strip()
if what == 'fail':
  line.fail('the disk is full.')
if what == 'leave':
  line.leave()
  sys.exit()
time.sleep(60)
"""


class Job:
  """Processes that do what they are told to on stdin."""

  def __init__(self):
    self.processes = []
    first = self._start(0)
    address = first.stdout.readline()
    for index in range(1, COUNT):
      self._start(index, address)
    for process in self.processes:
      assert process.stdout.readline() == 'ready\n'

  def _start(self, index, *address):
    process = subprocess.Popen(
      [sys.executable, '-c', _PROGRAM, str(index), str(COUNT), *address],
      cwd=ROOT,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    self.processes.append(process)
    return process

  def tell(self, index, what):
    self.processes[index].stdin.write(f'{what}\n')
    self.processes[index].stdin.flush()

  def ended(self):
    """Returns each process's status and what it said."""
    said = [p.communicate(timeout=100)[1] for p in self.processes]
    return [(p.returncode, text) for p, text in zip(self.processes, said)]

  def __enter__(self):
    return self

  def __exit__(self, *_):
    for process in self.processes:
      process.kill()
      process.wait()


@pytest.mark.parametrize('victim', range(COUNT))
def test_all_say_which_process_was_killed_and_end(victim):
  with Job() as job:
    job.processes[victim].kill()
    ended = job.ended()
  assert ended.pop(victim) == (-signal.SIGKILL, '')
  for status, said in ended:
    assert status == 1
    assert said.startswith(f'error: process {victim} of 3 is gone: killed')
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize('victim', range(COUNT))
def test_all_say_why_a_process_failed_and_end(victim):
  with Job() as job:
    job.tell(victim, 'fail')
    ended = job.ended()
  assert ended.pop(victim) == (1, 'error: the disk is full.\n')
  want = f'error: process {victim} of 3 failed: the disk is full.\n'
  assert ended == [(1, want)] * 2


def test_one_that_is_done_is_not_missed():
  with Job() as job:
    job.tell(1, 'leave')
    assert job.processes[1].wait(100) == 0
    with pytest.raises(subprocess.TimeoutExpired):
      job.processes[0].wait(0.5)
    job.tell(0, 'leave')
    job.tell(2, 'leave')
    assert job.ended() == [(0, '')] * 3


def test_a_stranger_is_not_taken_for_a_process():
  server = peer_watchdog.Server()
  address = json.loads(json.dumps(server.address))
  strangers = [address | {'token': 'x'}, address | {'port': 1}]
  import threading

  answers = []
  thread = threading.Thread(
    target=lambda: answers.extend(
      peer_watchdog.connect(a, 1) for a in strangers
    )
  )
  thread.start()
  assert server.accept(2, timeout=2) == {}
  thread.join()
  assert answers == [None, None]
