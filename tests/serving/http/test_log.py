"""The log: a line per request, no text in it, and nobody waits for it."""

import io
import json
import logging
import queue
import re
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
from tests.serving import trivial
from tests.serving.routes import moderated
from tests.serving.routes import raw_clients

SAID = 'wintergreen'
FIELDS = {
  *('time', 'level', 'event', 'request', 'owner', 'method', 'route', 'status'),
  *('first_byte', 'seconds', 'prompt', 'cached', 'completion', 'reason'),
}
CHAT, TEXT = running.CHAT, running.TEXT


class Log:
  """What is written while a block runs."""

  def __init__(self):
    self.stream = io.StringIO()

  @property
  def text(self):
    return self.stream.getvalue()

  @property
  def made(self):
    return [json.loads(line) for line in self.text.splitlines()]

  def lines(self, count):
    """Returns the lines of requests, once there are so many."""

    def found():
      return [line for line in self.made if line.get('event') == 'request']

    trivial.until(lambda: len(found()) >= count)
    assert len(found()) == count
    return found()


@pytest.fixture
def written():
  made = Log()
  with log.write_to(made.stream):
    yield made


@pytest.fixture(scope='module')
def server(tmp_path_factory):
  folder = tmp_path_factory.mktemp('server')
  with running.server(folder, is_open=False) as server:
    server.tokens['nobody'] = 'kaiju-none'
    yield server


def send(server, path=CHAT, body=None, owner='ann', method='POST'):
  """Returns an answer's status, the id of its request, and its body."""
  request = urllib.request.Request(
    server.address + path,
    None if body is None else json.dumps(body).encode(),
    {
      'Content-Type': 'application/json',
      'Authorization': f'Bearer {server.tokens[owner]}',
    },
    method=method,
  )
  try:
    with urllib.request.urlopen(request, timeout=100) as answer:
      return answer.status, answer.headers['x-request-id'], answer.read()
  except urllib.error.HTTPError as error:
    return error.code, error.headers['x-request-id'], error.read()


def say(text=SAID, **fields):
  return running.chat(text, **{'max_tokens': 5, 'seed': 33} | fields)


def test_a_request_is_a_line_that_says_what_it_took(server, written):
  prompts = {}
  for count, (path, body) in enumerate(
    (
      (CHAT, say()),
      (CHAT, say(n=3)),
      (TEXT, running.complete(['one', 'seven'], n=2, max_tokens=5)),
      (CHAT, say(stream=True, stream_options={'include_usage': True})),
    ),
    1,
  ):
    status, request, answer = send(server, path, body)
    # A stream is logged when it has ended.
    is_stream = 'stream' in body
    whole = running.events(answer)[-1] if is_stream else json.loads(answer)
    usage = whole['usage']
    line = written.lines(count)[-1]
    assert set(line) == FIELDS
    assert line['request'] == request
    assert re.fullmatch('[0-9a-f]{16}', request)
    about = line['method'], line['route'], line['status']
    assert about == ('POST', path, status)
    assert re.fullmatch(r'\d{4}-\d\d-\d\dT[\d:]{8}\.\d{3}Z', line['time'])
    assert line['prompt'] == usage['prompt_tokens']
    assert line['completion'] == usage['completion_tokens']
    assert line['cached'] == running.cached(whole)
    assert line['reason'] == 'length'
    assert 0 <= line['first_byte'] <= line['seconds'] < 20
    assert not is_stream or line['first_byte'] < line['seconds']
    prompts.setdefault(path, set()).add(line['prompt'])
  # Choices of one prompt count its tokens once.
  assert len(prompts[CHAT]) == 1


def test_no_line_holds_what_people_say_or_are_called(server, written):
  name = server.open_session()
  send(server, body=say(session=name))
  send(server, body=say(), owner='nobody')
  send(server, body=say(temperature=SAID))
  for method, path, body in (
    ('GET', f'/v1/sessions/{name}?after={SAID}', None),
    ('GET', f'/v1/{SAID}/{SAID}', None),
    ('GET', '/v1/sessions/none', None),
    ('PUT', f'/v1/sessions/{name}', {'title': SAID}),
    ('DELETE', f'/v1/sessions/{name}', None),
    (SAID.upper(), '/v1/models', None),
  ):
    send(server, path, body, method=method)
  lines = written.lines(10)
  for word in SAID, name, 'ann', *server.tokens.values():
    assert word.lower() not in json.dumps(lines).lower(), word
    assert word.lower() not in written.text.lower(), word
  assert lines[4]['route'] == '/v1/sessions/{id}'
  assert lines[5]['route'] == 'none' and lines[5]['reason'] == 'not_found'
  assert lines[2]['status'] == 401 and lines[2]['owner'] is None
  assert lines[2]['reason'] == 'invalid_api_key'
  assert lines[-1]['method'] == 'other'


def test_owners_are_told_apart_and_not_named(server, written, monkeypatch):
  for owner in 'ann', 'ben', 'ann':
    send(server, body=say(), owner=owner)
  monkeypatch.setattr(server.context, 'secret', b'another server')
  send(server, body=say())
  ann, ben, again, elsewhere = (line['owner'] for line in written.lines(4))
  assert ann == again and len({ann, ben, elsewhere}) == 3


@pytest.mark.parametrize('is_streamed', [False, True])
def test_whoever_leaves_is_logged_so(server, written, monkeypatch, is_streamed):
  monkeypatch.setattr(server.engine, 'before_round', lambda: time.sleep(0.05))
  body = running.complete(SAID, max_tokens=800, stream=is_streamed)
  with raw_clients.connect(server, TEXT, body):
    assert trivial.until(lambda: server.engine.state.running)
  (line,) = written.lines(1)
  assert 'disconnected' in line['reason']


def test_what_is_no_request_is_logged_too(server, written):
  answer = trivial.exchange(server.server, b'nonsense\r\n\r\n').decode()
  (line,) = written.lines(1)
  assert line['status'] == 400 and line['reason'] == 'no_request'
  assert f'x-request-id: {line["request"]}' in answer


def test_what_limits_a_client_is_the_reason(server, written, monkeypatch):
  monkeypatch.setattr(server.context.limits._streams, 'most', 0)
  send(server, body=say())
  monkeypatch.setattr(limits.Buckets, 'take', lambda *_: 3.0)
  send(server, body=say())
  busy, often = written.lines(2)
  assert (busy['status'], busy['reason']) == (429, 'server_busy')
  assert (often['status'], often['reason']) == (429, 'rate_limit_exceeded')
  assert often['owner'] == busy['owner'] is not None


def test_the_stage_that_refuses_is_the_reason(tmp_path, written):
  marker = moderated.MARKER.decode()
  with moderated.served(tmp_path, b'Say zorbifex and more') as server:
    send(server, body=say(max_tokens=60))
    send(server, body=say(stream=True, max_tokens=60))
    send(server, body=say(marker))
    send(server, TEXT, running.complete(marker))
    # The gate lets a text pass that the head refuses as a prompt.
    server.context.moderator.prompt = lambda *_: moderation.Verdict(
      True, 'prompt', 'adult'
    )
    send(server, body=say())
  reasons = [line['reason'] for line in written.lines(5)]
  assert reasons == ['head', 'head', 'gate', 'gate', 'prompt']
  assert marker not in written.text


@pytest.mark.parametrize(
  'error, status, reason',
  [
    (RuntimeError('on order'), 500, 'internal'),
    # A fault of the store is told without its place.
    (
      characters.Unavailable('/a/place', 'the disk is full', 'errno 28'),
      503,
      'unavailable',
    ),
  ],
)
def test_a_fault_of_ours_is_logged_with_the_request(
  server, written, monkeypatch, error, status, reason
):
  def broken(*_, **__):
    raise error

  monkeypatch.setattr(server.store, 'characters', broken)
  found, request, body = send(server, '/v1/models', method='GET')
  (line,) = written.lines(1)
  assert (found, line['status'], line['reason']) == (status, status, reason)
  assert b'place' not in body and b'errno' not in body
  assert (status == 503) == (b'the disk is full' in body)
  if status == 500:
    (fault,) = [line for line in written.made if 'exception' in line]
    assert request in fault['message'] and 'on order' in fault['exception']


class Stuck(io.StringIO):
  """A terminal that takes nothing until it is released."""

  def __init__(self):
    super().__init__()
    self.released = threading.Event()

  def write(self, text):
    self.released.wait(60)
    return super().write(text)


def note():
  """Logs an answer."""
  exchange.Exchange().log({'method': 'GET'}, 200, 0.1, 0.2)


def test_nobody_waits_for_a_terminal(monkeypatch):
  monkeypatch.setattr(log, '_LINES', 10)
  stream = Stuck()
  stream.released.set()
  with log.write_to(stream):
    stream.released.clear()
    begun = time.monotonic()
    for _ in range(100):
      note()
    assert time.monotonic() - begun < 50
    stream.released.set()
    trivial.until(lambda: stream.getvalue().count('\n') >= 10)
    note()
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


@pytest.mark.parametrize(
  'form, wanted',
  [('faults', r'\S+Z WARNING: The disk is full\.\n'), ('none', '')],
)
def test_a_person_reads_faults_alone(form, wanted):
  stream = io.StringIO()
  with log.write_to(stream, form):
    note()
    logging.getLogger('kaiju_jax.any').warning('The %s is full.', 'disk')
  assert re.fullmatch(wanted, stream.getvalue())


def test_another_form_is_refused():
  with (
    pytest.raises(ValueError, match=r"log='xml': .*json"),
    log.write_to(io.StringIO(), 'xml'),
  ):
    pass
