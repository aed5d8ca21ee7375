"""Files are whole, whoever writes them at the same time."""

from concurrent import futures
import json
import os
import secrets
import subprocess
import sys

import pytest

from kaiju_jax.storage import files
from kaiju_jax.storage import locks

_WRITER = """
import pathlib, sys
from kaiju_jax.storage import files
path, who = pathlib.Path(sys.argv[1]), sys.argv[2]
for number in range(100):
  files.write_json(path, {'who': who, 'data': [number] * (1 + 97 * number)})
"""


def test_two_processes_that_write_one_file_never_tear_it(tmp_path):
  path = tmp_path / 'a.json'
  files.write_json(path, {'who': '', 'data': []})
  writers = [
    subprocess.Popen([sys.executable, '-c', _WRITER, str(path), who])
    for who in 'ab'
  ]
  while any(one.poll() is None for one in writers):
    _check(path)
  assert [one.returncode for one in writers] == [0, 0]
  _check(path)
  assert os.listdir(tmp_path) == ['a.json']


def _check(path):
  read = json.loads(path.read_text())
  numbers = read['data']
  assert not numbers or len(numbers) == 1 + 97 * numbers[0]


def test_two_threads_that_write_one_file_both_end(tmp_path):
  path = tmp_path / 'a.json'

  def write(who):
    for number in range(100):
      files.write_json(path, {'data': [number] * (1 + 97 * number)})
      _check(path)

  with futures.ThreadPoolExecutor(4) as threads:
    list(threads.map(write, range(4)))
  assert os.listdir(tmp_path) == ['a.json']


def test_what_fails_leaves_the_old_file_and_no_other(tmp_path):
  path = tmp_path / 'a.txt'
  files.write_text(path, 'old')
  with pytest.raises(KeyboardInterrupt), files.replacing(path) as partial:
    partial.write_text('ne')
    raise KeyboardInterrupt
  assert path.read_text() == 'old'
  assert os.listdir(tmp_path) == ['a.txt']


def test_a_lock_is_its_threads_until_it_has_left_as_often_as_it_entered(
  tmp_path,
):
  file = tmp_path / 'lock'

  def enter():
    with locks.hold(file, 'folder f', 'writes', '--out'):
      pass

  with futures.ThreadPoolExecutor(1) as other:
    with locks.hold(file, 'folder f', 'writes', '--out'):
      enter()
      message = f'folder f: process {os.getpid()} writes here already'
      with pytest.raises(BlockingIOError, match=message):
        other.submit(enter).result()
      command = (
        'from kaiju_jax.storage import locks\n'
        f"with locks.hold({str(file)!r}, 'folder f', 'writes', '--out'): pass"
      )
      child = subprocess.run(
        [sys.executable, '-c', command], capture_output=True, text=True
      )
      assert message in child.stderr
    other.submit(enter).result()


@pytest.mark.parametrize('is_private', [False, True])
def test_a_private_lock_is_its_users_alone(tmp_path, is_private):
  old = tmp_path / 'old'
  old.touch(0o640)
  before = os.umask(0o022)
  try:
    for path in old, tmp_path / 'new':
      with locks.hold(path, 'folder f', 'writes', '--out', is_private):
        assert path.read_text() == f'{os.getpid()}\n'
  finally:
    os.umask(before)
  modes = [x.stat().st_mode & 0o777 for x in (old, tmp_path / 'new')]
  assert modes == ([0o600, 0o600] if is_private else [0o640, 0o644])


def test_a_start_that_dies_leaves_no_half_of_a_secret(tmp_path, monkeypatch):
  path = tmp_path / 'key'

  def die(*_):
    raise KeyboardInterrupt

  for module, name in (secrets, 'token_bytes'), (os, 'fsync'), (os, 'link'):
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
      patched.setattr(module, name, die)
      files.load_secret(path, 32)
    assert not os.listdir(tmp_path)
  key = files.load_secret(path, 32)
  assert len(key) == 32 and files.load_secret(path, 32) == key
  assert path.stat().st_mode & 0o777 == 0o600
  assert os.listdir(tmp_path) == [path.name]
  path.write_bytes(b'')
  with pytest.raises(ValueError, match='0 bytes: must be 32'):
    files.load_secret(path, 32)


def test_the_disk_has_all_bytes_before_a_name_does(tmp_path, monkeypatch):
  calls, sync = [], os.fsync

  def fsync(number):
    sync(number)
    calls.append(('fsync', os.fstat(number).st_size))

  monkeypatch.setattr(os, 'fsync', fsync)
  for name in 'link', 'replace', 'rename':
    call = getattr(os, name)
    monkeypatch.setattr(
      os, name, lambda *x, call=call: (calls.append('named'), call(*x))
    )
  path = tmp_path / 'key'
  files.create_secret(path, b'12345')
  files.write_text(path, 'é' * 1000)
  files.write_json(path, [1])
  files.write_json_lines(path, [1, 22])
  sizes = 5, 2000, 8, 5
  assert calls == [x for n in sizes for x in (('fsync', n), 'named')]
