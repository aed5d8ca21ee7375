"""The local user's key: a random secret in a file that only this user can read.

A request on loopback may come from a program of another account, or through a
proxy that forwards strangers' requests without a header that says so. Only the
user who started the server can read the file, so the key identifies that user.

An operator's key is another one of the same kind. The chat's key is told to
clients and lies in browsers, and must not change what is served.
"""

import os
import pathlib
import re
import secrets

from kaiju_jax.storage import files

FILE, OPERATOR = 'local_key', 'operator_key'
_KEY = re.compile(r'kaiju-local-[A-Za-z0-9_-]{43}')


def load(path: str | os.PathLike) -> str:
  """Returns the key in a file; draws a key and writes it if there is none.

  Raises:
    ValueError: the file holds no key, or others can read it.
    OSError: it cannot be read or written.
  """
  path = pathlib.Path(path)
  try:
    return _read(path)
  except FileNotFoundError:
    key = f'kaiju-local-{secrets.token_urlsafe(32)}\n'
    files.create_secret(path, key.encode())
  return _read(path)


def check(key: str) -> str:
  """Returns a key of the right form; the ValueError does not contain it."""
  if not isinstance(key, str) or not _KEY.fullmatch(key):
    raise ValueError(
      "key: must be 'kaiju-local-' and 43 letters, digits, _ or -."
    )
  return key


def _read(path: pathlib.Path) -> str:
  with open(path, encoding='utf-8', errors='replace') as file:
    mode = os.fstat(file.fileno()).st_mode
    if mode & 0o077:
      raise ValueError(
        f'{path}: others may read it (mode {mode & 0o777:o}); must be 600.'
      )
    text = file.read(1024)
  try:
    return check(text.removesuffix('\n'))
  except ValueError as error:
    raise ValueError(
      f'{path}: {error} Remove the file, and the next start draws another.'
    ) from None
