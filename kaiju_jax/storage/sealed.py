"""Writes files that only this user can read, and that only a key can write.

    magic  of this layout                                       16 bytes
    whose  names the key                                        16 bytes
    tag    HMAC-SHA256 of all other bytes and the file's name   32 bytes
    data

A kill leaves the old file or the new one, whole. The tag is checked before a
byte of the data is given out. So a damaged file is refused, one of another key,
and one that was given another file's name.
"""

import hmac
import os
import pathlib

from kaiju_jax.storage import files

_MAGIC = b'kaiju sealed 1\r\n'
_ID, _TAG = 16, 32
# The bytes of a file beyond its data.
OVERHEAD = len(_MAGIC) + _ID + _TAG


class SealError(ValueError):
  """An error: a file is damaged, too large, or sealed with another key."""


class Sealer:
  """Seals files with a key that it derives from a secret for one purpose."""

  def __init__(self, secret: bytes, purpose: str):
    self._key = hmac.digest(secret, f'the key of {purpose}'.encode(), 'sha256')
    self._id = self.pseudonym(b'', _ID)

  def pseudonym(self, text: bytes, size: int = 16) -> bytes:
    """Returns bytes that stand for a text and, without the key, tell nothing.

    They are the same in each process with this secret and purpose.
    """
    return hmac.digest(self._key, b'name' + text, 'sha256')[:size]

  def write(self, path: pathlib.Path, data: bytes) -> None:
    """Replaces a file, with mode 600.

    It does not wait for the disk: what a loss of power damages is refused.

    Raises:
      OSError: the file cannot be written.
    """
    tag = self._tag(path.name, data)
    with files.writing(str(path)), files.replacing(path) as partial:
      file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
      with os.fdopen(file, 'wb') as opened:
        for part in (_MAGIC, self._id, tag, data):
          opened.write(part)

  def read(self, path: pathlib.Path, most: int) -> memoryview:
    """Returns a file's data.

    Args:
      path: the file.
      most: the most bytes that it may have; a larger one is not read.

    Raises:
      OSError: it cannot be read.
      SealError: says why.
    """
    with open(path, 'rb') as file:
      size = os.fstat(file.fileno()).st_size
      if size > most:
        raise SealError(f'it has {size:,} bytes, and at most {most:,} are read')
      found = file.read(most + 1)
    head, data = found[:OVERHEAD], memoryview(found)[OVERHEAD:]
    whose, tag = head[len(_MAGIC) : -_TAG], head[-_TAG:]
    expected = self._tag(path.name, data)
    if len(head) == OVERHEAD and hmac.compare_digest(tag, expected):
      if head.startswith(_MAGIC) and whose == self._id:
        return data
    elif head.startswith(_MAGIC) and len(whose) == _ID and whose != self._id:
      raise SealError('it is damaged, or sealed with the key of another server')
    raise SealError('it is damaged')

  def _tag(self, name: str, data: bytes | memoryview) -> bytes:
    mac = hmac.new(self._key, b'file', 'sha256')
    for part in (name.encode(), _MAGIC, self._id):
      mac.update(len(part).to_bytes(8, 'little'))
      mac.update(part)
    mac.update(data)
    return mac.digest()
