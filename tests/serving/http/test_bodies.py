"""Bodies: what is taken, and what is refused by name."""

import asyncio
import itertools
import json
import random
import time

import httpx
import pytest
from starlette import applications
from starlette import requests
from starlette import responses
from starlette import routing

from kaiju_jax.serving.http import bodies
from kaiju_jax.serving.http import errors
from kaiju_jax.storage import strict_json
from tests.serving import malformed

KIND = {'Content-Type': 'application/json'}


def refusal(body: bytes, *arguments) -> str:
  with pytest.raises(errors.ApiError) as caught:
    bodies.parse(body, *arguments)
  assert caught.value.status == 400
  return caught.value.message


@pytest.mark.parametrize(
  'body',
  [
    b'{}',
    b' {"a": [1, -0.5e-3, true, null, "\\u00e9\\ud83d\\ude00"]} \n',
    '{"é": "😀\\"[[[["}'.encode(),
    b'{"n": 9223372036854775807, "m": -9223372036854775808}',
    b'{"backslash": "\\\\ud800"}',
  ],
)
def test_what_is_valid_means_what_it_means_everywhere(body):
  assert bodies.parse(body) == json.loads(body)


def test_what_is_not_is_refused():
  for body in malformed.bodies(random.Random(3)):
    refusal(body)
  # By its place, and by the name that is there twice.
  assert 'byte 7 ' in refusal(b'{"a": "\xff"}')
  assert "'b'" in refusal(b'{"a": [{"b": 1, "\\u0062": 2}]}')


def nested(depth, opens):
  """Returns an object of so many levels, whose brackets are `opens` in turn."""
  kinds = list(itertools.islice(itertools.cycle(opens), depth - 1))
  begin = ''.join('[' if kind == '[' else '{"a":' for kind in kinds)
  end = ''.join(']' if kind == '[' else '}' for kind in reversed(kinds))
  return f'{{"a":{begin}1{end}}}'.encode()


@pytest.mark.parametrize('opens', ['[', '{', '[{', '{[', '[[{'])
def test_depth_is_counted_in_levels(opens):
  assert bodies.parse(nested(bodies.DEPTH, opens))
  assert 'deeper than 32' in refusal(nested(bodies.DEPTH + 1, opens))
  assert 'deeper than 32' in refusal(nested(60_000, opens))


def test_depth_agrees_with_an_independent_count():
  def depth(value):
    if not isinstance(value, (list, dict)):
      return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(depth, inner), default=0)

  rng = random.Random(1)

  def grown(level):
    if level == 0:
      return rng.choice(['[[[', '\\"]', '{', 1, None])
    many = [grown(rng.randrange(level)) for _ in range(rng.randrange(3))]
    many.append(grown(level - 1))
    rng.shuffle(many)
    if rng.random() < 0.5:
      return many
    return {f'{n}"]]': one for n, one in enumerate(many)}

  for level, limit in itertools.product(range(8), range(8)):
    value = grown(level)
    text = json.dumps(value).encode()
    if depth(value) > limit:
      with pytest.raises(strict_json.Refused, match='deeper'):
        strict_json.read(text, limit)
    else:
      assert strict_json.read(text, limit) == value


PIECES = (
  *(b'"', b'\\"', b'[', b'{', b']', b'[}', b'[]', b'[],', b'1,', b'{"a":'),
  b'\\',
)


@pytest.mark.parametrize('piece', PIECES)
def test_the_worst_body_is_refused_in_linear_time(piece):
  # A search that begins again at each quote would take minutes.
  body = b'{"a":[' + piece * (bodies.MOST // len(piece))
  begun = time.process_time()
  refusal(body)
  assert time.process_time() - begun < 5


@pytest.mark.parametrize(
  'piece, count',
  [(b'1,', 1), (b'{"a":1,"b":2},', 3), (b'"[{,\\",\\\\",', 1)],
)
def test_a_body_has_so_many_values_and_no_more(piece, count):
  def body(count):
    return b'{"a":[' + piece * count + b'1]}'

  fits = (bodies.VALUES - 2) // count  # The object and the list are two.
  assert len(bodies.parse(body(fits))['a']) == fits + 1
  assert f'of at most {bodies.VALUES:,}' in refusal(body(fits + 1))


def test_a_list_of_tokens_may_be_long_and_still_holds_few_lists():
  def body(piece, count):
    return b'{"a":[' + piece * count + b'1]}', bodies.VALUES_OF_TOKENS

  assert len(bodies.parse(*body(b'1,', 250_000))['a']) == 250_001
  fits = bodies.GROUPS - 2
  assert bodies.parse(*body(b'[],', fits))
  assert '16,385 objects and lists' in refusal(*body(b'[],', fits + 1))


def test_a_million_keys_of_which_one_is_double():
  pairs = [f'"{n}":0' for n in range(30_000)]
  body = ('{' + ','.join([*pairs, pairs[-1]]) + '}').encode()
  begun = time.process_time()
  assert "'29999' is there twice" in refusal(body)
  assert time.process_time() - begun < 5


async def endpoint(request):
  if request.url.path == '/card':
    kind = bodies.media_type(request, [bodies.JSON, bodies.PNG])
    body = await bodies.read(request, bodies.MOST_OF_CARD)
    return responses.JSONResponse([kind, len(body)])
  bodies.media_type(request, [bodies.JSON])
  body = await bodies.read(request, 100)
  return responses.JSONResponse(bodies.parse(body))


def posted(path, headers, content):
  app = applications.Starlette(
    routes=[routing.Route('/{any:path}', endpoint, methods=['POST'])],
    exception_handlers=errors.HANDLERS,
  )

  async def post():
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport) as client:
      url = f'http://localhost{path}'
      return await client.post(url, content=content, headers=headers)

  return asyncio.run(post())


@pytest.mark.parametrize(
  'kind',
  [
    'application/json',
    'Application/JSON; charset=utf-8',
    'application/json;charset="UTF-8"',
  ],
)
def test_json_is_read(kind):
  answer = posted('/', {'Content-Type': kind}, b'{"a": 1}')
  assert answer.json() == {'a': 1}


@pytest.mark.parametrize(
  'headers',
  [
    {},
    {'Content-Type': 'text/plain'},
    {'Content-Type': 'application/jsonp'},
    {'Content-Type': 'application/x-www-form-urlencoded'},
    {'Content-Type': 'application/json; charset=latin-1'},
    KIND | {'Content-Encoding': 'gzip'},
  ],
)
def test_other_types_are_refused_by_name(headers):
  answer = posted('/', headers, b'{}')
  assert answer.status_code == 415
  message = answer.json()['error']['message']
  assert message.startswith('Content-')
  for value in headers.values():
    assert value in message or value == KIND['Content-Type']


@pytest.mark.parametrize(
  'path, kind, size, status',
  [
    ('/', 'application/json', 100, 200),
    ('/', 'application/json', 101, 413),
    ('/', 'image/png', 10, 415),
    ('/card', 'image/png', 8 * 2**20, 200),
    ('/card', 'image/png', 8 * 2**20 + 1, 413),
  ],
)
def test_a_body_as_large_as_allowed_is_taken(path, kind, size, status):
  body = b'{"a": "%s"}' % (b'x' * (size - 9))
  assert posted(path, {'Content-Type': kind}, body).status_code == status


@pytest.mark.parametrize('declares', [True, False])
def test_a_body_is_refused_before_it_is_whole(declares):
  # The size is counted as it arrives, declared or not; the rest is not asked.
  continues = []

  async def receive():
    continues.append(1)
    return {'type': 'http.request', 'body': b'x' * 60, 'more_body': True}

  headers = [(b'content-type', b'application/json')]
  if declares:
    headers.append((b'content-length', b'101'))
  scope = {'type': 'http', 'method': 'POST', 'headers': headers}
  request = requests.Request(scope, receive)
  with pytest.raises(errors.ApiError) as caught:
    asyncio.run(bodies.read(request, 100))
  assert caught.value.status == 413 and '100 bytes' in caught.value.message
  assert len(continues) == (0 if declares else 2)
