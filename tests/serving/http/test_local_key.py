"""The key of the person before this machine, and who is that person by it."""

import os
import stat

import pytest
from starlette import requests

from kaiju_jax.serving.http import auth
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.http import limits
from kaiju_jax.serving.http import loopback


def make_request(bearer=None, cookie=None, client='127.0.0.1', **headers):
  headers = {'host': 'localhost:8000'} | headers
  if bearer is not None:
    headers['authorization'] = f'Bearer {bearer}'
  if cookie is not None:
    headers['cookie'] = cookie
  return requests.Request(
    {
      'type': 'http',
      'method': 'GET',
      'scheme': 'http',
      'path': '/v1/models',
      'query_string': b'',
      'client': (client, 5),
      'server': ('127.0.0.1', 8000),
      'headers': [
        (name.encode(), value.encode('latin-1'))
        for name, value in headers.items()
      ],
    }
  )


def status(access, request):
  with pytest.raises(errors.ApiError) as caught:
    access.caller(request)
  return caught.value.status


@pytest.fixture
def path(tmp_path):
  return tmp_path / loopback.KEY_FILE


@pytest.fixture
def key(path):
  return loopback.load_key(path)


def test_a_key_is_drawn_once_and_nobody_else_reads_it(path, tmp_path):
  old = os.umask(0)
  try:
    key = loopback.load_key(path)
  finally:
    os.umask(old)
  assert loopback.load_key(path) == key != loopback.load_key(tmp_path / 'other')
  assert stat.S_IMODE(path.stat().st_mode) == 0o600
  assert {file.name for file in tmp_path.iterdir()} == {path.name, 'other'}
  path.chmod(0o640)
  with pytest.raises(ValueError, match=r'mode 640.*must be 600'):
    loopback.load_key(path)


@pytest.mark.parametrize(
  'text', ['', '\n', ' ', f'kaiju-local-{"a" * 42}', 'é' * 55]
)
def test_a_file_without_a_key_opens_nothing(path, text):
  path.write_text(text)
  path.chmod(0o600)
  with pytest.raises(ValueError, match='next start draws another') as caught:
    loopback.load_key(path)
  assert not text.strip() or text.strip() not in str(caught.value)
  with pytest.raises(ValueError, match='key: must be'):
    auth.Access(None, key=text)


def test_the_key_says_who_asks(key):
  access = auth.Access(None, key=key, age='adult')
  local = (auth.LOCAL, 'adult', 0, limits.LOCAL, False)
  assert access.caller(make_request(key)) == local
  pair = access.cookie(make_request(key)).partition(';')[0]
  assert access.caller(make_request(cookie=pair)) == local
  # A page that was opened with a token before, or beside other cookies.
  assert access.caller(make_request('kaiju-old', f'a=b; {pair}; c=d')) == local


def test_a_token_counts_beside_the_key(key, tmp_path):
  tokens = auth.Tokens(tmp_path / auth.FILE)
  access = auth.Access(tokens, key=key)
  token = tokens.add('ann', 'adult')
  assert access.caller(make_request(token)).owner == 'ann'
  # The key is the person's before this machine; a token is anybody's.
  assert (
    access.caller(make_request(token, host='chat.example.org')).owner == 'ann'
  )
  assert access.cookie(make_request(token)) is None


def test_without_the_key_nobody_is_answered(key):
  patient = limits.Failures(10_000)
  access = auth.Access(None, key=key, failures=patient)
  name = access.cookie(make_request(key)).partition('=')[0]
  for given in '', ' ', key[:-1], key + 'x', key.upper(), 'kaiju-local-', 'é':
    assert status(access, make_request(given)) == 401
    assert status(access, make_request(cookie=f'{name}={given}')) == 401
    with pytest.raises(errors.ApiError):
      access.cookie(make_request(given))
  assert status(access, make_request()) == 401
  assert status(access, make_request(cookie=f'key={key}')) == 401
  assert status(access, make_request(**{'x-forwarded-for': '127.0.0.1'})) == 401
  # A server that has no key has none that is empty.
  for given in '', 'None', key:
    assert (
      status(auth.Access(None), make_request(given, f'{name}={given}')) == 401
    )


def test_a_cookie_is_for_this_servers_own_page_alone(key, tmp_path):
  access = auth.Access(None, key=key)
  pair, *attributes = access.cookie(make_request(key)).split('; ')
  assert {'HttpOnly', 'SameSite=Strict', 'Path=/'} <= set(attributes)
  # Another server on this machine, which gets the cookie too, keeps its own.
  other = auth.Access(None, key=loopback.load_key(tmp_path / 'other'))
  theirs = other.cookie(make_request(other.key)).partition(';')[0]
  assert theirs.partition('=')[0] != pair.partition('=')[0]
  assert (
    access.caller(make_request(cookie=f'{theirs}; {pair}')).owner == auth.LOCAL
  )
  assert auth.Access(None, is_open=True).cookie(make_request(key)) is None


@pytest.mark.parametrize(
  'headers',
  [
    {'host': 'evil.example'},
    {'origin': 'http://evil.example'},
    {'origin': 'http://localhost:3000'},
    {'sec-fetch-site': 'same-site'},
    {'client': '192.168.0.7'},
  ],
)
def test_pages_of_others_are_refused_with_the_key_too(key, headers):
  access = auth.Access(None, key=key)
  pair = access.cookie(make_request(key)).partition(';')[0]
  assert status(access, make_request(cookie=pair, **headers)) == 403
  assert status(access, make_request(key, **headers)) == 403
  with pytest.raises(errors.ApiError):
    access.check_site(make_request(**headers))
  access.check_site(make_request())


def test_what_is_open_has_no_key(key):
  with pytest.raises(ValueError, match='asks for no key'):
    auth.Access(None, is_open=True, key=key)


def test_a_key_is_in_no_message(key, caplog):
  access = auth.Access(None, key=key)
  with pytest.raises(errors.ApiError) as caught:
    access.caller(make_request(key, host='evil.example'))
  assert key not in repr(caught.value) + caplog.text + repr(access)
