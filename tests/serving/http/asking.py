"""Requests of somebody, as the application sees them."""

import pytest
from starlette import requests

from kaiju_jax.serving.http import errors


def request(bearer=None, client='127.0.0.1', host='localhost:8000', **headers):
  """Returns a request; a header's name has `_` for `-`."""
  if bearer is not None:
    headers['authorization'] = f'Bearer {bearer}'
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
        (name.lower().replace('_', '-').encode(), value.encode('latin-1'))
        for name, value in headers.items()
      ],
    }
  )


def refusal(access, *arguments, **options) -> errors.ApiError:
  """Returns the error by which a request is refused."""
  with pytest.raises(errors.ApiError) as caught:
    access.caller(request(*arguments, **options))
  return caught.value


def status(access, *arguments, **options) -> int:
  return refusal(access, *arguments, **options).status


def owner(access, *arguments, **options) -> str:
  return access.caller(request(*arguments, **options)).owner
