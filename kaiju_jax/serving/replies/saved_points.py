"""Keeps the points of a server's cache in files, for the next start.

    WHO-WHAT-TREE.points    a sealed group of points (`storage/sealed.py`)

A thread looks every minute which points the engine has, and writes the groups
that have changed; the folder then holds these groups and no others. The engine
copies one group between two rounds, and waits for no file. `SavedTexts`
decides which texts are saved, at each look and again as each file is written.
Texts without a character, or outside a session, never are, because nobody could
ask to have them removed.

Names are pseudonyms under the folder's key, so that the files of a session, or
of an owner's character, are found and removed without reading any. A file that
cannot be taken back is refused with a line in the log and removed with the next
writing: it costs a prefill, and a text must not stay that nobody can name.

One process writes to the folder. Another that finds it taken reads it at its
start and once more when the first has gone, which is a rolling update.
"""

from collections.abc import Callable
import contextlib
import functools
import logging
import pathlib
import threading
import time
from typing import Any
from typing import NamedTuple

from kaiju_jax.decoding.engine import forgetting
from kaiju_jax.decoding.engine import saving as saving_lib
from kaiju_jax.decoding.pages import groups as groups_lib
from kaiju_jax.serving.http import auth
from kaiju_jax.serving.replies import worker as worker_lib
from kaiju_jax.serving.stores import characters
from kaiju_jax.serving.stores import conversing
from kaiju_jax.serving.stores import sharing
from kaiju_jax.storage import files
from kaiju_jax.storage import locks
from kaiju_jax.storage import sealed

_LOG = logging.getLogger(__name__)
PURPOSE, LOCK, SUFFIX = 'points', 'lock', '.points'
_SHARED, _PREFIX = 'shared', 'prefix'
# Seconds between two saves; our guess.
INTERVAL_S = 60.0
# Seconds for which the engine may be in a round.
_ROUND = 30.0


class Restored(NamedTuple):
  """The result of reading the folder: points in the cache, files refused."""

  points: int
  refused: int
  seconds: float


class Folder:
  """The files of groups.

  Args:
    path: the folder, which is made.
    secret: the server's, from which the key is derived.
    most: the most bytes of a file.
  """

  def __init__(self, path: pathlib.Path, secret: bytes, most: int):
    files.make_folder(path)
    path.chmod(0o700)
    self.path = path
    self.most = most
    self._sealer = sealed.Sealer(secret, PURPOSE)

  def name(self, group: groups_lib.Name) -> str:
    """Returns the name of a group's file; heads' versions share it."""
    owner = owner_of(group)
    who = self._pseudonym('owner', owner) if owner else _SHARED
    what = _PREFIX
    if group.conversation is not None:
      what = self._pseudonym('conversation', group.conversation)
    tree = self._pseudonym('tree', group.cache_salt.decode())
    return f'{who}-{what}-{tree}{SUFFIX}'

  def list(self) -> list[pathlib.Path]:
    """Returns the files, in order of their names."""
    return sorted(self.path.glob(f'*{SUFFIX}'))

  def write(self, group: groups_lib.Name, data: bytes) -> None:
    """Replaces a group's file; raises OSError."""
    self._sealer.write(self.path / self.name(group), data)

  def read(self, path: pathlib.Path, root: str) -> groups_lib.Group:
    """Returns a file's group.

    Raises:
      OSError: it cannot be read.
      ValueError: it is refused; says why.
    """
    group = groups_lib.parse(self._sealer.read(path, self.most), root)
    if path.name != self.name(group.name):
      raise ValueError('its group has another name')
    return group

  def remove(self, wanted: Callable[[str], bool]) -> int:
    """Removes the files whose names are wanted; returns how many."""
    gone = [path for path in self.list() if wanted(path.name)]
    for path in gone:
      path.unlink(missing_ok=True)
    return len(gone)

  def remove_partial(self) -> None:
    """Removes what killed processes left; only the folder's writer may."""
    for path in self.path.glob(f'.*{files.PARTIAL}'):
      path.unlink(missing_ok=True)

  def remove_session(self, owner: str, session: str) -> int:
    """Removes the files of a session."""
    who = self._pseudonym('owner', owner)
    what = self._pseudonym('conversation', session)
    return self.remove(lambda name: name.startswith(f'{who}-{what}-'))

  def remove_owner(self, owner: str) -> int:
    """Removes all files of an owner."""
    who = self._pseudonym('owner', owner)
    return self.remove(lambda name: name.startswith(f'{who}-'))

  def remove_tree(self, salt: str) -> int:
    """Removes all files of texts with a salt."""
    tree = self._pseudonym('tree', salt)
    return self.remove(lambda name: name.endswith(f'-{tree}{SUFFIX}'))

  def _pseudonym(self, kind: str, text: str) -> str:
    return self._sealer.pseudonym(f'{kind} {text}'.encode()).hex()


def owner_of(group: groups_lib.Name) -> str:
  """Returns the owner of a group; '' for a prefix that owners share."""
  tree = sharing.Tree.parse(group.cache_salt.decode())
  owner = '' if tree is None else tree.owner
  return owner or group.owner.decode()


class SavedTexts:
  """Decides which texts of the cache may lie on the disk, as the store is now.

  Those are the prefixes that everybody may talk to: of live versions of public
  characters, and of built-in ones.

  Args:
    tokens: of the owners that may ask, beside this machine's user.
    is_private: whether to save also the conversations of sessions that exist,
      the prefixes that these stand behind, and those of private characters, all
      of owners who still have access.
  """

  def __init__(
    self,
    store: conversing.Store,
    tokens: auth.Tokens,
    is_private: bool = False,
  ):
    # Cache salts of texts that the safety gate blocks, which are not
    # everybody's whatever the store says.
    self.blocked: set[str] = set()
    self._store, self._tokens, self._is_private = store, tokens, is_private

  def may_be_kept(self, name: groups_lib.Name) -> bool:
    """Returns whether a group of this name is ever saved."""
    tree = sharing.Tree.parse(name.cache_salt.decode())
    if tree is None:
      return False
    is_shared = name.conversation is None and not tree.owner
    return is_shared or self._is_private

  def is_kept(self, name: groups_lib.Name) -> bool:
    """Returns whether a group may be saved, or taken back.

    Raises:
      characters.Unavailable: the store cannot be reached.
      ValueError: the tokens cannot be read.
    """
    if not self.may_be_kept(name):
      return False
    tree = sharing.Tree.parse(name.cache_salt.decode())
    if name.conversation is not None:
      return self._is_conversation_kept(name, tree)
    if tree.owner:
      return self._is_private_kept(tree)
    if tree.salt not in self.blocked and sharing.is_public(self._store, tree):
      return True
    return self._is_private and sharing.is_read(self._store, tree)

  def _is_conversation_kept(
    self, name: groups_lib.Name, tree: sharing.Tree
  ) -> bool:
    owner = name.owner.decode()
    if not self._is_known(owner):
      return False
    store = self._store
    try:
      session = store.session(owner, name.conversation)
      version = store.version(session.character, session.version)
    except characters.Missing:
      return False
    is_current = sharing.find_tree(store, owner, version) == tree
    return is_current and (not tree.owner or self._is_private_kept(tree))

  def _is_private_kept(self, tree: sharing.Tree) -> bool:
    # Nothing of a removed character is saved, though its sessions go on.
    return self._is_known(tree.owner) and sharing.can_begin(self._store, tree)

  def _is_known(self, owner: str) -> bool:
    known = {token.owner for token in self._tokens.list_all()}
    return owner in known | {auth.LOCAL}


class SavedPoints:
  """Saves the points of a server's engine, and takes them back."""

  def __init__(
    self,
    worker: worker_lib.Worker,
    saving: saving_lib.Saving,
    folder: Folder,
    *,
    most: int,
    texts: SavedTexts,
    interval_s: float = INTERVAL_S,
  ):
    """Reads and writes nothing yet.

    Args:
      saving: of the engine.
      folder: of the files.
      most: the most bytes of all pages that are saved.
      texts: decides which texts are saved.
      interval_s: seconds between two saves.
    """
    self._worker = worker
    self._saving = saving
    self._folder = folder
    self._most = most
    self._texts = texts
    self._interval_s = interval_s
    self.restored = Restored(0, 0, 0.0)  # The result of the latest `restore`.
    # Held while a file is written or files are removed.
    self._guard = threading.Lock()
    self._written: dict[str, Any] = {}
    self._stopping = threading.Event()
    self._thread = threading.Thread(
      target=self._run, name='points', daemon=True
    )

  def restore(self) -> Restored:
    """Reads the folder, and puts its points into the engine.

    Before the worker's thread runs, in this one; otherwise between its rounds,
    a group at a time. Files that are refused stay; each is a line of the log.
    """
    begun, refused, found = time.monotonic(), 0, []
    for path in self._folder.list():
      try:
        group = self._folder.read(path, self._saving.root)
        self._saving.check(group)
        if not self._texts.is_kept(group.name):
          raise ValueError(
            'its text was removed, is not to be saved, or has a name of an'
            ' older version'
          )
        found.append(group)
      except (OSError, ValueError, characters.Unavailable) as error:
        refused += 1
        _LOG.warning('points of %s are refused: %s.', path.name, error)
    found.sort(key=lambda group: group.name.conversation is not None)
    points = 0
    try:
      if not self._worker.is_alive:
        points = self._saving.adopt(found)
      else:
        for one in found:
          adopt = functools.partial(self._saving.adopt, [one])
          points += self._worker.ask(adopt, _ROUND) or 0
    except Exception:
      # The server starts all the same; what is missing is prefilled.
      _LOG.exception('points could not be taken back')
    seconds = time.monotonic() - begun
    self.restored: Restored = Restored(points, refused, seconds)
    return self.restored

  def start(self) -> None:
    """Starts the thread."""
    self._thread.start()

  def stop(self) -> None:
    """Saves once more, and ends the thread; the engine must still run."""
    self._stopping.set()
    if self._thread.is_alive():
      self._thread.join()

  def forget(self, wanted: forgetting.Forget) -> None:
    """Removes files of texts that the engine has dropped, or must not keep.

    A text that everybody shared keeps its file only as far as `texts` allows.

    Raises:
      OSError: a file cannot be removed.
      characters.Unavailable: the store cannot be reached.
    """
    self._texts.blocked |= set(wanted.blocked)
    with self._guard:
      for owner, session in wanted.conversations:
        self._folder.remove_session(owner, session)
      for salt in wanted.salts:
        self._folder.remove_tree(salt)
      for salt in (*wanted.withdrawn, *wanted.blocked):
        if not self._texts.is_kept(groups_lib.Name(b'', salt.encode())):
          self._folder.remove_tree(salt)

  def save(self) -> int:
    """Writes the groups that have changed; returns how many.

    Raises:
      OSError: a group cannot be written; the others are.
      characters.Unavailable: the store cannot be reached; nothing changes.
    """
    selected = self._worker.ask(
      lambda: self._saving.select(self._most, self._texts.may_be_kept), _ROUND
    )
    if selected is None:
      return 0
    kept = {
      self._folder.name(one.name): one
      for one in selected
      if self._texts.is_kept(one.name)
    }
    with self._guard:
      # Before anything is written: a full disk needs the room.
      self._folder.remove(lambda name: name not in kept)
    self._written = {x: y for x, y in self._written.items() if x in kept}
    count, faults = 0, []
    for name, one in kept.items():
      try:
        count += self._save_group(name, one)
      except OSError as error:
        faults.append(error)
    if faults:
      raise faults[0]
    return count

  def _save_group(self, name: str, one: groups_lib.Selected) -> bool:
    """Writes a group if it has changed; returns whether it was written."""
    # The points themselves: what they hold never changes. How often a prefix
    # was asked for is written again once it has doubled.
    content = set(one.points), one.pages, one.begun.bit_length()
    is_there = (self._folder.path / name).exists()
    if self._written.get(name) == content and is_there:
      return False
    data = self._copy(one)
    if data is None:
      return False
    with self._guard:
      # It may have been removed, or withdrawn, since it was selected.
      if not self._texts.is_kept(one.name):
        return False
      self._folder.write(one.name, data)
    self._written[name] = content
    return True

  def _copy(self, selected: groups_lib.Selected) -> bytes | None:
    """Returns a group's bytes; None if it has changed meanwhile."""
    copied = self._worker.ask(lambda: self._saving.copy(selected), _ROUND)
    if copied is None:
      return None
    try:
      return copied.to_bytes()
    except ValueError as error:
      _LOG.warning('points are not saved: %s', error)
      return None

  def _run(self) -> None:
    with contextlib.ExitStack() as stack:
      is_writer = self._lock(stack)
      while not self._stopping.wait(self._interval_s if is_writer else 1.0):
        if not is_writer:
          is_writer = self._lock(stack)
          if is_writer:
            # The process that wrote to the folder has gone.
            self._try(self.restore)
        else:
          self._try(self.save)
      if is_writer:
        self._try(self.save)

  def _lock(self, stack: contextlib.ExitStack) -> bool:
    try:
      stack.enter_context(
        locks.hold(
          self._folder.path / LOCK,
          f'folder {self._folder.path}',
          'saves points',
          '--folder',
          is_private=True,
        )
      )
    except OSError:
      return False
    self._folder.remove_partial()
    return True

  def _try(self, function: Callable[[], Any]) -> None:
    try:
      function()
    except Exception:
      # The server answers all the same; the next save tries again.
      _LOG.exception('points could not be saved')
