"""Authentication: bearer tokens, and the local user's key.

A token is 256 random bits; the file holds its SHA-256, and so reveals owners
but no token. (A slow hash protects passwords, which can be guessed; 2^256
tokens cannot be tried.)

A token names its owner (the token's user) and sets three things that the owner
cannot change: the age tier (an unknown age is treated as under 18), the
priority and the rate. A server on loopback also accepts the key of the user who
started it (`loopback.py`), as a bearer token or as the page's cookie; that
user is the owner 'local'. An open server treats every request on loopback as
that user's. In both cases it refuses other sites' web pages (`loopback.py`). A
proxy on this machine need not add a header, so an open server behind a proxy is
open to all.
"""

from collections.abc import Iterator
import contextlib
import dataclasses
import fcntl
import hashlib
import hmac
import json
import logging
import os
import pathlib
import re
import secrets
import time
from typing import Any
from typing import NamedTuple

from starlette import requests

from kaiju_jax.serving.http import errors
from kaiju_jax.serving.http import limits
from kaiju_jax.serving.http import loopback
from kaiju_jax.storage import files
from kaiju_jax.storage import strict

LOCAL, FILE = 'local', 'tokens.json'
# Names that no token's owner may have, in small letters: this machine's user,
# and what reads as if it were the server's own.
RESERVED = frozenset({LOCAL, 'operator', 'shared', 'public'})
_LOG = logging.getLogger(__name__)
ADULT, MINOR, UNKNOWN = AGES = 'adult', 'minor', 'unknown'
_OWNER = re.compile(r'[A-Za-z0-9._@+-]{1,64}')
_BEARER = re.compile(r'bearer +([\x21-\x7e]{1,256})', re.IGNORECASE)
_PREFIX = 'kaiju-'
# Hex digits of a digest that stand for a token where tokens are listed.
_ID = 12
# Seconds that a browser keeps the key; our guess: a month.
_KEPT = 30 * 24 * 3600


class Caller(NamedTuple):
  """The sender of a request, as the rest of the server knows it."""

  owner: str  # The owner, to whom characters and conversations belong.
  age: str  # 'adult' or 'minor'.
  tier: int = 0  # The engine's priority; higher goes first.
  # The owner's rate limits; None for the server's default.
  rate: limits.Rate | None = None
  # Whether the token says that the owner's conversations may be exported; a
  # word of the owner in the store comes before it.
  agrees: bool = False


@dataclasses.dataclass(frozen=True)
class Token:
  """A token, as the file holds it."""

  digest: str  # SHA-256 of the token, in hex.
  owner: str  # The token's user.
  age: str = UNKNOWN  # 'adult', 'minor' or 'unknown'.
  tier: int = 0  # The engine's priority; higher goes first.
  # Per minute; None for the server's default, and then for streams.
  requests: int | None = None
  streams: int | None = None  # At once; None with `requests`.
  created: int = 0  # In seconds since 1970.
  # Whether the owner, an adult, agrees that conversations are exported to train
  # a model.
  feedback: bool = False

  def __post_init__(self) -> None:
    if not re.fullmatch(r'[0-9a-f]{64}', self.digest):
      raise ValueError(f'digest={self.digest!r}: must be 64 hex digits.')
    if not _OWNER.fullmatch(self.owner):
      raise ValueError(
        f'owner={self.owner!r}: must be 1…64 letters, digits or ._@+-'
      )
    if self.age not in AGES:
      raise ValueError(f'age={self.age!r}: must be one of {", ".join(AGES)}.')
    if (self.requests is None) != (self.streams is None):
      raise ValueError(
        f'requests={self.requests}, streams={self.streams}: must both be'
        ' numbers or both None.'
      )
    if self.requests is not None:
      limits.Rate(self.requests, self.streams)
    if self.feedback and self.age != ADULT:
      raise ValueError(
        f'feedback=True, age={self.age!r}: counts as under 18, and may not'
        " agree; must be age='adult'."
      )

  @property
  def id(self) -> str:
    """The short name by which tokens are listed and revoked."""
    return self.digest[:_ID]

  @property
  def is_reserved(self) -> bool:
    """Whether the owner's name is the server's, so that no token is valid."""
    return self.owner.lower() in RESERVED

  @property
  def caller(self) -> Caller:
    rate = None
    if self.requests is not None:
      rate = limits.Rate(self.requests, self.streams)
    return Caller(
      self.owner, _tier_of(self.age), self.tier, rate, self.feedback
    )


class Tokens:
  """The tokens in a file that only its user can read.

  Several processes may change the file; a server sees the changes with its next
  request. All methods raise ValueError if it is damaged, or others can read it;
  those that change it raise OSError if it cannot be written.
  """

  def __init__(self, path: str | os.PathLike[str]):
    """Reads the file, where there is one."""
    self._path = pathlib.Path(path)
    self._seen: tuple[int, ...] | None = None
    self._tokens: dict[str, Token] = {}
    self._refresh()

  def list_all(self) -> tuple[Token, ...]:
    """Returns all tokens, the oldest first."""
    self._refresh()
    return tuple(self._tokens.values())

  def find(self, token: str) -> Token | None:
    """Returns a token's entry in the file; None where there is none."""
    self._refresh()
    # The lookup's time depends on the token's hash, which no sender can
    # control, never on how much of a token was guessed.
    digest = _digest(token)
    found = self._tokens.get(digest)
    if found is None or not hmac.compare_digest(found.digest, digest):
      return None
    if found.is_reserved:
      _LOG.error('Token %s: %s', found.id, _reserved(found.owner))
      return None
    return found

  def add(
    self,
    owner: str,
    age: str = UNKNOWN,
    tier: int = 0,
    rate: limits.Rate | None = None,
    feedback: bool = False,
  ) -> str:
    """Adds a token, and returns it; the file holds only its hash.

    Raises:
      ValueError: names the argument that is wrong.
    """
    token = _PREFIX + secrets.token_urlsafe(32)
    requests, streams = (rate.requests, rate.streams) if rate else (None, None)
    made = Token(
      _digest(token),
      owner,
      age,
      tier,
      requests,
      streams,
      int(time.time()),
      feedback,
    )
    if made.is_reserved:
      raise ValueError(_reserved(owner))
    with self._locked():
      self._refresh()
      self._write([*self._tokens.values(), made])
    return token

  def revoke(self, which: str) -> tuple[Token, ...]:
    """Removes tokens, and returns them; raises LookupError if there is none.

    Args:
      which: a token's id, or an owner, all of whose tokens go.
    """
    with self._locked():
      self._refresh()
      gone = [x for x in self._tokens.values() if which in (x.id, x.owner)]
      if not gone:
        raise LookupError(f'{which!r}: no token has this id or owner.')
      self._write([x for x in self._tokens.values() if x not in gone])
    return tuple(gone)

  def _refresh(self) -> None:
    """Reads the file again if it has changed."""
    try:
      status = self._path.stat()
    except FileNotFoundError:
      self._seen, self._tokens = None, {}
      return
    seen = (status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode)
    if seen == self._seen:
      return
    files.refuse_readable(self._path, status.st_mode)
    data = files.read_json(self._path)
    if not isinstance(data, dict) or not isinstance(data.get('tokens'), list):
      raise ValueError(f'{self._path}: must be an object with a list "tokens".')
    try:
      tokens = [
        strict.parse(Token, x, f'tokens[{n}]')
        for n, x in enumerate(data['tokens'])
      ]
    except ValueError as error:
      raise ValueError(f'{self._path}: {error}') from None
    self._tokens = {token.digest: token for token in tokens}
    self._seen = seen

  def _write(self, tokens: list[Token]) -> None:
    text = json.dumps({'tokens': [_dump(x) for x in tokens]}, indent=2)
    files.write_text(self._path, f'{text}\n', is_private=True)
    self._refresh()

  @contextlib.contextmanager
  def _locked(self) -> Iterator[None]:
    """Keeps other processes from changing the file meanwhile."""
    if not self._path.parent.exists():
      files.make_folder(self._path.parent)
      self._path.parent.chmod(0o700)  # A server's folder, before it starts.
    path = self._path.with_name(f'.{self._path.name}.lock')
    with open(path, 'a', opener=files.open_private) as file:
      fcntl.flock(file, fcntl.LOCK_EX)
      yield


class Access:
  """The server's access control: identifies callers, and refuses others."""

  def __init__(
    self,
    tokens: Tokens | None,
    *,
    is_open: bool = False,
    key: str | None = None,
    age: str = UNKNOWN,
    failures: limits.Failures | None = None,
  ):
    """Sets the ways to gain access.

    Args:
      is_open: whether requests of this machine need no token; like `key`, only
        for a server that listens on loopback alone.
      key: the local user's key; None for none.
      age: the local user's age.

    Raises:
      ValueError: the age or the key is not valid, or an open server has a key.
    """
    if key is not None:
      loopback.check_key(key)
      if is_open:
        raise ValueError('is_open=True: an open server asks for no key.')
    if age not in AGES:
      raise ValueError(f'age={age!r}: must be one of {", ".join(AGES)}.')
    self.is_open = is_open  # Whether requests of this machine need no token.
    self.key = key  # The local user's key; None for none.
    self._tokens = tokens
    self._local = Caller(LOCAL, _tier_of(age), rate=limits.LOCAL)
    self._failures = failures or limits.Failures()

  def caller(self, request: requests.HTTPConnection) -> Caller:
    """Returns the caller of a request.

    An open server ignores an unknown token, because some clients always send
    one.

    Raises:
      errors.ApiError: 401, 403 or 429; 503 where the tokens cannot be read.
    """
    token = _bearer(request)
    if token is not None and self._tokens is not None:
      found = self._found(token)
      if found is not None:
        return found.caller
    if self.is_open or self._has_key(token, request.cookies.get(self._cookie)):
      loopback.check(request)
      return self._local
    self._failures.note(request.client.host if request.client else '')
    if token is None:
      raise errors.unauthorized(
        'No token: send the header "Authorization: Bearer TOKEN".'
      )
    raise errors.unauthorized('The token is not valid.')

  @property
  def is_local(self) -> bool:
    """Whether the local user needs no token: open, or with a key."""
    return self.is_open or self.key is not None

  def cookie(self, request: requests.HTTPConnection) -> str | None:
    """Returns the Set-Cookie header that stores a request's key in a browser.

    None where no key is needed; raises as `caller` does.
    """
    self.caller(request)
    if not self._has_key(_bearer(request)):
      return None
    # JavaScript cannot read it, and no other site's page sends it.
    return (
      f'{self._cookie}={self.key}; Path=/; Max-Age={_KEPT}; HttpOnly;'
      ' SameSite=Strict'
    )

  def check_site(self, request: requests.HTTPConnection) -> None:
    """Refuses other sites' web pages (403) where no token would keep them out.

    For routes that need no authentication, such as the page.
    """
    if self.is_local:
      loopback.check(request)

  @property
  def _cookie(self) -> str:
    """The cookie's name. Browsers send cookies to all ports of a host, where
    another server may have a key of its own."""
    return f'kaiju_{_digest(self.key or "")[:_ID]}'

  def _has_key(self, *given: str | None) -> bool:
    """Returns whether the key is given, in a time independent of it."""
    if self.key is None:
      return False
    wanted = _digest(self.key)
    return any(
      hmac.compare_digest(_digest(one), wanted)
      for one in given
      if one is not None
    )

  def _found(self, token: str) -> Token | None:
    try:
      return self._tokens.find(token)
    except (OSError, ValueError) as error:
      _LOG.error('Nobody with a token is let in: %s', error)
      raise errors.unavailable('Tokens cannot be read now.', 10) from None


def _dump(token: Token) -> dict[str, Any]:
  """Returns a token's entry, which an older server reads where it can."""
  data = strict.dump(token)
  if not token.feedback:
    del data['feedback']
  return data


def _reserved(owner: str) -> str:
  names = ', '.join(sorted(RESERVED))
  return f'owner={owner!r}: the server reserves {names}; use another name.'


def _tier_of(age: str) -> str:
  return ADULT if age == ADULT else MINOR


def _digest(token: str) -> str:
  return hashlib.sha256(token.encode('utf-8', 'surrogatepass')).hexdigest()


def _bearer(request: requests.HTTPConnection) -> str | None:
  """Returns the token that a request carries; None for none, or for two."""
  given = request.headers.getlist('authorization')
  matched = _BEARER.fullmatch(given[0].strip()) if len(given) == 1 else None
  return matched[1] if matched else None
