"""The files of an export, and stores, keys and folders out of order."""

import concurrent.futures
import contextlib
import itertools
import os
import shutil

import pytest

from kaiju_jax.alignment.feedback import export
from kaiju_jax.alignment.feedback import tree
from kaiju_jax.app import server_folder
from kaiju_jax.serving.http import auth
from kaiju_jax.serving.stores import characters
from kaiju_jax.serving.stores import sqlite_file
from kaiju_jax.storage import files
from kaiju_jax.storage import locks
from tests.experiments import forked
from tests.serving import older_stores

KEY = bytes(range(32))


@pytest.fixture
def folder(tmp_path):
  """The folder of a server of the code before ratings; 'ann' has agreed."""
  path = tmp_path / 'server'
  path.mkdir()
  older_stores.write_sqlite(path / server_folder.SQLITE)
  files.create_secret(path / server_folder.KEY, KEY)
  auth.Tokens(path / auth.FILE).add('ann', 'adult', feedback=True)
  return path


@pytest.fixture
def out(tmp_path):
  return tmp_path / 'out'


def run(store, out, key=KEY):
  opened = server_folder.open_store(store, 'sqlite')
  try:
    tokens = auth.Tokens(store / auth.FILE)
    return export.export(opened, tokens, key, out)
  finally:
    opened.close()


def read(out) -> dict[str, bytes]:
  return {file.name: file.read_bytes() for file in out.iterdir()}


def test_an_export_that_fails_leaves_the_former_one(folder, out, monkeypatch):
  run(folder, out)
  before = read(out)
  for name, count in itertools.product(('fsync', 'mkdir', 'rename'), range(4)):
    calls, whole = itertools.count(), getattr(os, name)
    with monkeypatch.context() as patch:

      def fail(*values, whole=whole, calls=calls, count=count, **more):
        if next(calls) >= count:
          raise OSError(28, 'No space left on device')
        return whole(*values, **more)

      patch.setattr(os, name, fail)
      with contextlib.suppress(OSError):
        run(folder, out)
    # Where it failed between two renames, the next one puts it back.
    run(folder, out)
    assert read(out) == before
    assert sorted(os.listdir(out.parent)) == ['.out.lock', 'out', 'server']


def test_what_a_kill_left_is_tidied_up(folder, out):
  run(folder, out)
  before = read(out)
  # Between the two renames.
  out.rename(out.with_name('.out.former'))
  (out.with_name('.out.partial')).mkdir()
  (out.with_name('.out.partial') / 'train.jsonl').write_text('{"half')
  result = run(folder, out)
  assert read(out) == before and not result.gone
  assert sorted(os.listdir(out.parent)) == ['.out.lock', 'out', 'server']


def test_one_process_exports_at_a_time(folder, out):
  lock = out.with_name('.out.lock')
  with (
    locks.hold(lock, 'folder', 'exports', '--out'),
    concurrent.futures.ThreadPoolExecutor(1) as thread,
    pytest.raises(BlockingIOError, match='another --out'),
  ):
    thread.submit(run, folder, out).result()
  assert not out.exists()


def test_another_key_is_refused_and_leaves_the_export(folder, out):
  run(folder, out)
  before = read(out)
  with pytest.raises(ValueError, match='with another key'):
    run(folder, out, key=bytes(32))
  assert read(out) == before


def test_what_is_no_export_is_left_as_it_is(folder, out):
  out.mkdir()
  (out / 'mine.txt').write_text('mine')
  with pytest.raises(ValueError, match='no export of feedback'):
    run(folder, out)
  assert read(out) == {'mine.txt': b'mine'}
  (out / export.MANIFEST).write_text('{"format": 7}')
  with pytest.raises(ValueError, match='not of format 1'):
    run(folder, out)
  assert (out / 'mine.txt').exists()


def test_the_command_exports_an_older_store(folder, out):
  """And says in one line which folder is not in order, and why."""
  faults = [
    (lambda f: (f / server_folder.KEY).unlink(), 'no key'),
    (lambda f: (f / server_folder.KEY).chmod(0o640), 'mode 640'),
    (lambda f: (f / server_folder.KEY).write_bytes(b'short'), '5 bytes'),
    (lambda f: (f / auth.FILE).chmod(0o644), 'mode 644'),
    (lambda f: (f / auth.FILE).write_text('{'), 'not valid JSON'),
    (lambda f: (f / server_folder.SQLITE).unlink(), 'no characters.sqlite'),
    (lambda f: _set_schema(f / server_folder.SQLITE), 'newer kaiju_jax'),
  ]
  spoilt, before = [], []
  for number, (spoil, _) in enumerate(faults):
    spoilt.append(folder.with_name(f'server{number}'))
    shutil.copytree(folder, spoilt[-1])
    spoil(spoilt[-1])
    before.append(sorted(os.listdir(spoilt[-1])))

  def words(store, out):
    return ['experiments.feedback', f'--store={store}', f'--out={out}']

  file = folder / server_folder.SQLITE
  one, two, *others = forked.run(
    [
      words(folder, out),
      words(file, out.with_name('again')),
      *(words(path, out.with_name('none')) for path in spoilt),
    ],
    imported=forked.JAX,
  )
  assert one.returncode == two.returncode == 0, one.stderr + two.stderr
  assert '1 owners who agree' in one.stdout
  data = read(out)
  assert b'"Me."' in data[export.TRAIN] + data[export.HELD_OUT]
  assert read(out.with_name('again')) == data
  for done, (_, match), path, had in zip(others, faults, spoilt, before):
    assert done.returncode == 1 and match in done.stderr, done.stderr
    assert 'Traceback' not in done.stderr
    # Not even a key is drawn, nor a store made.
    assert sorted(os.listdir(path)) == had
  assert not out.with_name('none').exists()


def _set_schema(path):
  connection = sqlite_file.connect(str(path))
  connection.execute(f'PRAGMA user_version={sqlite_file.SCHEMA + 1}')
  connection.close()


def test_a_redis_needs_the_folder_of_its_tokens(folder):
  with pytest.raises(ValueError, match=r'--folder') as error:
    server_folder.find('redis://:password@host/0', '')
  assert 'password' not in str(error.value)
  found = server_folder.find('redis://host/0', str(folder))
  assert found == (folder, 'redis://host/0')
  with pytest.raises(ValueError, match='must be left out'):
    server_folder.find(str(folder), str(folder.parent))


# Trees that no page makes.


def session(count):
  return characters.Session(
    's', 'ann', 'c', 1, 0, count - 1, 'Ann', 0.0, 0.0, count, 0
  )


def test_many_edits_do_not_multiply_a_conversation():
  messages, reply = [], None
  for _ in range(1_500):
    for text in 'one', 'two':  # Both versions of each message.
      messages.append(
        characters.Message(len(messages), reply, 'user', text * 20)
      )
      messages.append(
        characters.Message(
          len(messages),
          len(messages) - 1,
          'assistant',
          f'r{reply}',
          finish='stop',
        )
      )
    reply = len(messages) - 1
  size = sum(len(one.text) for one in messages)
  found = tree.read(session(len(messages)), messages, {}, 'A person.')
  assert found.counts['lines_too_long'] > 1_000
  written = sum(len(str(line)) for line in found.lines)
  assert written < 2**16 + 40 * size


def test_what_does_not_alternate_or_is_blank_is_left_out():
  said = [
    ('user', None, 'Hi.', None),
    ('user', 0, 'PLANTED two in a row', None),
    ('assistant', 0, ' \n', 'stop'),
    ('assistant', 0, 'Yes.', 'stop'),
    ('assistant', 3, 'PLANTED two in a row', 'stop'),
    ('user', 3, '', None),
    ('assistant', 5, 'PLANTED below', 'stop'),
  ]
  messages = [
    characters.Message(number, parent, role, text, finish=finish)
    for number, (role, parent, text, finish) in enumerate(said)
  ]
  (line,) = tree.read(session(7), messages, {}, '').lines
  assert [one['content'] for one in line] == ['Hi.', 'Yes.']


def test_a_card_without_a_text_has_no_system_message():
  messages = [
    characters.Message(0, None, 'user', 'Hi.'),
    characters.Message(1, 0, 'assistant', 'Yes.', finish='stop'),
  ]
  (line,) = tree.read(session(2), messages, {}, ' ').lines
  assert line[0]['role'] == 'user'
