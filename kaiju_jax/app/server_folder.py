"""Opens the parts of a server's folder: the store, the tokens and the keys.

A Redis holds characters and conversations elsewhere; tokens and keys stay here.
"""

from collections.abc import Callable
import pathlib
from typing import TYPE_CHECKING
from typing import NamedTuple

from kaiju_jax.app import settings as settings_lib
from kaiju_jax.serving.http import auth
from kaiju_jax.serving.http import loopback
from kaiju_jax.serving.safety import blocked
from kaiju_jax.serving.safety import moderation
from kaiju_jax.serving.stores import conversing
from kaiju_jax.storage import files

if TYPE_CHECKING:
  from kaiju_jax.decoding.device import judge
  from kaiju_jax.serving.drift import watch
  from kaiju_jax.serving.replies import saved_points

SQLITE, BLOCKED, KEY = 'characters.sqlite', 'blocked', 'key'
POINTS, DRIFT = 'points', 'drift'
_SECRET = 32  # Bytes of the key.


class Parts(NamedTuple):
  """The parts beside the engine, which are checked before it compiles."""

  access: auth.Access
  moderator: moderation.Moderator
  store: conversing.Store


def open_store(folder: pathlib.Path, which: str) -> conversing.Store:
  """Returns the store of a server.

  Args:
    folder: the server's.
    which: 'sqlite', in the folder; or the address of a Redis.

  Raises:
    OSError, ValueError: it cannot be opened, or is no store of this schema.
    characters.Unavailable: it cannot be reached.
  """
  if which == 'sqlite':
    from kaiju_jax.serving.stores import sqlite_store

    return sqlite_store.SqliteStore(folder / SQLITE)
  from kaiju_jax.serving.stores import redis_store

  return redis_store.RedisStore(which)


def load_key(folder: pathlib.Path) -> bytes:
  """Returns the HMAC key of the pseudonyms in logs; draws one at first."""
  return files.load_secret(folder / KEY, _SECRET)


def open_points(
  folder: pathlib.Path, most: int, place: str = ''
) -> 'saved_points.Folder':
  """Returns the folder of a server's saved points.

  Args:
    folder: the server's.
    most: bytes of all pages.
    place: the replica's name, if the server has several.

  Raises:
    OSError: it cannot be made.
    ValueError: the server's key is damaged.
  """
  from kaiju_jax.serving.replies import saved_points

  # Tokens and scores take less than their pages.
  largest = 2 * most + 2**20
  path = folder / (f'{POINTS}-{place}' if place else POINTS)
  return saved_points.Folder(path, load_key(folder), largest)


def open_drift(folder: pathlib.Path) -> 'watch.Folder':
  """Returns the folder of a server's drift checkpoints; as `open_points`."""
  from kaiju_jax.serving.drift import watch

  return watch.Folder(folder / DRIFT, load_key(folder))


def forget_owner(folder: pathlib.Path, owner: str) -> None:
  """Removes the saved points of an owner who has no token any more.

  A server that runs saves none of them again.

  Raises:
    OSError, ValueError: see `open_points`.
  """
  tokens = auth.Tokens(folder / auth.FILE).list_all()
  if owner in {x.owner for x in tokens}:
    return
  for path in folder.glob(f'{POINTS}*'):
    place = path.name.removeprefix(POINTS).removeprefix('-')
    open_points(folder, 0, place).remove_owner(owner)


def read_key(folder: pathlib.Path) -> bytes:
  """Returns the key that a server of the folder has drawn.

  Raises:
    FileNotFoundError: there is none.
    OSError: it cannot be read.
    ValueError: others may read it, or it has another size.
  """
  path = folder / KEY
  if not path.is_file():
    raise FileNotFoundError(
      f'{path}: no key; a server draws it in its folder at its first start, and'
      ' other keys give people other pseudonyms. Name the folder of the server.'
    )
  files.refuse_readable(path, path.stat().st_mode)
  return load_key(folder)


def find(store: str, folder: str) -> tuple[pathlib.Path, str]:
  """Returns a server's folder, and the name of its store for `open_store`.

  Args:
    store: the folder, its sqlite file, or the address of a Redis.
    folder: the folder, where `store` is a Redis; '' otherwise.

  Raises:
    FileNotFoundError: there is no such store.
    ValueError: a folder is missing, or there are two.
  """
  if '://' in store:
    if not folder:
      raise ValueError(
        f'--store={store.partition("://")[0]}://…: a Redis holds no tokens and'
        " no key; name the server's folder as --folder."
      )
    return pathlib.Path(folder), store
  path = pathlib.Path(store)
  file = path if path.name == SQLITE else path / SQLITE
  if not file.is_file():
    raise FileNotFoundError(
      f'--store={store}: no {SQLITE} there; must be the folder of a server, its'
      f' {SQLITE}, or redis://HOST:PORT/0.'
    )
  if folder and not pathlib.Path(folder).samefile(file.parent):
    raise ValueError(
      f'--folder={folder}: must be left out, because --store={store} lies in a'
      ' folder with tokens and a key of its own.'
    )
  return file.parent, 'sqlite'


def open_access(
  folder: pathlib.Path, host: str, is_open: bool, asks_token: bool, age: str
) -> auth.Access:
  """Returns the rules of access of a server.

  Args:
    folder: the server's.
    host: the address that it listens on.
    is_open: whether requests of this machine need no key.
    asks_token: whether requests on loopback need a token, too.
    age: of this machine's user.

  Raises:
    OSError: a file cannot be read or written.
    ValueError: the settings contradict each other, or nobody has a token.
  """
  is_local = loopback.is_loopback(host)
  if is_open and (asks_token or not is_local):
    raise ValueError(
      f'open=True: must be without require_token={asks_token}, and'
      f' host={host!r} this machine alone, as 127.0.0.1.'
    )
  tokens = auth.Tokens(folder / auth.FILE)
  needs_token = asks_token or not is_local
  if needs_token and not tokens.list_all():
    raise ValueError(
      f'host={host!r}, require_token={asks_token}: a token is needed, and there'
      f' is none in {folder / auth.FILE}: add one first (--add_token=NAME).'
    )
  key = None
  if not (needs_token or is_open):
    key = loopback.load_key(folder / loopback.KEY_FILE)
  return auth.Access(tokens, is_open=is_open, key=key, age=age)


def record_agreement(
  store: conversing.Store,
  access: auth.Access,
  age: str,
  agrees: bool,
  say: Callable[[str], None],
) -> None:
  """Records whether a server's own user agrees to the export of feedback.

  An earlier decision of the user, such as a withdrawal on the page, stays.

  Args:
    store, access: the server's.
    age: of this machine's user.
    agrees: whether this user's conversations may be exported.
    say: prints a message for the user.

  Raises:
    ValueError: the user may not agree, or needs a token like others.
    characters.Unavailable: the store cannot be reached.
  """
  if agrees and (age != auth.ADULT or not access.is_local):
    raise ValueError(
      f'feedback=True, age={age!r}: it speaks for the person before this'
      ' machine, who must be an adult (--age=adult) and need no token; others'
      ' agree on the page.'
    )
  if agrees:
    if not store.agree(auth.LOCAL, True, if_new=True):
      say('Feedback: withdrawn on the page, where it can be given again.')
  elif age != auth.ADULT and access.is_local and store.agreement(auth.LOCAL):
    store.agree(auth.LOCAL, False)
    say(f'Feedback: withdrawn, because age={age} counts as under 18.')


def open_parts(
  settings: settings_lib.Settings,
  head: 'judge.Head | None',
  say: Callable[[str], None] = print,
) -> Parts:
  """Opens the access list, the moderator and the store of a server.

  Raises:
    OSError: a file cannot be read or written.
    ValueError: the server would answer other machines without tokens or without
      moderation; or there is a gate but no token-level head.
    characters.Unavailable: the store cannot be reached.
  """
  folder = pathlib.Path(settings.folder)
  if not folder.exists():
    files.make_folder(folder)
    folder.chmod(0o700)  # It holds conversations.
  named = log = None
  if head is not None:
    params, config = head
    version = moderation.head_version(params, config.names)
    named = moderation.Head(version, config.names)
  if settings.safety or head is not None:  # An operator may serve a gate later.
    log = blocked.Blocked(folder / BLOCKED, load_key(folder))
  moderator = moderation.Moderator(named, log)
  if settings.safety:
    moderator.use(settings.safety)
  if moderator.mode == 'closed':
    raise ValueError(
      f'safety={settings.safety!r}: closed: no token-level head, without which'
      ' nothing is answered; train one (experiments.train_head), and name its'
      ' folder.'
    )
  access = open_access(
    folder,
    settings.host,
    settings.open,
    settings.require_token,
    settings.age,
  )
  if (
    not loopback.is_loopback(settings.host) and moderator.mode == 'unmoderated'
  ):
    raise ValueError(
      f'host={settings.host!r}: a server without moderation answers this'
      ' machine alone; give it a gate and a token-level head (--safety,'
      " --head), or host='127.0.0.1'."
    )
  store = open_store(folder, settings.store)
  try:
    record_agreement(store, access, settings.age, settings.feedback, say)
  except BaseException:
    store.close()
    raise
  return Parts(access, moderator, store)
