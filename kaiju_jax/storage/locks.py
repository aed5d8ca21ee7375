"""One writer at a time: a file that the kernel locks for one process.

The lock ends with its process, however that ends, so that none is ever stale.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import fcntl
import os
import threading
from typing import TextIO

from kaiju_jax.storage import files

# File → (process, thread, how often it entered). The kernel lets a process lock
# a file twice, and frees the lock as soon as one of its descriptors is closed:
# each file is therefore opened once per process.
_HELD: dict[str, tuple[int, int, int]] = {}
_GUARD = threading.Lock()


@contextlib.contextmanager
def held(
  path: str | os.PathLike, what: str, verb: str, flag: str
) -> Iterator[None]:
  """Locks a file, which is made where it does not exist.

  The thread that holds it may enter again.

  Args:
    path: the file; it will hold the process's number.
    what: the folder that it guards, such as 'workdir runs/tiny', for errors.
    verb: what the process that holds it does there, such as 'trains'.
    flag: the command's flag that names the folder.

  Raises:
    BlockingIOError: another process, or another thread of this one, holds it;
      names the process.
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
        stack.enter_context(_locked(path, what, busy))
      _HELD[name] = *me, depth + 1
    try:
      yield
    finally:
      with _GUARD:
        del _HELD[name]
        if depth:
          _HELD[name] = *me, depth
        stack.close()


@contextlib.contextmanager
def _locked(
  path: str | os.PathLike, what: str, busy: Callable[[str], Exception]
) -> Iterator[None]:
  with _opened(path, what) as file:
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


def _opened(path: str | os.PathLike, what: str) -> TextIO:
  try:
    return open(path, 'a+', encoding='utf-8')
  except OSError as error:
    raise OSError(f'{what}: cannot be written to: {error.strerror}.') from error
