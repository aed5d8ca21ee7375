"""Encodes files into a store, in several processes and bounded memory.

This process reads documents and hands those of a shard at a time to a worker,
which encodes them and writes the shard. A shard is there whole or not at all,
so that the same call goes on after a kill: it reads the text again, and encodes
what no shard has. So it does after a line that was refused has been mended.
Which documents a shard has depends on the text alone.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import multiprocessing
import os
import pathlib
import queue
import signal
from typing import Any

from kaiju_jax.data import config as data_config
from kaiju_jax.data import documents as documents_lib
from kaiju_jax.data import same_text
from kaiju_jax.data import text
from kaiju_jax.data import turns
from kaiju_jax.data.store import corpora
from kaiju_jax.data.store import encoders
from kaiju_jax.data.store import shards as shards_lib
from kaiju_jax.storage import addresses
from kaiju_jax.storage import files
from kaiju_jax.storage import locks
from kaiju_jax.storage import strict

# (characters so far) → nothing; is called for each shard.
Watch = Callable[[int], Any]
# Documents or conversations, each held out or not.
_Found = list[tuple[Any, bool]]
# A shard's file and what it shall hold.
_Task = tuple[pathlib.Path, _Found]
_BLOCK = 2**20
_SMALL = 2**26  # Bytes of text that are encoded in seconds.
_HAS_AFFINITY = hasattr(os, 'sched_getaffinity')
_DOCUMENTS = 2**16  # The most of a shard.


def write(
  config: data_config.DataConfig,
  out: str,
  make: encoders.Make = encoders.text_of,
  column: str = 'text',
  processes: int = 1,
  shard: int = 2**24,
  watch: Watch = lambda characters: None,
  says: bool = True,
) -> tuple[text.Corpus, text.Corpus | None]:
  """Writes a store, or goes on with one; returns its corpora.

  Args:
    config: names the files and has the encoder's settings.
    out: the store's folder.
    make: makes the encoder of `config`; every process imports it by its name.
    column: the column of tables.
    processes: how many encode, each one shard at a time; with 1, this one does.
    shard: characters of a shard.
    watch: shows progress, from the beginning on.
    says: whether to print what was left out.

  Raises:
    ImportError: a table needs a package that is missing.
    OSError, ValueError: see `holdout.stream`; the folder is no store, or one of
      other inputs; or it cannot be written.
    BlockingIOError: another process writes it.
  """
  addresses.refuse(out, f'--out={out}')
  watch(0)
  make = functools.partial(make, config)
  encoder = make()
  settings = corpora.Settings(
    data=_hash_files(documents_lib.inputs(config.path, '--data')),
    held_out=config.held_out,
    column=column,
    shard=shard,
    **encoder.settings,
  )
  folder = pathlib.Path(os.path.expanduser(out))
  _begin(folder, settings, out)
  with locks.hold(folder / '.lock', f'store {out}', 'tokenizes', '--out'):
    # Another process may have changed or finished it before the lock was ours.
    differs = _begin(folder, settings, out)
    if not corpora.read_manifest(folder).is_whole:
      for partial in folder.glob(f'.*{files.PARTIAL}'):
        partial.unlink()
      found = encoder.stream(config.path, config.held_out, '--data', column)
      shards = _cut(found, shard, encoder)
      paths: list[pathlib.Path] = []
      try:
        with _pool(processes, make, encoder) as work:
          for _ in work(
            _missing(shards, folder, paths, encoder, watch, differs)
          ):
            pass
        _finish(folder, settings, f'--data={config.path!r}', encoder, paths)
        for unused in {*folder.glob('*.safetensors')} - {*paths}:
          unused.unlink()
      except (OSError, ValueError):
        # Text that is refused before the first shard binds the folder to
        # nothing: mended, it goes there.
        if not any(folder.glob('*.safetensors')):
          (folder / documents_lib.STORE).unlink()
        raise
  manifest, found = corpora.open_store(folder, '--out')
  if says:
    encoder.say(manifest.counts)
  return corpora.read(found, manifest.records)


def store_of(
  config: data_config.DataConfig,
  root: str | os.PathLike[str],
  make: encoders.Make = encoders.text_of,
) -> data_config.DataConfig:
  """Returns the config with a store under `root` in place of its files.

  The store is made where there is none of these files, as their sizes and times
  say. A config is returned as it is where it names a store, where its files are
  small, and while another process makes the store.

  Raises:
    OSError, ValueError: as `write`.
  """
  path = config.path
  if documents_lib.is_store(path):
    return config
  found = [(name, os.stat(x)) for name, x in documents_lib.inputs(path)]
  if sum(one.st_size for _, one in found) < _SMALL:
    return config
  key = repr(
    (
      *(path, make(config).settings, config.held_out),
      *((name, one.st_size, one.st_mtime_ns) for name, one in found),
    )
  )
  name = hashlib.blake2b(key.encode(errors='surrogateescape'), digest_size=8)
  out = str(pathlib.Path(root).absolute() / name.hexdigest())
  if not (documents_lib.is_store(out) and corpora.read_manifest(out).is_whole):
    # The first process of several has the cores of all.
    count = len(os.sched_getaffinity(0)) if _HAS_AFFINITY else 1
    try:
      write(config, out, make, processes=count, says=False)
    except BlockingIOError:
      return config
  return dataclasses.replace(config, path=out)


def _hash_files(inputs: Iterable[tuple[str, str]]) -> str:
  """Returns a hash of files' names and contents."""
  sums = hashlib.blake2b(digest_size=16)
  for name, file in inputs:
    own = hashlib.blake2b(digest_size=16)
    with open(file, 'rb') as opened:
      while block := opened.read(_BLOCK):
        own.update(block)
    sums.update(name.encode(errors='surrogateescape') + b'\0' + own.digest())
  return sums.hexdigest()


def _begin(folder: pathlib.Path, settings: corpora.Settings, out: str) -> str:
  """Makes the folder and its first manifest; refuses one of other inputs.

  Returns:
    An error for where the files of a begun store are others by now, unless its
    first shard is of these, or it has none; '' for none.
  """
  if documents_lib.is_store(out):
    held = corpora.read_manifest(folder)
    pair = map(strict.dump, (held.settings, settings))
    different = [*strict.differences(*pair)]
    if different:
      differs = (
        f'--out={out}: is a store made of other inputs: {different[0]} differs.'
        ' Name another folder, or remove this one.'
      )
      if held.is_whole or different != ['data']:
        raise ValueError(differs)
      return differs
  elif folder.exists() and any(one.name != '.lock' for one in folder.iterdir()):
    raise FileExistsError(
      f'--out={out}: exists, and is no token store; must be a new folder.'
    )
  else:
    files.make_folder(folder)
    _write_manifest(folder, corpora.Manifest(settings))
  return ''


def _write_manifest(folder: pathlib.Path, manifest: corpora.Manifest) -> None:
  files.write_json(
    folder / documents_lib.STORE,
    {
      'settings': strict.dump(manifest.settings),
      'sizes': manifest.sizes,
      'records': manifest.records,
    },
  )


def _missing(
  shards: Iterable[_Found],
  folder: pathlib.Path,
  paths: list[pathlib.Path],
  encoder: encoders.Encoder,
  watch: Watch,
  differs: str,
) -> Iterator[_Task]:
  """Yields the shards that are still to be written; fills `paths` with all.

  It raises `differs`, an error, if the first shard is to be written beside
  others.
  """
  characters, is_begun = 0, any(folder.glob('*.safetensors'))
  for found in shards:
    paths.append(corpora.shard_path(folder, len(paths)))
    if not _holds(paths[-1], found):
      if differs and is_begun and len(paths) == 1:
        raise ValueError(differs)
      yield paths[-1], found
    characters += sum(encoder.measure(one) for one, _ in found)
    watch(characters)


def _cut(
  found: _Found, size: int, encoder: encoders.Encoder
) -> Iterator[_Found]:
  """Yields what each shard shall hold: about `size` characters."""
  own, room = [], size
  for one, is_held in found:
    own.append((one, is_held))
    room -= encoder.measure(one)
    if room <= 0 or len(own) == _DOCUMENTS:
      yield own
      own, room = [], size
  if own:
    yield own


def _holds(path: pathlib.Path, found: _Found) -> bool:
  """Returns whether a shard is there, whole and of these items."""
  try:
    return shards_lib.Shard(path).holds(found)
  except (FileNotFoundError, ValueError):
    return False


def _finish(
  folder: pathlib.Path,
  settings: corpora.Settings,
  place: str,
  encoder: encoders.Encoder,
  paths: list[pathlib.Path],
) -> None:
  """Writes the manifest of a store whose shards are whole."""
  found = [shards_lib.Shard(path) for path in paths]
  training, held_out = corpora.read(found, None)
  corpora.check_parts(training, held_out, settings.held_out, encoder, place)
  described = same_text.describe(training, held_out)
  records = {
    part: {'digest': described[part]['digest']}
    for part in (shards_lib.TRAINING, shards_lib.HELD_OUT)
    if part in described
  }
  records[shards_lib.TRAINING]['described'] = described
  records['counts'] = dataclasses.astuple(
    sum((one.counts() for one in found), turns.Counts())
  )
  sizes = tuple(one.size for one in found)
  _write_manifest(folder, corpora.Manifest(settings, sizes, records))


# Tasks → nothing for each, in their order.
_Work = Callable[[Iterable[_Task]], Iterator[None]]


@contextlib.contextmanager
def _pool(
  count: int, make: Callable[[], encoders.Encoder], encoder: encoders.Encoder
) -> Iterator[_Work]:
  """Yields a function that lets `count` processes write shards.

  With one it is this process. Others end when this one does, even by a kill,
  because they wait for a pipe that only it holds.
  """
  if count == 1:
    yield lambda tasks: (shards_lib.write(*one, encoder) for one in tasks)
    return
  context = multiprocessing.get_context('spawn')
  idle: queue.SimpleQueue[Any] = queue.SimpleQueue()
  links = []
  for _ in range(count):
    own, theirs = context.Pipe()
    context.Process(target=_serve, args=(theirs, make)).start()
    theirs.close()
    idle.put(own)
    links.append(own)
  with concurrent.futures.ThreadPoolExecutor(count) as threads:
    try:
      yield lambda tasks: _in_order(threads, idle, count, tasks)
    finally:
      for link in links:
        link.close()


def _in_order(
  threads: concurrent.futures.Executor,
  idle: 'queue.SimpleQueue[Any]',
  count: int,
  tasks: Iterable[_Task],
) -> Iterator[None]:
  """Yields for each task that is done."""
  running: list[concurrent.futures.Future[None]] = []
  for task in tasks:
    running.append(threads.submit(_ask, idle, [task]))
    if len(running) == count:
      yield running.pop(0).result()
  for one in running:
    yield one.result()


def _ask(idle: 'queue.SimpleQueue[Any]', given: list[_Task]) -> None:
  """Lets a worker write a shard, and raises what it raises.

  It empties `given`, so that the documents are in the worker's memory alone.
  """
  link, path = idle.get(), given[0][0]
  try:
    link.send(given.pop())
    error = link.recv()
  except (EOFError, ConnectionError):
    error = OSError(
      f'{path}: the process that wrote it was ended, perhaps because memory'
      ' was short. The same command goes on, with fewer --processes.'
    )
  finally:
    idle.put(link)
  if error is not None:
    raise error


def _serve(link: Any, make: Callable[[], encoders.Encoder]) -> None:
  """Writes the shards that a pipe brings, until its other end closes."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent ends it.
  encoder = make()
  # A parent that was killed asks and hears no more.
  with contextlib.suppress(EOFError, ConnectionError):
    while True:
      path, found = link.recv()
      error = None
      try:
        shards_lib.write(path, found, encoder)
      except Exception as caught:  # The parent raises it.
        error = caught
      link.send(error)
