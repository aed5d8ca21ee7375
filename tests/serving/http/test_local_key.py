"""The key of the person before this machine, and who is that person by it."""

import os
import stat

import pytest

from kaiju_jax.serving.http import auth
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.http import limits
from kaiju_jax.serving.http import loopback
from tests.serving.http import asking


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


def test_the_key_says_who_asks(key, tmp_path):
  access = auth.Access(None, key=key, age='adult')
  local = auth.LOCAL, 'adult', 0, limits.LOCAL, False
  assert access.caller(asking.request(key)) == local
  pair, *attributes = access.cookie(asking.request(key)).split('; ')
  assert {'HttpOnly', 'SameSite=Strict', 'Path=/'} <= set(attributes)
  assert access.caller(asking.request(cookie=pair)) == local
  access.check_site(asking.request())
  # Another server on this machine, which gets the cookie too, keeps its own.
  other = auth.Access(None, key=loopback.load_key(tmp_path / 'other'))
  theirs = other.cookie(asking.request(other.key)).partition(';')[0]
  assert theirs.partition('=')[0] != pair.partition('=')[0]
  # A page that was opened with a token before, or beside other cookies.
  for cookies in f'a=b; {pair}; c=d', f'{theirs}; {pair}':
    assert asking.owner(access, 'kaiju-old', cookie=cookies) == auth.LOCAL


def test_nobody_else_gets_a_cookie(key, tmp_path):
  tokens = auth.Tokens(tmp_path / auth.FILE)
  token = tokens.add('ann', 'adult')
  access = auth.Access(tokens, key=key)
  assert access.cookie(asking.request(token)) is None
  assert auth.Access(None, is_open=True).cookie(asking.request(key)) is None
  with pytest.raises(ValueError, match='asks for no key'):
    auth.Access(None, is_open=True, key=key)


def test_without_the_key_nobody_is_answered(key, caplog):
  patient = limits.Failures(10_000)
  access = auth.Access(None, key=key, failures=patient)
  name = access.cookie(asking.request(key)).partition('=')[0]
  wrong = '', ' ', key[:-1], key + 'x', key.upper(), 'kaiju-local-', 'é'
  for given in wrong:
    assert asking.status(access, cookie=f'{name}={given}') == 401
    assert asking.status(access, given) == 401
    with pytest.raises(errors.ApiError):
      access.cookie(asking.request(given))
  for headers in {}, {'cookie': f'key={key}'}, {'x_forwarded_for': '127.0.0.1'}:
    assert asking.status(access, **headers) == 401
  # A server that has no key has none that is empty.
  for given in '', 'None', key:
    cookie = f'{name}={given}'
    assert asking.status(auth.Access(None), given, cookie=cookie) == 401
  # No message has the key.
  error = asking.refusal(access, key, host='evil.example')
  assert key not in repr(error) + caplog.text + repr(access)
