"""The local user's key: a random secret in a file that only this user can read.

A request on loopback may come from a program of another account, or through a
proxy that forwards strangers' requests without a header that says so. Only the
user who started the server can read the file, so the key identifies that user.
"""

import os
import pathlib
import re
import secrets
import tempfile

from kaiju_jax.storage import files

FILE = 'local_key'
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
    _write(path, 'kaiju-local-' + secrets.token_urlsafe(32))
  return _read(path)


def check(key: str) -> str:
  """Returns a key that has the right form.

  Raises:
    ValueError: the form is wrong; the message does not contain the key.
  """
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


def _write(path: pathlib.Path, key: str) -> None:
  """Creates a file at once with its whole content, if there is none."""
  with files.writing(str(path)):
    # Mode 600, whatever the umask is.
    file, temporary = tempfile.mkstemp(prefix='.key.', dir=path.parent)
    try:
      with os.fdopen(file, 'w', encoding='utf-8') as opened:
        opened.write(f'{key}\n')
        opened.flush()
        os.fsync(opened.fileno())
      os.link(temporary, path)
    except FileExistsError:
      pass  # Another process drew one at the same time.
    finally:
      os.unlink(temporary)
