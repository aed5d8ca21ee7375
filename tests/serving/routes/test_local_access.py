"""Who is answered on loopback: whoever has the key, and no proxy without it."""

import contextlib
import http.client
import json
import shutil
import socket
import subprocess
import time
import urllib.parse

import pytest

from kaiju_jax.serving.http import loopback
from tests import ports
from tests.serving import browser as browser_lib
from tests.serving import plain_proxy
from tests.serving import running

CHAT = running.chat(max_tokens=2)
# What tells or does anything: all but the page's files and the probes.
ASKED = (
  *(
    ('GET', path, None)
    for path in (
      *('/v1/sessions', '/v1/models', '/v1/characters', '/v1/server'),
      *('/metrics', '/v1/feedback'),
    )
  ),
  ('PUT', '/v1/feedback', {'agrees': False}),
  ('POST', '/v1/key', {}),
  ('POST', '/v1/sessions', {'character': running.CHARACTER}),
  ('POST', '/v1/chat/completions', CHAT),
  ('POST', '/v1/completions', running.complete()),
)


@pytest.fixture(scope='module')
def key(tmp_path_factory):
  return loopback.load_key(tmp_path_factory.mktemp('key') / 'key')


@pytest.fixture(scope='module')
def server(tmp_path_factory, key):
  folder = tmp_path_factory.mktemp('server')
  with running.server(folder, key=key) as server:
    yield server


def send(address, method, path, body=None, **headers):
  """Returns an answer's status, headers and body."""
  headers = {name.replace('_', '-'): x for name, x in headers.items()}
  connection = http.client.HTTPConnection(
    urllib.parse.urlsplit(address).netloc, timeout=20
  )
  with contextlib.closing(connection):
    data = None if body is None else json.dumps(body)
    kind = {'Content-Type': 'application/json'}
    connection.request(method, path, data, kind | headers)
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


def check_closed(address, key):
  """Checks that only those with the key are answered, and by which status."""
  for method, path, body in ASKED:
    for more in (
      {},
      {'Host': 'chat.example.org'},
      {'Authorization': 'Bearer none'},
      {'Cookie': 'kaiju_=; key='},
      {'X_Forwarded_For': '127.0.0.1', 'Forwarded': 'for=127.0.0.1'},
    ):
      status, headers, found = send(address, method, path, body, **more)
      assert status in (401, 403, 429), (path, more, status, found)
      assert key not in f'{headers}{found}'
  bearing = {'Authorization': f'Bearer {key}'}
  status, headers, _ = send(address, 'POST', '/v1/key', {}, **bearing)
  assert status == 204
  cookie = headers['Set-Cookie'].partition(';')[0]
  for given in bearing, {'Cookie': cookie}:
    assert send(address, 'GET', '/v1/sessions', **given)[0] == 200
    path = '/v1/chat/completions'
    assert send(address, 'POST', path, CHAT, **given)[0] == 200


def test_without_the_key_nothing_is_answered(server, key):
  check_closed(server.address, key)
  assert send(server.address, 'GET', '/healthz')[0] == 200


def test_a_proxy_that_adds_no_header_lets_nobody_in(server, key):
  with plain_proxy.serving(server.address) as address:
    check_closed(address, key)


@pytest.mark.slow
def test_a_default_nginx_lets_nobody_in(server, key, tmp_path):
  path = shutil.which('nginx', path='/usr/sbin:/usr/bin:/usr/local/sbin')
  if path is None:
    pytest.skip('no nginx: apt-get install nginx-light')
  port = ports.free()
  (tmp_path / 'nginx.conf').write_text(
    f'daemon off; master_process off; pid {tmp_path}/pid;\n'
    f'error_log {tmp_path}/error;\n'
    'events {}\n'
    'http {\n'
    f'  access_log {tmp_path}/access;\n'
    + ''.join(
      f'  {kind}_temp_path {tmp_path}/{kind};\n'
      for kind in ('client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi')
    )
    + f'  server {{ listen 127.0.0.1:{port};\n'
    f'    location / {{ proxy_pass {server.address}; }} }}\n'
    '}\n'
  )
  command = [path, '-p', tmp_path, '-c', tmp_path / 'nginx.conf']
  with subprocess.Popen(
    [*map(str, command)], stderr=subprocess.DEVNULL
  ) as nginx:
    try:
      end = time.monotonic() + 60
      while socket.socket().connect_ex(('127.0.0.1', port)):
        assert nginx.poll() is None and time.monotonic() < end
        time.sleep(0.02)
      check_closed(f'http://127.0.0.1:{port}', key)
    finally:
      nginx.terminate()
  assert key not in (tmp_path / 'access').read_text()


@pytest.mark.slow
@pytest.mark.flaky(reruns=2)
def test_the_printed_address_opens_the_page_and_the_browser_keeps_its_key(
  key, tmp_path
):
  with (
    # Its own: failures from this machine are limited.
    running.server(tmp_path, key=key) as server,
    browser_lib.chromium() as chromium,
    contextlib.closing(chromium.new_context()) as context,
  ):
    page = context.new_page()
    page.goto(f'{server.address}/#key={key}')
    page.get_by_text('keeps a lighthouse').wait_for()
    assert key not in page.url
    (cookie,) = context.cookies()
    assert cookie['httpOnly'] and cookie['sameSite'] == 'Strict'
    assert page.evaluate('document.cookie') == ''
    page.goto('about:blank')
    page.goto(server.address)
    page.get_by_text('keeps a lighthouse').wait_for()
    assert not page.locator('#token').is_visible()
    with contextlib.closing(chromium.new_context()) as other:
      page = other.new_page()
      page.goto(server.address)
      page.locator('#token').wait_for()
      page.locator('#token-text').fill(key)
      page.locator('#token .primary').click()
      page.get_by_text('keeps a lighthouse').wait_for()
