"""Protects a server on loopback from other machines and other sites' pages.

A server on loopback without tokens trusts the programs of this machine. But a
browser also runs programs of other sites: their pages. Such a page can reach
the server in two ways. If it sends a request directly, the browser names its
site in Origin or Sec-Fetch-Site. If the name of its site resolves to 127.0.0.1
after it was loaded (DNS rebinding), the browser treats the server as the page's
own; then Host holds that name.

A request on loopback may also come from a program of another account, or
through a proxy that forwards strangers' requests. So the local user has a key:
a random secret in a file that only the user who started the server can read. An
operator's key is another one of the same kind; the chat's key is sent to
clients and lies in browsers, and must not change what is served.
"""

import ipaddress
import os
import pathlib
import re
import secrets

from starlette import requests

from kaiju_jax.serving.http import errors
from kaiju_jax.storage import files

KEY_FILE, OPERATOR_FILE = 'local_key', 'operator_key'
_KEY_FORM = re.compile(r'kaiju-local-[A-Za-z0-9_-]{43}')
_HOST = re.compile(r'(\[[0-9a-f:.]+\]|[^:\[\]]+)(:[0-9]{1,5})?')
# 'none' is a person who typed the address. A page from another port of
# localhost counts as 'same-site'.
_OWN_SITES = (None, 'same-origin', 'none')


def is_loopback(host: str | None) -> bool:
  """Returns whether a name or address is always this machine's own."""
  if host is None:
    return False
  if host.lower() == 'localhost':
    return True
  try:
    address = ipaddress.ip_address(host)
  except ValueError:
    return False
  mapped = getattr(address, 'ipv4_mapped', None)
  return (mapped or address).is_loopback


def check(request: requests.HTTPConnection) -> None:
  """Refuses requests of other machines and of other sites' web pages.

  Raises:
    errors.ApiError: 403; names the header that gave the reason.
  """
  if request.client is None or not is_loopback(request.client.host):
    raise errors.forbidden('Without a token, only this machine is answered.')
  host = request.headers.get('host', '').lower()
  matched = _HOST.fullmatch(host)
  if not matched or not is_loopback(matched[1].strip('[]')):
    raise errors.forbidden(
      f'Host={host!r}: without a token it must be localhost or 127.0.0.1.',
      'wrong_host',
    )
  origins = request.headers.getlist('origin')
  own = f'{request.url.scheme}://{host}'
  if any(origin.lower() != own for origin in origins):
    raise errors.forbidden(
      f'Origin={origins[0]!r}: without a token it must be {own!r}.',
      'wrong_origin',
    )
  site = request.headers.get('sec-fetch-site')
  if site not in _OWN_SITES:
    raise errors.forbidden(
      f'Sec-Fetch-Site={site!r}: without a token, only pages of this server'
      ' may ask.',
      'wrong_origin',
    )


def load_key(path: str | os.PathLike[str]) -> str:
  """Returns the key in a file; draws a key and writes it if there is none.

  Raises:
    ValueError: the file holds no key, or others can read it.
    OSError: it cannot be read or written.
  """
  path = pathlib.Path(path)
  try:
    return _read_key(path)
  except FileNotFoundError:
    key = f'kaiju-local-{secrets.token_urlsafe(32)}\n'
    files.create_secret(path, key.encode())
  return _read_key(path)


def check_key(key: str) -> str:
  """Returns a key of the right form; the ValueError does not contain it."""
  if not isinstance(key, str) or not _KEY_FORM.fullmatch(key):
    raise ValueError(
      "key: must be 'kaiju-local-' and 43 letters, digits, _ or -."
    )
  return key


def _read_key(path: pathlib.Path) -> str:
  with open(path, encoding='utf-8', errors='replace') as file:
    files.refuse_readable(path, os.fstat(file.fileno()).st_mode)
    text = file.read(1024)
  try:
    return check_key(text.removesuffix('\n'))
  except ValueError as error:
    raise ValueError(
      f'{path}: {error} Remove the file, and the next start draws another.'
    ) from None
