"""Lets one process at a time write to a folder, by a lock on a file in it.

The kernel frees the lock when the process ends for any reason, so that no lock
is ever stale.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import fcntl
import os
import struct
import sys
import threading
from typing import TextIO

from kaiju_jax.storage import files

# {file: (process, thread, how often it entered)}. Each file is opened once per
# process, because the kernel lets a process lock a file twice, and frees the
# lock as soon as one of the descriptors is closed.
_HELD: dict[str, tuple[int, int, int]] = {}
_GUARD = threading.Lock()


@contextlib.contextmanager
def hold(
  path: str | os.PathLike[str],
  what: str,
  verb: str,
  flag: str,
  is_private: bool = False,
) -> Iterator[None]:
  """Holds the lock of a file, which is made where it does not exist.

  The thread that holds the lock may enter again.

  Args:
    path: the file; the process's number is written to it.
    what: the folder that the lock guards, such as 'workdir runs/tiny', for
      errors.
    verb: what the process that holds it does there, such as 'trains'.
    flag: the command's flag that names the folder.
    is_private: whether other users of the machine may not read the file.

  Raises:
    BlockingIOError: another process or thread holds it; names the process.
    OSError: the file cannot be made or written to.
  """
  name = os.path.realpath(path)
  me = os.getpid(), threading.get_ident()

  def busy(process: str) -> BlockingIOError:
    return BlockingIOError(
      f'{what}: process {process} {verb} here already. Wait for it, stop it, or'
      f' name another {flag}.'
    )

  with contextlib.ExitStack() as stack:
    with _GUARD:
      *owner, depth = _HELD.get(name, (*me, 0))
      if owner[0] != me[0]:  # A fork has its parent's entries, not its locks.
        owner, depth = me, 0
      if tuple(owner) != me:
        raise busy(str(me[0]))
      if not depth:
        stack.enter_context(_locked(path, what, busy, is_private))
      _HELD[name] = *me, depth + 1
    try:
      yield
    finally:
      with _GUARD:
        del _HELD[name]
        if depth:
          _HELD[name] = *me, depth
        stack.close()


def find_holder(path: str | os.PathLike[str]) -> int | None:
  """Returns the process that holds the lock of a file, and takes no lock.

  None if none does, there is no such file, or the file system has no locks.
  """
  if held := _HELD.get(os.path.realpath(path)):
    return held[0]  # The kernel does not tell a process of its own locks.
  # struct flock, whole files: type, whence, start, length, process.
  parts = [fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0]
  is_linux = sys.platform.startswith('linux')
  form, order = ('hhqqi', range(5)) if is_linux else ('qqihh', (2, 3, 4, 0, 1))
  try:
    with open(path, 'rb') as file:
      query = struct.pack(f'{form}0q', *(parts[n] for n in order))
      answer = fcntl.fcntl(file, fcntl.F_GETLK, query)
  except OSError:
    return None
  found = dict(zip(order, struct.unpack(f'{form}0q', answer)))
  return found[4] if found[0] != fcntl.F_UNLCK else None


@contextlib.contextmanager
def _locked(
  path: str | os.PathLike[str],
  what: str,
  busy: Callable[[str], Exception],
  is_private: bool,
) -> Iterator[None]:
  with _opened(path, what, is_private) as file:
    try:
      fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as error:
      file.seek(0)
      raise busy(file.read().strip()) from error
    except OSError:
      pass  # Some network filesystems have no locks.
    with files.writing(str(path)):
      file.truncate(0)
      file.write(f'{os.getpid()}\n')
      file.flush()
    yield


def _opened(
  path: str | os.PathLike[str], what: str, is_private: bool
) -> TextIO:
  opener = files.open_private if is_private else None
  try:
    if is_private and os.path.exists(path):
      os.chmod(path, 0o600)
    return open(path, 'a+', encoding='utf-8', opener=opener)
  except OSError as error:
    raise OSError(f'{what}: cannot be written to: {error.strerror}.') from error
