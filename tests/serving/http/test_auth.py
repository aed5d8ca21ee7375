"""Who is let in, as whom, and which web pages are kept out."""

import hashlib
import json
import os
import re
import stat
import threading

import pytest
from starlette import requests

from kaiju_jax.serving.http import auth
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.http import limits
from kaiju_jax.serving.http import loopback


def request(headers=(), client='127.0.0.1', host='localhost:8000'):
  headers = dict(headers)
  if host is not None:
    headers['host'] = host
  return requests.Request(
    {
      'type': 'http',
      'method': 'POST',
      'scheme': 'http',
      'path': '/v1/models',
      'query_string': b'',
      'client': (client, 5) if client else None,
      'server': ('127.0.0.1', 8000),
      'headers': [
        (name.lower().encode(), value.encode('latin-1'))
        for name, value in headers.items()
      ],
    }
  )


def bearing(token, **kwargs):
  return request({'Authorization': f'Bearer {token}'}, **kwargs)


def refused(access, incoming):
  with pytest.raises(errors.ApiError) as caught:
    access.caller(incoming)
  return caught.value


@pytest.fixture
def tokens(tmp_path):
  return auth.Tokens(tmp_path / 'tokens.json')


def test_a_token_says_who_asks(tokens):
  rate = limits.Rate(5, 1)
  token = tokens.add('ann', 'adult', 3, rate)
  other = tokens.add('bob')
  access = auth.Access(tokens)
  assert access.caller(bearing(token)) == ('ann', 'adult', 3, rate, False)
  # Whose age is unknown is treated as under 18.
  assert access.caller(bearing(other)) == ('bob', 'minor', 0, None, False)
  lower = request({'authorization': f'bearer  {token} '})
  assert access.caller(lower).owner == 'ann'


def test_no_token_no_answer(tokens):
  token = tokens.add('ann')
  access = auth.Access(tokens)
  for incoming in (
    request(),
    bearing(token[:-1]),
    bearing(token + 'x'),
    bearing(token.upper()),
    bearing(hashlib.sha256(token.encode()).hexdigest()),
    bearing(''),
    bearing('é'),
    bearing('a' * 4000),
    request({'Authorization': token}),
    request({'Authorization': f'Basic {token}'}),
  ):
    access = auth.Access(tokens)
    error = refused(access, incoming)
    assert (error.status, error.code) == (401, 'invalid_api_key')
    assert 'WWW-Authenticate' in error.headers
  assert refused(auth.Access(None), bearing(token)).status == 401


def test_two_authorizations_are_none(tokens):
  incoming = bearing(tokens.add('ann'))
  incoming.scope['headers'].append((b'authorization', b'Bearer other'))
  assert refused(auth.Access(tokens), incoming).status == 401


def test_the_file_holds_hashes_and_nobody_else_reads_it(tokens, tmp_path):
  old = os.umask(0)
  try:
    token = tokens.add('ann')
  finally:
    os.umask(old)
  for file in tmp_path.iterdir():
    assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert token not in file.read_text()
    assert token.removeprefix('kaiju-') not in file.read_text()
  assert len(token.removeprefix('kaiju-')) == 43  # 256 bits in base64.
  (path,) = tmp_path.glob('*.json')
  path.chmod(0o640)
  with pytest.raises(ValueError, match=r'mode 640.*must be 600'):
    auth.Tokens(path)


def test_a_folder_of_tokens_is_for_nobody_else(tmp_path):
  folder = tmp_path / 'new' / 'server'
  auth.Tokens(folder / auth.FILE).add('ann')
  assert folder.stat().st_mode & 0o777 == 0o700


def test_tokens_are_listed_and_revoked_while_a_server_runs(tokens, tmp_path):
  access = auth.Access(tokens)
  here = auth.Tokens(tmp_path / 'tokens.json')  # Another process.
  first, second, third = here.add('ann'), here.add('ann'), here.add('bob')
  assert [x.owner for x in tokens.list_all()] == ['ann', 'ann', 'bob']
  ids = [x.id for x in here.list_all()]
  assert access.caller(bearing(second)).owner == 'ann'
  assert [x.id for x in here.revoke(ids[1])] == [ids[1]]
  assert refused(access, bearing(second)).status == 401
  assert access.caller(bearing(first)).owner == 'ann'
  here.revoke('ann')
  assert refused(access, bearing(first)).status == 401
  assert access.caller(bearing(third)).owner == 'bob'
  with pytest.raises(LookupError, match='ann'):
    here.revoke('ann')
  (tmp_path / 'tokens.json').unlink()
  assert refused(access, bearing(third)).status == 401


def test_processes_that_add_at_once_lose_nothing(tmp_path):
  path = tmp_path / 'tokens.json'

  def add(owner):
    mine = auth.Tokens(path)
    for n in range(10):
      mine.add(f'{owner}{n}')

  threads = [threading.Thread(target=add, args=(x,)) for x in 'abcd']
  for one in threads:
    one.start()
  for one in threads:
    one.join()
  assert len({x.owner for x in auth.Tokens(path).list_all()}) == 40


def test_a_damaged_file_lets_nobody_in_and_says_why(tokens, tmp_path, caplog):
  token = tokens.add('ann')
  access = auth.Access(tokens)
  (path,) = tmp_path.glob('*.json')
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
    error = refused(access, bearing(token))
    assert error.status == 503 and str(tmp_path) not in error.message
    assert re.search(words, caplog.text) and str(path) in caplog.text
    with pytest.raises(ValueError, match=re.escape(str(path))):
      auth.Tokens(path)
  path.write_text(json.dumps(whole))
  assert access.caller(bearing(token)).owner == 'ann'


def test_what_is_wrong_is_not_added(tokens):
  for arguments, word in (
    (('',), 'owner'),
    (('a b',), 'owner'),
    (('a' * 65,), 'owner'),
    (('ann', 'old'), 'age'),
  ):
    with pytest.raises(ValueError, match=word):
      tokens.add(*arguments)
  assert tokens.list_all() == ()
  for age in 'minor', 'unknown':
    with pytest.raises(ValueError, match=r'feedback=True.*under 18'):
      tokens.add('ann', age, feedback=True)
  assert tokens.list_all() == ()
  with pytest.raises(ValueError, match='age'):
    auth.Access(tokens, age='17')


@pytest.mark.parametrize(
  'name',
  [
    *(
      x
      for name in sorted(auth.RESERVED)
      for x in (name, name.upper(), name.title())
    ),
    *('', ' ', ' local', 'local ', 'local\n', 'local\0', 'lo\u200bcal'),
    *('\uff4c\uff4f\uff43\uff41\uff4c', '\u217cocal', 'loca\u0301l', 'lo cal'),
  ],
)
def test_nobody_is_called_as_the_server_calls_its_own(tokens, name, caplog):
  """Nor does a token count that an older server gave such a name."""
  with pytest.raises(ValueError, match=f'owner={re.escape(repr(name))}'):
    tokens.add(name)
  assert tokens.list_all() == ()
  if not name.isalpha() or not name.isascii():
    return
  token = tokens.add('ann')
  path = tokens._path
  path.write_text(path.read_text().replace('"ann"', json.dumps(name)))
  access = auth.Access(tokens, is_open=False)
  assert refused(access, bearing(token)).status == 401
  (held,) = tokens.list_all()
  assert held.id in caplog.text and 'reserves' in caplog.text
  assert token not in caplog.text
  assert tokens.revoke(name) == (held,)


def test_reserved_names_are_those_that_the_server_gives():
  key = f'kaiju-local-{"a" * 43}'
  for access in auth.Access(None, key=key), auth.Access(None, is_open=True):
    assert access.caller(bearing(key)).owner in auth.RESERVED


def test_a_token_says_whether_its_owner_agrees_to_an_export(tokens, tmp_path):
  access = auth.Access(tokens)
  yes, no = tokens.add('ann', 'adult', feedback=True), tokens.add('ben')
  assert access.caller(bearing(yes)).agrees
  assert not access.caller(bearing(no)).agrees
  # An older server reads the file, unless somebody agrees.
  path = tmp_path / 'tokens.json'
  entries = json.loads(path.read_text())['tokens']
  assert ['feedback' in one for one in entries] == [True, False]
  assert [one.feedback for one in auth.Tokens(path).list_all()] == [True, False]


@pytest.mark.parametrize('bad', [{}, {'Authorization': 'Bearer x'}])
def test_failures_are_limited_and_lock_nobody_out(tokens, bad):
  token = tokens.add('ann')
  access = auth.Access(tokens, failures=limits.Failures(8, lambda: 0.0))
  bad = request(bad, client='192.0.2.1')
  statuses = [refused(access, bad).status for _ in range(4)]
  assert statuses == [401, 401, 429, 429]
  assert refused(access, bearing('x', client='192.0.2.2')).status == 401
  good = bearing(token, client='192.0.2.1')
  assert access.caller(good).owner == 'ann'


# Without tokens, on loopback.


@pytest.mark.parametrize(
  'host',
  ['localhost', 'LocalHost:8000', '127.0.0.1:80', '127.9.9.9', '[::1]:8000'],
)
@pytest.mark.parametrize('token', [None, 'unused'])
def test_this_machine_may_ask_without(host, token, tokens):
  access = auth.Access(tokens, is_open=True)
  incoming = request(host=host) if token is None else bearing(token, host=host)
  assert access.caller(incoming) == (
    auth.LOCAL,
    'minor',
    0,
    limits.LOCAL,
    False,
  )
  grown_up = auth.Access(None, is_open=True, age='adult')
  assert grown_up.caller(incoming).age == 'adult'


def test_a_token_counts_on_this_machine_too(tokens):
  access = auth.Access(tokens, is_open=True)
  incoming = bearing(tokens.add('ann', 'adult'), host='elsewhere.example')
  assert access.caller(incoming).owner == 'ann'


@pytest.mark.parametrize(
  'host',
  [
    None,
    '',
    'evil.example',
    'evil.example:8000',
    'localhost.evil.example',
    'notlocalhost',
    'localhost:8000:80',
    'localhost@evil.example',
    'localhost:http',
    '192.168.0.7:8000',
    '0.0.0.0:8000',
    '127.0.0.1.evil.example',
    '[::2]:8000',
    '2130706433',
    '127.1',
  ],
)
def test_a_name_that_was_turned_to_this_machine_is_refused(host):
  # DNS rebinding: the page is of evil.example, and so is its Host.
  error = refused(auth.Access(None, is_open=True), request(host=host))
  assert error.status == 403


@pytest.mark.parametrize(
  'origin',
  [
    'http://evil.example',
    'null',
    'http://localhost:3000',
    'https://localhost:8000',
    'http://127.0.0.1:8000',
    'http://localhost',
    'http://localhost:8000.evil.example',
    'file://',
    '',
  ],
)
def test_pages_of_others_are_refused(origin):
  access = auth.Access(None, is_open=True)
  assert refused(access, request({'Origin': origin})).status == 403
  with pytest.raises(errors.ApiError):
    access.check_site(request({'Origin': origin}))


def test_the_page_of_the_server_may_ask():
  access = auth.Access(None, is_open=True)
  incoming = request(
    {'Origin': 'http://localhost:8000', 'Sec-Fetch-Site': 'same-origin'}
  )
  assert access.caller(incoming).owner == auth.LOCAL
  access.check_site(incoming)


@pytest.mark.parametrize('site', ['cross-site', 'same-site', 'other'])
def test_a_picture_in_another_page_is_refused(site):
  # A GET of an <img> or a <script> has no Origin.
  access = auth.Access(None, is_open=True)
  assert refused(access, request({'Sec-Fetch-Site': site})).status == 403


@pytest.mark.parametrize('client', ['192.168.0.7', None])
def test_other_machines_are_refused(client):
  access = auth.Access(None, is_open=True)
  assert refused(access, request(client=client)).status == 403


def test_a_server_that_asks_for_tokens_leaves_pages_to_them(tokens):
  access = auth.Access(tokens)
  incoming = bearing(tokens.add('ann'), host='chat.example')
  assert access.caller(incoming).owner == 'ann'
  access.check_site(request({'Origin': 'http://evil.example'}, host='a.b'))


@pytest.mark.parametrize(
  'host, own',
  [
    ('127.0.0.1', True),
    ('127.3.2.1', True),
    ('::1', True),
    ('::ffff:127.0.0.1', True),
    ('localhost', True),
    ('0.0.0.0', False),
    ('::', False),
    ('', False),
    (None, False),
    ('10.0.0.1', False),
    ('localhost.example', False),
  ],
)
def test_what_is_loopback(host, own):
  assert loopback.is_loopback(host) == own
