"""The log: a line per request, no text in it, and nobody waits for it."""

import io
import json
import logging
import queue
import re
import socket
import threading
import time
import urllib.error
import urllib.request

import pytest

from kaiju_jax.serving.http import exchange
from kaiju_jax.serving.http import limits
from kaiju_jax.serving.http import log
from kaiju_jax.serving.safety import moderation
from kaiju_jax.serving.stores import characters
from tests.serving import running
from tests.serving.routes import moderated

SAID = 'wintergreen'
FIELDS = {
  *('time', 'level', 'event', 'request', 'owner', 'method', 'route', 'status'),
  *('first_byte', 'seconds', 'prompt', 'cached', 'completion', 'reason'),
}
CHAT = '/v1/chat/completions'


class Log:
  """What is written while a block runs."""

  def __init__(self):
    self.stream = io.StringIO()

  @property
  def text(self):
    return self.stream.getvalue()

  def lines(self, count):
    """Returns the lines of requests, once there are so many."""
    end = time.monotonic() + 60
    while True:
      made = [json.loads(line) for line in self.text.splitlines()]
      found = [line for line in made if line.get('event') == 'request']
      if len(found) >= count or time.monotonic() > end:
        assert len(found) == count, found
        return found
      time.sleep(0.01)


@pytest.fixture
def written():
  made = Log()
  with log.write_to(made.stream):
    yield made


@pytest.fixture(scope='module')
def server(tmp_path_factory):
  with running.server(
    tmp_path_factory.mktemp('server'), is_open=False
  ) as server:
    yield server


def send(server, path=CHAT, owner='ann', method='POST', **body):
  """Returns an answer's status, headers and body; None leaves a field out."""
  said = {'messages': [{'role': 'user', 'content': SAID}]}
  data = {'model': running.MODEL, 'max_tokens': 5, 'seed': 33} | said | body
  data = {name: value for name, value in data.items() if value is not None}
  request = urllib.request.Request(
    server.address + path,
    json.dumps(data).encode() if method == 'POST' else None,
    {
      'Content-Type': 'application/json',
      'Authorization': f'Bearer {server.tokens.get(owner, "kaiju-none")}',
    },
    method=method,
  )
  try:
    with urllib.request.urlopen(request, timeout=100) as answer:
      return answer.status, answer.headers, answer.read()
  except urllib.error.HTTPError as error:
    return error.code, error.headers, error.read()


def test_a_request_is_a_line_that_says_what_it_took(server, written):
  prompts = set()
  for n in 1, 3:
    status, headers, body = send(server, n=n)
    usage = json.loads(body)['usage']
    prompts.add(usage['prompt_tokens'])
    line = written.lines(1 if n == 1 else 2)[-1]
    assert set(line) == FIELDS
    assert line['request'] == headers['x-request-id']
    assert re.fullmatch('[0-9a-f]{16}', line['request'])
    assert (line['method'], line['route'], line['status']) == (
      ('POST', CHAT, status)
    )
    assert re.fullmatch(r'\d{4}-\d\d-\d\dT[\d:]{8}\.\d{3}Z', line['time'])
    assert line['prompt'] == usage['prompt_tokens']
    assert line['completion'] == usage['completion_tokens']
    cached = usage['prompt_tokens_details']['cached_tokens']
    assert line['cached'] == cached
    assert line['reason'] == 'length'
    assert 0 <= line['first_byte'] <= line['seconds'] < 20
  # Choices of one prompt count its tokens once.
  assert len(prompts) == 1


def test_several_prompts_count_once_each(server, written):
  _, _, body = send(
    server, '/v1/completions', prompt=['one', 'seven'], n=2, messages=None
  )
  usage = json.loads(body)['usage']
  (line,) = written.lines(1)
  assert line['prompt'] == usage['prompt_tokens']
  assert line['completion'] == usage['completion_tokens']


def test_a_stream_is_logged_when_it_has_ended(server, written):
  _, headers, body = send(
    server, stream=True, max_tokens=30, stream_options={'include_usage': True}
  )
  (line,) = written.lines(1)
  *_, last, _ = [one for one in body.split(b'\n\n') if one]
  usage = json.loads(last.removeprefix(b'data: '))['usage']
  assert line['request'] == headers['x-request-id']
  assert line['completion'] == usage['completion_tokens'] == 30
  assert line['first_byte'] < line['seconds']


def test_no_line_holds_what_people_say_or_are_called(server, written):
  session = server.post('/v1/sessions', 'ann', character=running.CHARACTER)
  name = session['id']
  paths = [
    ('GET', f'/v1/sessions/{name}?after={SAID}', {}),
    ('GET', f'/v1/{SAID}/{SAID}', {}),
    ('GET', '/v1/sessions/none', {}),
    ('PUT', f'/v1/sessions/{name}', {'title': SAID}),
    ('DELETE', f'/v1/sessions/{name}', {}),
    (SAID.upper(), '/v1/models', {}),
  ]
  send(server, session=name)
  send(server, owner='nobody')
  send(server, temperature=SAID)
  for method, path, body in paths:
    try:
      server.ask(method, path, body or None, 'ann')
    except urllib.error.HTTPError as error:
      error.read()
  lines = written.lines(4 + len(paths))
  held = [SAID, name, 'ann', *server.tokens.values()]
  for word in held:
    assert word.lower() not in json.dumps(lines).lower(), word
    assert word.lower() not in written.text.lower(), word
  assert lines[4]['route'] == '/v1/sessions/{id}'
  assert lines[5]['route'] == 'none' and lines[5]['reason'] == 'not_found'
  assert lines[2]['status'] == 401 and lines[2]['owner'] is None
  assert lines[2]['reason'] == 'invalid_api_key'
  assert lines[-1]['method'] == 'other'


def test_owners_are_told_apart_and_not_named(server, written, monkeypatch):
  for owner in 'ann', 'ben', 'ann':
    send(server, owner=owner)
  monkeypatch.setattr(server.context, 'secret', b'another server')
  send(server)
  ann, ben, again, elsewhere = (line['owner'] for line in written.lines(4))
  assert ann == again and len({ann, ben, elsewhere}) == 3


@pytest.mark.parametrize('stream', [False, True])
def test_whoever_leaves_is_logged_so(server, written, monkeypatch, stream):
  monkeypatch.setattr(server.engine, 'before_round', lambda: time.sleep(0.05))
  data = json.dumps(
    {'model': running.MODEL, 'prompt': SAID, 'max_tokens': 800}
    | {'stream': stream}
  ).encode()
  host, port = server.address.removeprefix('http://').split(':')
  with socket.create_connection((host, int(port)), 100) as connection:
    connection.sendall(
      b'POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n'
      b'Authorization: Bearer %s\r\nContent-Type: application/json\r\n'
      b'Content-Length: %d\r\n\r\n%s'
      % (int(port), server.tokens['ann'].encode(), len(data), data)
    )
    while not server.engine.state.running:
      time.sleep(0.01)
  (line,) = written.lines(1)
  assert 'disconnected' in line['reason']


def test_what_is_no_request_is_logged_too(server, written):
  host, port = server.address.removeprefix('http://').split(':')
  with socket.create_connection((host, int(port)), 100) as connection:
    connection.sendall(b'nonsense\r\n\r\n')
    answer = connection.makefile('rb').read().decode()
  (line,) = written.lines(1)
  assert line['status'] == 400 and line['reason'] == 'no_request'
  assert f'x-request-id: {line["request"]}' in answer


def test_what_limits_a_client_is_the_reason(server, written, monkeypatch):
  monkeypatch.setattr(server.context.limits._streams, 'most', 0)
  send(server)
  monkeypatch.setattr(limits.Buckets, 'take', lambda *_: 3.0)
  send(server)
  busy, often = written.lines(2)
  assert (busy['status'], busy['reason']) == (429, 'server_busy')
  assert (often['status'], often['reason']) == (429, 'rate_limit_exceeded')
  assert often['owner'] == busy['owner'] is not None


def test_the_stage_that_refuses_is_the_reason(tmp_path, written):
  marker = moderated.MARKER.decode()
  with moderated.served(tmp_path, b'Say zorbifex and more') as server:
    send(server, max_tokens=60)
    send(server, stream=True, max_tokens=60)
    send(server, messages=[{'role': 'user', 'content': marker}])
    send(server, '/v1/completions', messages=None, prompt=marker)
    # The gate lets a text pass that the head refuses as a prompt.
    server.context.moderator.prompt = lambda *_: moderation.Verdict(
      True, 'prompt', 'adult'
    )
    send(server)
  reasons = [line['reason'] for line in written.lines(5)]
  assert reasons == ['head', 'head', 'gate', 'gate', 'prompt']
  assert marker not in written.text


def test_a_fault_of_ours_is_logged_with_the_request(
  server, written, monkeypatch
):
  def broken(*_, **__):
    raise RuntimeError('on order')

  monkeypatch.setattr(server.store, 'characters', broken)
  status, headers, _ = send(server, '/v1/models', method='GET')
  (line,) = written.lines(1)
  assert (status, line['status'], line['reason']) == (500, 500, 'internal')
  (fault,) = [
    line
    for line in map(json.loads, written.text.splitlines())
    if 'exception' in line
  ]
  assert headers['x-request-id'] in fault['message']
  assert fault['level'] == 'ERROR' and 'on order' in fault['exception']


def test_a_fault_of_the_store_is_told_without_its_place(server, monkeypatch):
  def away(*_, **__):
    raise characters.Unavailable('/a/place', 'the disk is full', 'errno 28')

  monkeypatch.setattr(server.store, 'characters', away)
  status, _, body = send(server, '/v1/models', method='GET')
  assert status == 503 and b'the disk is full' in body
  assert b'place' not in body and b'errno' not in body


class Stuck(io.StringIO):
  """A terminal that takes nothing until it is released."""

  def __init__(self):
    super().__init__()
    self.released = threading.Event()

  def write(self, text):
    self.released.wait(60)
    return super().write(text)


def test_nobody_waits_for_a_terminal(monkeypatch):
  monkeypatch.setattr(log, '_LINES', 10)
  scope = {'method': 'GET'}
  stream = Stuck()
  stream.released.set()
  with log.write_to(stream):
    stream.released.clear()
    begun = time.monotonic()
    for _ in range(100):
      exchange.Exchange().log(scope, 200, 0.1, 0.2)
    assert time.monotonic() - begun < 50
    stream.released.set()
    end = time.monotonic() + 60
    while stream.getvalue().count('\n') < 10 and time.monotonic() < end:
      time.sleep(0.01)
    exchange.Exchange().log(scope, 200, 0.1, 0.2)
  lines = [json.loads(line) for line in stream.getvalue().splitlines()]
  (dropped,) = [line for line in lines if 'message' in line]
  assert re.fullmatch(r'(8|9)\d lines were dropped\.', dropped['message'])


def test_a_count_of_dropped_lines_waits_until_it_fits(monkeypatch):
  waiting = queue.Queue(1)
  handler = log._Queue(waiting)
  logger = logging.getLogger()
  monkeypatch.setattr(logger, 'handlers', [handler])
  for line in 'first', 'dropped', 'dropped too':
    logger.warning(line)
  for _ in range(2):  # There is room for the line, and for no count behind it.
    waiting.get_nowait()
    logger.warning('later')
  assert handler.dropped == 2
  waiting.maxsize = 3
  logger.warning('last')
  written = [waiting.get_nowait().getMessage() for _ in range(3)]
  assert written == ['later', 'last', '2 lines were dropped.']


@pytest.mark.parametrize('form', ['faults', 'none'])
def test_a_person_reads_faults_alone(form):
  stream = io.StringIO()
  with log.write_to(stream, form):
    exchange.Exchange().log({'method': 'GET'}, 200, 0.1, 0.2)
    logging.getLogger('kaiju_jax.any').warning('The %s is full.', 'disk')
  told = stream.getvalue()
  if form == 'none':
    assert not told
  else:
    assert re.fullmatch(r'\S+Z WARNING: The disk is full\.\n', told)


def test_another_form_is_refused():
  with (
    pytest.raises(ValueError, match=r"log='xml': .*json"),
    log.write_to(io.StringIO(), 'xml'),
  ):
    pass
