"""Tokenizes text into a store, in several processes and bounded memory.

This process reads documents and hands those of a shard at a time to a worker,
which encodes them and writes the shard. A shard is there whole or not at all,
so that the same call goes on after a kill: it reads the text again, and encodes
only what is missing. Which documents a shard has depends on the text alone.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import multiprocessing
import os
import pathlib
import queue
import signal
from typing import Any

from kaiju_jax.data import config as data_config
from kaiju_jax.data import documents as documents_lib
from kaiju_jax.data import holdout
from kaiju_jax.data import same_text
from kaiju_jax.data import text
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.data.store import corpora
from kaiju_jax.data.store import shards as shards_lib
from kaiju_jax.storage import addresses
from kaiju_jax.storage import files
from kaiju_jax.storage import locks
from kaiju_jax.storage import strict

# (characters so far) → nothing; is called for each shard.
Watch = Callable[[int], Any]
# Documents, each held out or not.
_Found = Iterable[tuple[documents_lib.Document, bool]]
# A shard's file and its documents.
_Task = tuple[pathlib.Path, _Found]
_BLOCK = 2**20
_SMALL = 2**26  # Bytes of text that are encoded in seconds.
_HAS_AFFINITY = hasattr(os, 'sched_getaffinity')
_DOCUMENTS = 2**16  # The most of a shard.


def write(
  data: str,
  tokenizer: str,
  out: str,
  held_out: float,
  column: str = 'text',
  processes: int = 1,
  shard: int = 2**24,
  watch: Watch = lambda characters: None,
) -> tuple[text.Corpus, text.Corpus | None]:
  """Writes a store, or goes on with one; returns its corpora.

  Args:
    data: a file, folder or glob, as `data.path`.
    tokenizer: path of a `tokenizer.json`; '' for bytes.
    out: the store's folder.
    held_out: the fraction that is held out, as `data.held_out`.
    column: the column of tables.
    processes: how many encode, each one shard at a time; with 1, this one does.
    shard: characters of a shard.
    watch: shows progress.

  Raises:
    ImportError: a table needs a package that is missing.
    OSError, ValueError: see `holdout.stream`; the folder is no store, or one of
      other inputs; or it cannot be written.
    BlockingIOError: another process writes it.
  """
  addresses.refuse(out, f'--out={out}')
  encoder = tokenizer_lib.load(tokenizer)
  settings = corpora.Settings(
    data=_hash_files(documents_lib.inputs(data, '--data')),
    tokenizer=tokenizer_lib.digest(encoder),
    held_out=held_out,
    column=column,
    shard=shard,
  )
  folder = pathlib.Path(os.path.expanduser(out))
  _begin(folder, settings, out)
  with locks.hold(folder / '.lock', f'store {out}', 'tokenizes', '--out'):
    if not corpora.read_manifest(folder).is_whole:
      for partial in folder.glob(f'.*{files.PARTIAL}'):
        partial.unlink()
      found = holdout.stream(data, held_out, '--data', column)
      paths: list[pathlib.Path] = []
      try:
        with _pool(processes, tokenizer, encoder) as work:
          for _ in work(_missing(found, folder, shard, paths, watch)):
            pass
        _finish(folder, settings, data, paths)
      except (OSError, ValueError):
        # Text that is refused before the first shard binds the folder to
        # nothing: mended, it goes there.
        if not any(folder.glob('*.safetensors')):
          (folder / documents_lib.STORE).unlink()
        raise
  manifest, found = corpora.open_store(folder, '--out')
  return corpora.read(found, manifest.records)


def store_of(
  config: data_config.DataConfig, root: str | os.PathLike[str]
) -> data_config.DataConfig:
  """Returns the config with a store under `root` in place of its text.

  The store is made where there is none of these files, as their sizes and times
  say. A config is returned as it is where it names a store, where its text is
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
  encoder = tokenizer_lib.load(config.tokenizer)
  key = repr(
    (
      *(path, tokenizer_lib.digest(encoder), config.held_out),
      *((name, one.st_size, one.st_mtime_ns) for name, one in found),
    )
  )
  name = hashlib.blake2b(key.encode(errors='surrogateescape'), digest_size=8)
  out = str(pathlib.Path(root).absolute() / name.hexdigest())
  if not (documents_lib.is_store(out) and corpora.read_manifest(out).is_whole):
    # The first process of several has the cores of all.
    count = len(os.sched_getaffinity(0)) if _HAS_AFFINITY else 1
    try:
      write(path, config.tokenizer, out, config.held_out, processes=count)
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


def _begin(folder: pathlib.Path, settings: corpora.Settings, out: str) -> None:
  """Makes the folder and its first manifest; refuses one of other inputs."""
  if documents_lib.is_store(out):
    then = corpora.read_manifest(folder).settings
    for name, now in strict.dump(settings).items():
      if getattr(then, name) != now:
        raise ValueError(
          f'--out={out}: is a store made of other inputs: {name} differs. Name'
          ' another folder, or remove this one.'
        )
  elif folder.exists() and any(one.name != '.lock' for one in folder.iterdir()):
    raise FileExistsError(
      f'--out={out}: exists, and is no token store; must be a new folder.'
    )
  else:
    files.make_folder(folder)
    _write_manifest(folder, corpora.Manifest(settings))


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
  found: _Found,
  folder: pathlib.Path,
  size: int,
  paths: list[pathlib.Path],
  watch: Watch,
) -> Iterator[_Task]:
  """Yields the shards that are still to be written; fills `paths` with all."""
  characters = 0
  for documents in _cut(found, size):
    paths.append(corpora.shard_path(folder, len(paths)))
    if not _is_whole(paths[-1]):
      yield paths[-1], documents
    characters += sum(_measure(one) for one, _ in documents)
    watch(characters)


def _cut(found: _Found, size: int) -> Iterator[_Found]:
  """Yields the documents of each shard: about `size` characters."""
  own, room = [], size
  for one, is_held in found:
    own.append((one, is_held))
    room -= _measure(one)
    if room <= 0 or len(own) == _DOCUMENTS:
      yield own
      own, room = [], size
  if own:
    yield own


def _measure(document: documents_lib.Document) -> int:
  return sum(map(len, document.segments))


def _is_whole(path: pathlib.Path) -> bool:
  try:
    shards_lib.Shard(path)
  except (FileNotFoundError, ValueError):
    return False
  return True


def _finish(
  folder: pathlib.Path,
  settings: corpora.Settings,
  data: str,
  paths: list[pathlib.Path],
) -> None:
  """Writes the manifest of a store whose shards are whole."""
  found = [shards_lib.Shard(path) for path in paths]
  training, held_out = corpora.read(found, None)
  if training is None:
    raise ValueError(f'--data={data!r}: the files hold no text.')
  described = same_text.describe(training, held_out)
  records = {
    part: {'digest': described[part]['digest']}
    for part in (shards_lib.TRAINING, shards_lib.HELD_OUT)
    if part in described
  }
  records[shards_lib.TRAINING]['described'] = described
  sizes = tuple(one.size for one in found)
  _write_manifest(folder, corpora.Manifest(settings, sizes, records))


# Tasks → nothing for each, in their order.
_Work = Callable[[Iterable[_Task]], Iterator[None]]


@contextlib.contextmanager
def _pool(
  count: int, tokenizer: str, encoder: tokenizer_lib.Tokenizer
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
    context.Process(target=_serve, args=(theirs, tokenizer)).start()
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


def _serve(link: Any, tokenizer: str) -> None:
  """Writes the shards that a pipe brings, until its other end closes."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent ends it.
  encoder = tokenizer_lib.load(tokenizer)
  with contextlib.suppress(EOFError):
    while True:
      path, documents = link.recv()
      try:
        shards_lib.write(path, documents, encoder)
        link.send(None)
      except Exception as error:  # The parent raises it.
        link.send(error)
