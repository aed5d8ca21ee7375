"""Errors: one form for all, nothing of the server's inside in any."""

import json

import pytest
from starlette import applications
from starlette import exceptions
from starlette import requests
from starlette import routing
from starlette import testclient

from kaiju_jax.serving.http import errors


def answer(error, method='GET', path='/'):
  """Returns the answer of an endpoint that raises an error."""

  async def endpoint(request):
    raise error

  app = applications.Starlette(
    routes=[routing.Route('/', endpoint)], exception_handlers=errors.HANDLERS
  )
  client = testclient.TestClient(app, raise_server_exceptions=False)
  return client.request(method, path)


@pytest.mark.parametrize(
  'error, status, headers',
  [
    (errors.invalid('n=0: must be 1…4.', 'n'), 400, {}),
    (errors.unauthorized('no token'), 401, {'WWW-Authenticate': 'Bearer'}),
    (errors.forbidden('not yours'), 403, {}),
    (errors.missing('no such character'), 404, {}),
    (errors.conflict('the head moved', 'head'), 409, {}),
    (errors.too_large('9 bytes'), 413, {}),
    (errors.unsupported_type('text/plain'), 415, {}),
    (errors.rate_limited('slow down', 2.1), 429, {'Retry-After': '3'}),
    (errors.busy('full', 0.0), 429, {'Retry-After': '1'}),
    (errors.internal(), 500, {}),
    (errors.unavailable('draining', 3), 503, {'Retry-After': '3'}),
    (errors.unavailable('away'), 503, {}),
  ],
)
def test_each_error_is_answered_in_one_form(error, status, headers):
  found = answer(error)
  assert found.status_code == status and error.headers == headers
  assert all(found.headers[name] == value for name, value in headers.items())
  assert found.headers['content-type'] == 'application/json'
  names = 'message', 'type', 'param', 'code'
  wanted = {name: getattr(error, name) for name in names}
  assert found.json() == {'error': wanted}
  assert isinstance(error.message, str) and isinstance(error.type, str)


@pytest.mark.parametrize(
  'error, asked, status, code',
  [
    (errors.internal(), ('GET', '/nowhere'), 404, 'not_found'),
    (errors.internal(), ('POST', '/'), 405, 'method_not_allowed'),
    # What the server did wrong is not told.
    (ValueError('/home/me/secret'), (), 500, 'internal'),
  ],
)
def test_other_errors_have_the_same_form(error, asked, status, code):
  found = answer(error, *asked)
  assert found.status_code == status
  assert found.json()['error']['code'] == code
  assert 'secret' not in found.text and 'ValueError' not in found.text
  assert (status == 405) == ('GET' in found.headers.get('allow', ''))


def test_an_exception_of_starlette_keeps_its_status_and_headers():
  error = exceptions.HTTPException(418, 'a teapot', {'X-Pot': 'tea'})
  found = answer(error)
  assert found.status_code == 418 and found.headers['x-pot'] == 'tea'
  assert found.json()['error']['message'] == 'a teapot'
  # A client that left is no failure of the server.
  assert answer(requests.ClientDisconnect()).status_code == 400


def test_messages_may_quote_anything_and_stay_short():
  error = errors.invalid(f'\ud800\u2028</script>{"x" * 5000}')
  assert errors.body(error).isascii()
  told = json.loads(errors.body(error))['error']['message']
  assert told.startswith('\ud800\u2028</script>x')
  assert len(told) == 1000 and told.endswith('…')


def test_an_error_in_a_stream_is_one_event():
  error = errors.invalid('two\nlines\r\n\u2028')
  (line, *behind) = errors.event(error).splitlines(keepends=True)
  assert line.startswith(b'data: ') and behind == [b'\n']
  assert json.loads(line[6:]) == errors.data(error)
