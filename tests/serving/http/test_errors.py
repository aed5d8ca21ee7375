"""Errors: one form for all, nothing of the server's inside in any."""

import json

import pytest
from starlette import applications
from starlette import exceptions
from starlette import requests
from starlette import routing
from starlette import testclient

from kaiju_jax.serving.http import errors

_CASES = [
  (errors.invalid('n=0: must be 1…4.', 'n'), 400),
  (errors.unauthorized('no token'), 401),
  (errors.forbidden('not yours'), 403),
  (errors.missing('no such character'), 404),
  (errors.conflict('the head moved', 'head'), 409),
  (errors.too_large('9 bytes'), 413),
  (errors.unsupported_type('text/plain'), 415),
  (errors.rate_limited('slow down', 2.1), 429),
  (errors.busy('full', 0.0), 429),
  (errors.internal(), 500),
  (errors.unavailable('draining', 3), 503),
]


def client(endpoint):
  app = applications.Starlette(
    routes=[routing.Route('/', endpoint)], exception_handlers=errors.HANDLERS
  )
  return testclient.TestClient(app, raise_server_exceptions=False)


def raiser(error):
  async def endpoint(request):
    raise error

  return endpoint


@pytest.mark.parametrize('error, status', _CASES)
def test_each_error_is_answered_in_one_form(error, status):
  answer = client(raiser(error)).get('/')
  assert answer.status_code == status
  assert answer.headers['content-type'] == 'application/json'
  (whole,) = answer.json().items()
  assert whole[0] == 'error'
  assert whole[1] == {
    'message': error.message,
    'type': error.type,
    'param': error.param,
    'code': error.code,
  }
  assert isinstance(error.message, str) and isinstance(error.type, str)


def test_headers_say_when_to_ask_again_and_how_to_prove_oneself():
  assert errors.rate_limited('', 2.1).headers == {'Retry-After': '3'}
  assert errors.busy('', 0.0).headers == {'Retry-After': '1'}
  assert errors.unavailable('').headers == {}
  answer = client(raiser(errors.unauthorized(''))).get('/')
  assert answer.headers['www-authenticate'] == 'Bearer'


def test_unknown_addresses_and_methods_have_the_same_form():
  there = client(raiser(errors.internal()))
  for answer, status, code in (
    (there.get('/nowhere'), 404, 'not_found'),
    (there.post('/'), 405, 'method_not_allowed'),
  ):
    assert (answer.status_code, answer.json()['error']['code']) == (
      status,
      code,
    )
  assert 'GET' in there.post('/').headers['allow']


def test_what_the_server_did_wrong_is_not_told():
  answer = client(raiser(ValueError('/home/me/secret'))).get('/')
  assert answer.status_code == 500
  assert 'secret' not in answer.text and 'ValueError' not in answer.text
  assert answer.json()['error']['code'] == 'internal'


def test_an_exception_of_starlette_keeps_its_status_and_headers():
  error = exceptions.HTTPException(418, 'a teapot', {'X-Pot': 'tea'})
  answer = client(raiser(error)).get('/')
  assert answer.status_code == 418 and answer.headers['x-pot'] == 'tea'
  assert answer.json()['error']['message'] == 'a teapot'


def test_a_client_that_left_is_no_failure_of_the_server():
  answer = client(raiser(requests.ClientDisconnect())).get('/')
  assert answer.status_code == 400


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
