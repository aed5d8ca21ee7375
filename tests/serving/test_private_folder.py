"""All that a server writes in its folder is its owner's alone to read."""

import os
import types

import pytest

from kaiju_jax.app import server_folder
from kaiju_jax.serving.http import auth
from kaiju_jax.serving.http import loopback
from kaiju_jax.serving.replies import saved_points
from kaiju_jax.serving.safety import moderation
from tests.decoding import saved_device
from tests.serving import private_files
from tests.serving import running
from tests.serving import world


@pytest.fixture
def open_umask():
  """Files get the modes that the code names."""
  former = os.umask(0)
  yield
  os.umask(former)


def test_nobody_else_may_read_any_file(tmp_path, open_umask):
  """A session with all that writes: texts, points, feedback, drift, keys."""
  folder = tmp_path / 'server'
  settings = types.SimpleNamespace(
    folder=str(folder),
    safety='',
    host='127.0.0.1',
    open=False,
    require_token=False,
    age='adult',
    store='sqlite',
    feedback=False,
  )
  head = moderation.Head('v1', ('marked',))
  parts = server_folder.open_parts(
    settings, ({}, types.SimpleNamespace(names=head.names)), lambda text: None
  )
  loopback.load_key(folder / loopback.OPERATOR_FILE)
  drift = server_folder.open_drift(folder)
  drift.write(b'limits', 0.0)
  parts.moderator._blocked.add('gate', 'adult', 'd', 0.5, 'v', 'ann', 'text')

  def engine(tokenizer):
    return world.Engine(tokenizer, length=running.LENGTH, pages=3000)

  def points(worker, store):
    return saved_points.SavedPoints(
      worker,
      saved_device.saving_of(worker.engine),
      server_folder.open_points(folder, 2**22),
      most=2**22,
      texts=saved_points.SavedTexts(
        store, auth.Tokens(folder / auth.FILE), True
      ),
      interval_s=3600.0,
    )

  with running.server(
    folder, engine=engine, store=parts.store, points=points
  ) as server:
    session = server.post('/v1/sessions', 'ann', character=running.CHARACTER)
    reply = server.post(
      '/v1/chat/completions',
      'ann',
      model=running.MODEL,
      session=session['id'],
      messages=[{'role': 'user', 'content': 'Good evening.'}],
      max_tokens=4,
    )
    server.ask('PUT', '/v1/feedback', {'agrees': True}, 'ann')
    message = reply['kaiju']['message']
    server.post(
      f'/v1/sessions/{session["id"]}/messages/{message}/rating',
      'ann',
      rating='good',
    )
    assert server.context.points.save()
    during = private_files.of_others(folder)
  written = {path.name for path in folder.rglob('*')}
  assert {'points', 'lock', 'drift', 'blocked', 'key', auth.FILE} <= written
  assert len(list(folder.rglob('*'))) >= 10
  assert (during, private_files.of_others(folder)) == ({}, {})


def test_an_older_folder_of_blocked_texts_is_closed(tmp_path):
  (tmp_path / 'blocked').mkdir(mode=0o755)
  server_folder.blocked.Blocked(tmp_path / 'blocked', b'k' * 32)
  assert private_files.of_others(tmp_path / 'blocked') == {}
