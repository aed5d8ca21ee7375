"""Commands run side by side, apart from each other, and stop when told."""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from kaiju_jax.runs import pool

needs_affinity = pytest.mark.skipif(
  not hasattr(os, 'sched_getaffinity'), reason='no core affinity here'
)


class Record:
  """What ended, with which status."""

  def __init__(self):
    self.statuses = {}

  def run(self, commands, at_once):
    places = pool.share_cores([{}] * at_once)
    for event in pool.run(commands, places):
      if event is not None:
        self.statuses[event.name] = event.status


def job(folder: pathlib.Path, name: str, source: str) -> pool.Command:
  return pool.Command(
    name, (sys.executable, '-c', source), folder / name / 'log'
  )


SAVES = """
import os, signal, sys, time
from kaiju_jax.runs import pool
def save(*_):
  print('saved', flush=True)
  sys.exit()
signal.signal(signal.SIGTERM, save)
pool.end_with_parent()
print('KAIJU_PARENT' in os.environ, 'ready', flush=True)
time.sleep(60)
"""
# Is ready only after the end of its parent.
LATE = SAVES.replace(
  'pool.end_with_parent()',
  "print('False ready', flush=True)\n"
  "while os.path.exists('/proc/' + os.environ['KAIJU_PARENT']):\n"
  '  time.sleep(0.02)\n'
  'pool.end_with_parent()',
)
STARTS = """
import pathlib, sys
from kaiju_jax.runs import pool
words = sys.executable, '-c', sys.argv[1]
command = pool.Command('saves', words, pathlib.Path(sys.argv[2]))
for _ in pool.run([command], [pool.Place()]): pass
"""
# Has the variable of its parent, as a grandchild of another command's.
BETWEEN = """
import subprocess, sys
subprocess.Popen([sys.executable, '-c', '''%s'''.replace('60', '1')]).wait()
print('lived', flush=True)
"""


def until(condition, seconds=60):
  """Waits for a condition; returns whether it holds in time."""
  end = time.monotonic() + seconds
  while not (is_so := condition()) and time.monotonic() < end:
    time.sleep(0.02)
  return is_so


@pytest.mark.skipif(sys.platform != 'linux', reason='prctl is of Linux')
@pytest.mark.parametrize(
  'source, said',
  [
    (SAVES, 'saved'),
    (LATE, 'saved'),
    (BETWEEN % SAVES, 'lived'),
    (BETWEEN % LATE, 'lived'),
  ],
)
def test_a_command_saves_when_its_parent_is_killed(tmp_path, source, said):
  def wait_for(word):
    assert until(lambda: log.exists() and word in log.read_text())

  log = tmp_path / 'log'
  words = sys.executable, '-c', STARTS, source, str(log)
  with subprocess.Popen(words) as parent:
    wait_for('False ready\n')
    parent.kill()
  wait_for(f'{said}\n')
  assert ('\nsaved\n' in log.read_text()) == (said == 'saved')


@pytest.mark.parametrize(
  'cores, places, slices',
  [
    ((0, 1, 2, 3), 1, [(0, 1, 2, 3)]),
    ((0, 1, 2, 3), 2, [(0, 1), (2, 3)]),
    ((2, 5, 6, 9, 11), 2, [(2, 5), (6, 9, 11)]),
    ((0, 1, 2, 3), 4, [(0,), (1,), (2,), (3,)]),
    ((4, 7), 3, [(4,), (7,), (4,)]),
    ((4, 7), 5, [(4,), (7,), (4,), (7,), (4,)]),
  ],
)
def test_core_slices(cores, places, slices):
  assert pool.core_slices(cores, places) == slices


def test_one_failure_stops_no_other_and_logs_keep_what_was_printed(tmp_path):
  record = Record()
  record.run(
    [
      job(tmp_path, 'good', "print('fine')"),
      job(tmp_path, 'bad', "raise SystemExit('out of luck')"),
      job(tmp_path, 'killed', 'import os; os.kill(os.getpid(), 9)'),
      job(tmp_path, 'late', "print('fine too')"),
    ],
    at_once=2,
  )
  assert record.statuses == {'good': 0, 'bad': 1, 'killed': -9, 'late': 0}
  assert 'out of luck' in (tmp_path / 'bad' / 'log').read_text()
  assert (tmp_path / 'late' / 'log').read_text().endswith('fine too\n')


def test_a_log_is_appended_to(tmp_path):
  for word in ('one', 'two'):
    Record().run([job(tmp_path, 'same', f'print("{word}")')], 1)
  text = (tmp_path / 'same' / 'log').read_text()
  assert text.index('one') < text.index('two')


@needs_affinity
def test_each_place_has_cores_of_its_own(tmp_path):
  before = os.sched_getaffinity(0)
  # Each ends once both have begun.
  source = (
    'import os, pathlib, time\n'
    'print("cores", *os.sched_getaffinity(0))\n'
    f'here = pathlib.Path({str(tmp_path)!r})\n'
    '(here / str(os.getpid())).touch()\n'
    'while sum(path.is_file() for path in here.iterdir()) < 2:\n'
    '  time.sleep(.01)\n'
  )
  names = [f'job{i}' for i in range(2)]
  Record().run([job(tmp_path, name, source) for name in names], at_once=2)
  seen = [
    {
      int(x)
      for x in (tmp_path / n / 'log').read_text().split('cores ')[-1].split()
    }
    for n in names
  ]
  assert seen == [set(s) for s in pool.core_slices(sorted(before), 2)]
  assert os.sched_getaffinity(0) == before


WAITS = """
import pathlib, signal, sys, time
def save(*_):
  pathlib.Path(sys.argv[1]).write_text('saved')
  sys.exit(0)
signal.signal(signal.SIGTERM, save)
print('ready', flush=True)
time.sleep(60)
"""


def interrupt_when(condition) -> threading.Thread:
  """Sends this process one Ctrl-C as soon as `condition()` holds."""

  def wait():
    until(condition, 100)
    os.kill(os.getpid(), signal.SIGINT)

  thread = threading.Thread(target=wait)
  thread.start()
  return thread


def test_ctrl_c_lets_running_jobs_save_and_starts_no_more(tmp_path):
  folders = [tmp_path / name for name in ('a', 'b', 'c')]
  all_jobs = [
    pool.Command(
      folder.name,
      (sys.executable, '-c', WAITS, str(folder / 'saved')),
      folder / 'log',
    )
    for folder in folders
  ]

  def ready():
    logs = [folder / 'log' for folder in folders[:2]]
    return all(log.exists() and 'ready\n' in log.read_text() for log in logs)

  thread = interrupt_when(ready)
  record = Record()
  with pytest.raises(KeyboardInterrupt):
    record.run(all_jobs, at_once=2)
  thread.join()
  assert record.statuses == {'a': 0, 'b': 0}
  assert [(f / 'saved').exists() for f in folders] == [True, True, False]


def test_a_job_that_does_not_stop_is_killed_with_its_children(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(pool, 'PATIENCE', 0.5)
  source = (
    'import signal, subprocess, sys, time\n'
    'signal.signal(signal.SIGTERM, signal.SIG_IGN)\n'
    "child = subprocess.Popen(['sleep', '60'])\n"
    "print('child:', child.pid, flush=True)\n"
    'time.sleep(60)\n'
  )
  log = tmp_path / 'deaf' / 'log'
  thread = interrupt_when(
    lambda: log.exists() and '\nchild: ' in log.read_text()
  )
  record = Record()
  with pytest.raises(KeyboardInterrupt):
    record.run([job(tmp_path, 'deaf', source)], 1)
  thread.join()
  assert record.statuses == {'deaf': -signal.SIGKILL}
  child = int(log.read_text().split('\nchild: ')[-1])
  assert until(lambda: not _is_alive(child))


def test_an_interruption_at_a_start_leaves_no_job_behind(tmp_path, monkeypatch):
  start = pool.start

  def interrupted(*words):
    os.kill(os.getpid(), signal.SIGINT)
    return start(*words)

  monkeypatch.setattr(pool, 'start', interrupted)
  record = Record()
  with pytest.raises(KeyboardInterrupt):
    record.run([job(tmp_path, 'a', 'import time; time.sleep(60)')], 1)
  assert record.statuses == {'a': -signal.SIGTERM}


def test_a_second_ctrl_c_kills(tmp_path):
  source = (
    'import signal, time\n'
    'signal.signal(signal.SIGTERM, lambda *_: print("saving", flush=True))\n'
    'print("ready:", flush=True)\n'
    'while True: time.sleep(1)\n'
  )
  log = tmp_path / 'slow' / 'log'

  def printed(text):
    return lambda: log.exists() and f'\n{text}\n' in log.read_text()

  first = interrupt_when(printed('ready:'))
  second = interrupt_when(printed('saving'))
  record = Record()
  with pytest.raises(KeyboardInterrupt):
    record.run([job(tmp_path, 'slow', source)], 1)
  first.join()
  second.join()
  assert record.statuses == {'slow': -signal.SIGKILL}


def _is_alive(pid: int) -> bool:
  try:
    state = pathlib.Path(f'/proc/{pid}/stat').read_text().split(') ')[-1][0]
  except FileNotFoundError:
    return False
  return state != 'Z'
