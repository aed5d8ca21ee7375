"""`experiments.serve` as a person starts it, with the client of its page."""

import contextlib
import io
import json
import signal
import socket
import urllib.error
import urllib.request

import numpy as np
import pytest

from kaiju_jax.model import config as model_config
from kaiju_jax.model import token_head
from kaiju_jax.runs import train
from kaiju_jax.training import experiment as experiment_lib
from tests import pages
from tests.experiments import forked
from tests.serving import private_files
from tests.serving.page import served

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  """A run of the smallest model that has room for a built-in character."""
  tiny = experiment_lib.Experiment()
  tiny.model = model_config.ModelConfig(
    layout='L0 G1', d_model=32, d_ff=64, num_heads=2, head_dim=16, window=64
  )
  tiny.model.max_length = 2048
  tiny.data.length, tiny.data.batch, tiny.loop.steps = 128, 2, 2
  path = tmp_path_factory.mktemp('runs') / 'tiny'
  train.train(tiny, path)
  return path


def write_head(path):
  rng = np.random.default_rng(0)
  params = {'w_DC': rng.normal(0, 1, (32, 1)), 'bias_C': np.zeros(1)}
  token_head.save(path, params, token_head.TokenHeadConfig(('marked',)))


def test_a_person_starts_it_talks_stops_it_and_comes_back(workdir, tmp_path):
  folder = tmp_path / 'server'
  with served.serve(workdir, folder) as (server, address, said):
    assert 'Unmoderated' in said and '127.0.0.1' in address.url
    with pytest.raises(urllib.error.HTTPError, match='401'):
      served.got(address._replace(key='none'), '/v1/sessions')
    assert b'<html' in served.got(address, '/')
    assert json.loads(served.got(address, '/v1/server'))['model'] == 'tiny'
    client = pages.CLIENT
    text = client.text.replace('http://127.0.0.1:8000', address.url)
    assert "api_key='KEY'" in text
    text = text.replace('KEY', address.key)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
      client._replace(text=text).run()
    assert 'cached_tokens' in printed.getvalue()
    (session,) = json.loads(served.got(address, '/v1/sessions'))['data']
    assert served.got(address, '/readyz') == b'ready\n'
    server.send_signal(signal.SIGTERM)
    assert server.wait(250) == 0
  assert private_files.of_others(folder) == {}
  write_head(head := tmp_path / 'head.safetensors')
  flags = f'--head={head}', '--guided=8'
  with served.serve(workdir, folder, *flags) as (server, address, said):
    # The character's prefix was saved, and this head has not judged it.
    assert ': 0 taken back in' in said and 'files refused: 1.' in said
    kept = json.loads(served.got(address, f'/v1/sessions/{session["id"]}'))
    texts = [one['text'] for one in kept['messages'] if one['role'] == 'user']
    assert texts == ['Good morning!', 'What do you like?']
    check_guided(address)
    server.send_signal(signal.SIGINT)
    assert server.wait(250) == 0


def check_guided(address):
  """Asks for a guided reply beside a drawn one."""
  said = {'messages': [{'role': 'user', 'content': 'Hello'}], 'model': 'tiny'}
  payload = said | {'max_tokens': 12, 'temperature': 0}

  def answer(**body):
    path = '/v1/chat/completions'
    return json.loads(served.got(address, path, **payload, **body))['choices'][
      0
    ]

  drawn, searched, again = answer(), answer(guided=True), answer(guided=True)
  assert searched['message'] == again['message']
  assert searched['finish_reason'] in ('stop', 'length')
  assert drawn['message']['role'] == searched['message']['role']


def run(*commands):
  """Returns what came of `experiments.serve` with each list of flags."""
  words = [['experiments.serve', *flags] for flags in commands]
  return forked.run(words, imported=forked.JAX)


def test_what_cannot_be_served_is_said_in_a_line(workdir, tmp_path):
  wrong = {
    '--host=0.0.0.0': 'token',
    '--length=100000': 'max_length',
    '--safety=nowhere': 'nowhere',
    '--head=nowhere': 'nowhere',
    '--store=redis://127.0.0.1:1/0': 'redis',
  }
  flags = f'--model={workdir}', '--port=0', f'--folder={tmp_path}'
  done = run(*([*flags, flag] for flag in wrong))
  for flag, said, one in zip(*zip(*wrong.items()), done, strict=True):
    (line,) = one.stderr.splitlines()
    assert one.returncode == 1 and line.startswith('error: '), flag
    assert said in line.lower() and 'Traceback' not in one.stderr
    assert 'ompiling' not in one.stdout  # What takes long comes last.


def test_a_port_that_is_taken_is_named_before_a_model_is_trained(tmp_path):
  with socket.create_server(('127.0.0.1', 0)) as taken:
    port = taken.getsockname()[1]
    (done,) = run(
      ['--chat', '--train', f'--model={tmp_path}/chat', f'--port={port}']
    )
  assert done.returncode == 1 and f'127.0.0.1:{port}' in done.stderr
  assert not (tmp_path / 'chat').exists()


def test_tokens_are_added_listed_and_revoked(tmp_path):
  flags = '--add_token=ann', '--list_tokens', '--revoke_token=ann'
  age, folder = '--token_age=adult', f'--folder={tmp_path}/s'
  added, listed, revoked, left = run(
    [folder, flags[0], age], *([folder, one] for one in (*flags[1:], flags[1]))
  )
  token = added.stdout.split()[0]
  assert token.startswith('kaiju-')
  assert 'ann  adult' in listed.stdout and token not in listed.stdout
  assert not revoked.returncode and 'ann' not in left.stdout
