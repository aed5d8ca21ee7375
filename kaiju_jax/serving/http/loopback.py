"""Who is on this machine, and which web page may speak to it.

A server on loopback that asks for no token trusts whoever runs programs here.
A browser here runs other people's programs: their pages. Two ways lead from
such a page to the server. Either it sends its request here as it is; then the
browser says where it comes from, by Origin or Sec-Fetch-Site. Or its own name
turns to 127.0.0.1 after it was loaded (DNS rebinding), so that the browser
takes the server for the page's own; then Host is that name.
"""

import ipaddress
import re

from starlette import requests

from kaiju_jax.serving.http import errors

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
  """Refuses requests of other machines and of other people's web pages.

  Raises:
    errors.ApiError: 403; names the header that says so.
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
