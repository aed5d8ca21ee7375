"""Who is let in, as whom, and which web pages are kept out."""

import hashlib
import json
import os
import re
import stat
import threading

import pytest

from kaiju_jax.serving.http import auth
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.http import limits
from kaiju_jax.serving.http import loopback
from tests.serving.http import asking

KEY = f'kaiju-local-{"a" * 43}'


@pytest.fixture
def path(tmp_path):
  return tmp_path / 'tokens.json'


@pytest.fixture
def tokens(path):
  return auth.Tokens(path)


def listed(tokens):
  return [one.owner for one in tokens.list_all()]


def test_a_token_says_who_asks(tokens):
  rate = limits.Rate(5, 1)
  token = tokens.add('ann', 'adult', 3, rate)
  other = tokens.add('bob')
  access = auth.Access(tokens)
  ask = asking.request
  assert access.caller(ask(token)) == ('ann', 'adult', 3, rate, False)
  # Whose age is unknown is treated as under 18.
  assert access.caller(ask(other)) == ('bob', 'minor', 0, None, False)
  assert asking.owner(access, authorization=f'bearer  {token} ') == 'ann'
  # It counts on this machine and before a key, too; pages are left to it.
  for options in {}, {'is_open': True}, {'key': KEY}:
    access = auth.Access(tokens, **options)
    assert asking.owner(access, token, host='chat.example') == 'ann'
  site = ask(host='a.b', origin='http://evil.example')
  auth.Access(tokens).check_site(site)


def test_no_token_no_answer(tokens):
  token = tokens.add('ann')
  for header in (
    None,
    token,
    f'Basic {token}',
    *(
      f'Bearer {wrong}'
      for wrong in (
        *(token[:-1], token + 'x', token.upper(), '', 'é', 'a' * 4000),
        hashlib.sha256(token.encode()).hexdigest(),
      )
    ),
  ):
    headers = {} if header is None else {'authorization': header}
    error = asking.refusal(auth.Access(tokens), **headers)
    assert (error.status, error.code) == (401, 'invalid_api_key')
    assert 'WWW-Authenticate' in error.headers
  assert asking.status(auth.Access(None), token) == 401
  # Two are none.
  assert (
    asking.status(auth.Access(tokens), token, Authorization='Bearer x') == 401
  )


def test_the_file_holds_hashes_and_nobody_else_reads_it(tmp_path):
  folder = tmp_path / 'new' / 'server'
  old = os.umask(0)
  try:
    token = auth.Tokens(folder / auth.FILE).add('ann')
  finally:
    os.umask(old)
  assert stat.S_IMODE(folder.stat().st_mode) == 0o700
  for file in folder.iterdir():
    assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert token.removeprefix('kaiju-') not in file.read_text()
  assert len(token.removeprefix('kaiju-')) == 43  # 256 bits in base64.
  (folder / auth.FILE).chmod(0o640)
  with pytest.raises(ValueError, match=r'mode 640.*must be 600'):
    auth.Tokens(folder / auth.FILE)


def test_tokens_are_listed_and_revoked_while_a_server_runs(tokens, path):
  access = auth.Access(tokens)
  here = auth.Tokens(path)  # Another process.
  first, second, third = here.add('ann'), here.add('ann'), here.add('bob')
  assert listed(tokens) == ['ann', 'ann', 'bob']
  ids = [x.id for x in here.list_all()]
  assert asking.owner(access, second) == 'ann'
  assert [x.id for x in here.revoke(ids[1])] == [ids[1]]
  assert asking.status(access, second) == 401
  assert asking.owner(access, first) == 'ann'
  here.revoke('ann')
  assert asking.status(access, first) == 401
  assert asking.owner(access, third) == 'bob'
  with pytest.raises(LookupError, match='ann'):
    here.revoke('ann')
  path.unlink()
  assert asking.status(access, third) == 401


def test_processes_that_add_at_once_lose_nothing(path):
  def add(owner):
    mine = auth.Tokens(path)
    for n in range(10):
      mine.add(f'{owner}{n}')

  threads = [threading.Thread(target=add, args=(x,)) for x in 'abcd']
  for one in threads:
    one.start()
  for one in threads:
    one.join()
  assert len(set(listed(auth.Tokens(path)))) == 40


def test_a_damaged_file_lets_nobody_in_and_says_why(tokens, path, caplog):
  token = tokens.add('ann')
  access = auth.Access(tokens)
  whole = json.loads(path.read_text())
  for text, words in (
    ('{', 'not valid JSON'),
    ('[]', 'list "tokens"'),
    ({'owner': 'no one'}, 'letters, digits'),
    ({'age': 'old'}, "age='old'"),
    ({'digest': 'ab'}, '64 hex'),
    ({'requests': 0, 'streams': 1}, 'requests=0'),
    ({'requests': 5}, 'must both be'),
    ({'tier': 'high'}, 'tier'),
    ({'admin': True}, 'no such field'),
  ):
    if isinstance(text, dict):
      text = json.dumps({'tokens': [whole['tokens'][0] | text]})
    path.write_text(text)
    caplog.clear()
    error = asking.refusal(access, token)
    assert error.status == 503 and str(path.parent) not in error.message
    assert re.search(words, caplog.text) and str(path) in caplog.text
    with pytest.raises(ValueError, match=re.escape(str(path))):
      auth.Tokens(path)
  path.write_text(json.dumps(whole))
  assert asking.owner(access, token) == 'ann'


def test_what_is_wrong_is_not_added(tokens):
  for arguments, options, word in (
    (('',), {}, 'owner'),
    (('a b',), {}, 'owner'),
    (('a' * 65,), {}, 'owner'),
    (('ann', 'old'), {}, 'age'),
    (('ann', 'minor'), {'feedback': True}, r'feedback=True.*under 18'),
    (('ann', 'unknown'), {'feedback': True}, r'feedback=True.*under 18'),
  ):
    with pytest.raises(ValueError, match=word):
      tokens.add(*arguments, **options)
  assert listed(tokens) == []
  with pytest.raises(ValueError, match='age'):
    auth.Access(tokens, age='17')


SPELT = (
  *('', ' ', ' local', 'local ', 'local\n', 'local\0', 'lo\u200bcal'),
  *('\uff4c\uff4f\uff43\uff41\uff4c', '\u217cocal', 'loca\u0301l', 'lo cal'),
)


def test_nobody_is_called_as_the_server_calls_its_own(tokens, path, caplog):
  """Nor does a token count that an older server gave such a name."""
  for access in auth.Access(None, key=KEY), auth.Access(None, is_open=True):
    assert asking.owner(access, KEY) in auth.RESERVED
  reserved = [
    one
    for name in sorted(auth.RESERVED)
    for one in (name, name.upper(), name.title())
  ]
  for name in (*reserved, *SPELT):
    with pytest.raises(ValueError, match=f'owner={re.escape(repr(name))}'):
      tokens.add(name)
  assert listed(tokens) == []
  for name in reserved:
    token = tokens.add('ann')
    path.write_text(path.read_text().replace('"ann"', json.dumps(name)))
    caplog.clear()
    assert asking.status(auth.Access(tokens), token) == 401
    (held,) = tokens.list_all()
    assert held.id in caplog.text and 'reserves' in caplog.text
    assert token not in caplog.text
    assert tokens.revoke(name) == (held,)


def test_a_token_says_whether_its_owner_agrees_to_an_export(tokens, path):
  access = auth.Access(tokens)
  yes, no = tokens.add('ann', 'adult', feedback=True), tokens.add('ben')
  assert access.caller(asking.request(yes)).agrees
  assert not access.caller(asking.request(no)).agrees
  # An older server reads the file, unless somebody agrees.
  entries = json.loads(path.read_text())['tokens']
  assert ['feedback' in one for one in entries] == [True, False]
  assert [one.feedback for one in auth.Tokens(path).list_all()] == [True, False]


@pytest.mark.parametrize('bad', [None, 'x'])
def test_failures_are_limited_and_lock_nobody_out(tokens, bad):
  token = tokens.add('ann')
  access = auth.Access(tokens, failures=limits.Failures(8, lambda: 0.0))
  client = '192.0.2.1'
  found = [asking.status(access, bad, client=client) for _ in range(4)]
  assert found == [401, 401, 429, 429]
  assert asking.status(access, 'x', client='192.0.2.2') == 401
  assert asking.owner(access, token, client=client) == 'ann'


# Without tokens, on loopback.


@pytest.mark.parametrize(
  'host',
  ['localhost', 'LocalHost:8000', '127.0.0.1:80', '127.9.9.9', '[::1]:8000'],
)
def test_this_machine_may_ask_without(host, tokens):
  local = auth.LOCAL, 'minor', 0, limits.LOCAL, False
  page = {'origin': f'http://{host}', 'sec_fetch_site': 'same-origin'}
  for token in None, 'unused':
    incoming = asking.request(token, host=host)
    assert auth.Access(tokens, is_open=True).caller(incoming) == local
    grown_up = auth.Access(None, is_open=True, age='adult')
    assert grown_up.caller(incoming).age == 'adult'
    # So may the page of the server.
    incoming = asking.request(token, host=host, **page)
    assert grown_up.caller(incoming).owner == auth.LOCAL
    grown_up.check_site(incoming)


# DNS rebinding: the page is of evil.example, and so is its Host.
HOSTS = (
  *(None, '', 'evil.example', 'evil.example:8000', 'localhost.evil.example'),
  *('notlocalhost', 'localhost:8000:80', 'localhost@evil.example'),
  *('localhost:http', '192.168.0.7:8000', '0.0.0.0:8000', '[::2]:8000'),
  *('127.0.0.1.evil.example', '2130706433', '127.1'),
)
ORIGINS = (
  *('http://evil.example', 'null', 'http://localhost:3000', 'file://', ''),
  *('https://localhost:8000', 'http://127.0.0.1:8000', 'http://localhost'),
  'http://localhost:8000.evil.example',
)
STRANGE = [
  *({'host': host} for host in HOSTS),
  *({'origin': origin} for origin in ORIGINS),
  # A GET of an <img> or a <script> has no Origin.
  *({'sec_fetch_site': x} for x in ('cross-site', 'same-site', 'other')),
  *({'client': client} for client in ('192.168.0.7', None)),
]


@pytest.mark.parametrize('strange', STRANGE, ids=str)
def test_pages_of_others_are_refused_with_the_key_too(strange):
  for options, key in ({'is_open': True}, None), ({'key': KEY}, KEY):
    access = auth.Access(None, **options)
    assert asking.status(access, key, **strange) == 403
    if key:
      pair = access.cookie(asking.request(key)).partition(';')[0]
      assert asking.status(access, cookie=pair, **strange) == 403
    if 'origin' in strange or key:
      with pytest.raises(errors.ApiError):
        access.check_site(asking.request(**strange))


@pytest.mark.parametrize(
  'hosts, own',
  [
    (('127.0.0.1', '127.3.2.1', '::1', '::ffff:127.0.0.1', 'localhost'), True),
    (('0.0.0.0', '::', '', None, '10.0.0.1', 'localhost.example'), False),
  ],
)
def test_what_is_loopback(hosts, own):
  assert {loopback.is_loopback(host) for host in hosts} == {own}
