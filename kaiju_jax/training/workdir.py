"""The workdir, the folder of one run.

config.json        the Experiment; another one is refused
environment.json   versions, devices and date of the latest start, and of
                   the `earlier` ones; the length before a start that extended
                   the run
amounts.json       documents, tokens and epochs of each source, and the peak of
                   a step, at the latest start
metrics.jsonl      one record per line (records/metrics.py)
tensorboard/       the same records as events; wandb/, mlflow.db and
                   trackers.json of other trackers (records/trackers.py)
profile/           a trace of some steps (records/profile.py)
checkpoints/       state and data position (checkpoint.py)
bad_checkpoints/   checkpoints that could not be read, moved here
diverged.json      of a run that diverged (divergence.py)
base.json          digest of the base of adapters, if any
teacher.json       digest of the teacher of `attention_alignment`
lock               held by the process that trains here

A workdir must lie in a (possibly mounted) file system, because training appends
records, renames folders and locks a file. An object store's gs:// or s3:// can
do none of these.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import dataclasses
import os
import pathlib
from typing import Any

from kaiju_jax.storage import addresses
from kaiju_jax.storage import files
from kaiju_jax.storage import locks
from kaiju_jax.storage import strict
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import longer

CHECKPOINTS = 'checkpoints'
DIVERGED = 'diverged.json'
_CONFIG = 'config.json'
_ENVIRONMENT = 'environment.json'
_AMOUNTS = 'amounts.json'
_LOCK = 'lock'
# Fields of a run that may change: the place of the same parts, what watches it.
_FREE = {'parts.source', *(f'loop.{x}' for x in training_config.WATCHING)}


@contextlib.contextmanager
def open_workdir(
  path: str | os.PathLike[str],
  experiment: experiment_lib.Experiment,
  common_rows: longer.CommonRows | None = None,
) -> Iterator[pathlib.Path]:
  """Creates or reopens a workdir, and locks it while entered.

  Raises:
    ValueError, OSError: see `reserve`.
  """
  with reserve(path, experiment, common_rows) as path:
    file = path / _CONFIG
    held = load_experiment(path) if file.exists() else None
    if held is None or held.parts.source != experiment.parts.source:
      # The same parts may lie elsewhere by now.
      made = dataclasses.replace(held or experiment, parts=experiment.parts)
      files.write_json(file, strict.dump(made))
    yield path


@contextlib.contextmanager
def reserve(
  path: str | os.PathLike[str],
  experiment: experiment_lib.Experiment,
  common_rows: longer.CommonRows | None = None,
) -> Iterator[pathlib.Path]:
  """Locks a workdir while entered, and creates it if it does not exist.

  The caller reads data and makes parameters within, so that an unusable folder
  is refused minutes earlier. This function writes no `config.json`. At the end
  it removes a folder that it created and that still has none.

  Raises:
    ValueError: see `check`.
    BlockingIOError: another process trains there.
    OSError: the folder cannot be created or written to.
  """
  check(path, experiment, common_rows)
  path = pathlib.Path(path)
  made = [one for one in (path, *path.parents) if not one.exists()]
  files.make_folder(path)
  with locks.hold(path / _LOCK, f'workdir {path}', 'trains', '--workdir'):
    check(path, experiment, common_rows)
    try:
      yield path
    finally:
      if made and not (path / _CONFIG).exists():
        (path / _LOCK).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # It holds something by now.
          for folder in made:
            folder.rmdir()


def check(
  path: str | os.PathLike[str],
  experiment: experiment_lib.Experiment,
  common_rows: longer.CommonRows | None = None,
) -> None:
  """Refuses a workdir that holds another experiment. Writes nothing.

  Args:
    path: the workdir.
    experiment: the experiment.
    common_rows: returns how many of a run's first rows are those of every
      longer run, so that a shorter run may be extended (`longer.py`). None
      refuses every other length.

  Raises:
    ValueError: the path is empty, an address or a file; a field of the
      experiment has the wrong type; the workdir holds records or checkpoints
      without a `config.json`; or its `config.json` disagrees (the message names
      each field with both values, and a free workdir).
  """
  if not os.fspath(path):
    raise ValueError("workdir '': must name a folder, as runs/tiny.")
  addresses.refuse(path, f'workdir {path}')
  path = pathlib.Path(path)
  wanted = strict.dump(experiment)
  if path.exists() and not path.is_dir():
    raise ValueError(f'workdir {path}: is a file, must be a folder.')
  if not (path / _CONFIG).exists():
    _refuse_leftovers(path)
    return
  differences = compare(_read(path / _CONFIG), wanted)
  if 'data.path' in differences and _records_text(path):
    from kaiju_jax.data import documents

    # A token store: whether it is of the same text, the loader checks.
    if documents.is_store(experiment.data.path):
      del differences['data.path']
  if not differences:
    return
  lines = [
    f'  {name}: {theirs!r} in the workdir, {ours!r} in this command'
    for name, (theirs, ours) in differences.items()
  ]
  if 'parts.digest' in differences:
    lines.append(
      f'Bring back {experiment.parts.source or "the file"} as it was to go on.'
    )
  free = _free_name(path)
  advice = f'To leave it alone and start this one, type --workdir={free}'
  if common_rows is not None and differences.keys() <= longer.FIELDS:
    steps, held = checkpoints(path), load_experiment(path)
    extension = longer.Extension(
      held, experiment, find_begin(held), common_rows
    )
    why = extension.find_obstacle(max(steps, default=0))
    if not why:
      return
    lines.append(f'It cannot be extended: {why}')
    advice = extension.advise(path, free, steps)
  raise ValueError(
    '\n'.join(
      [f'workdir {path} holds a run of another experiment:', *lines, advice]
    )
  )


def load_experiment(path: str | os.PathLike[str]) -> experiment_lib.Experiment:
  """Returns the experiment whose run a workdir holds.

  Raises:
    FileNotFoundError: there is no `config.json`.
    ValueError: the path is an address; or the file is not JSON, or a field is
      unknown, missing or has the wrong type.
  """
  addresses.refuse(path, f'workdir {path}')
  file = pathlib.Path(path) / _CONFIG
  if not file.exists():
    raise FileNotFoundError(
      f'{file}: not found. A workdir is a folder that training wrote.'
    )
  try:
    return strict.parse(experiment_lib.Experiment, _read(file))
  except ValueError as error:
    raise ValueError(f'{file}: {error}') from error


def find_base(path: str) -> str:
  """Returns the base of a run with adapters; any other path itself.

  A run whose adapters began with those of another run has that one's base.

  Raises:
    ValueError: a `config.json` is not JSON.
  """
  while (file := pathlib.Path(path) / _CONFIG).is_file():
    fields = _read(file)
    lora = fields.get('lora') if isinstance(fields, dict) else None
    if not (isinstance(lora, dict) and lora.get('rank')):
      break
    path = fields['begin_with']
  return path


def compare(ours: Any, theirs: Any) -> dict[str, tuple[Any, Any]]:
  """Returns the fields in which dumped experiments differ, as ours and theirs.

  What a run may change when it goes on, such as its trackers, is left out.
  """
  found = strict.differences(ours, theirs)
  return {name: pair for name, pair in found.items() if name not in _FREE}


def _read(file: pathlib.Path) -> Any:
  """Returns the fields of a run, with the defaults of those that it lacks."""
  return strict.fill(experiment_lib.Experiment, files.read_json(file))


def holds_checkpoint(path: str | os.PathLike[str], step: int) -> bool:
  """Returns whether a workdir has a finished checkpoint of a step.

  It needs no jax. A save writes into a folder of another name and renames it
  once all is on the disk (checkpoint.py), after the step's records and its
  evaluation.
  """
  return (pathlib.Path(path) / CHECKPOINTS / str(step)).is_dir()


def checkpoints(path: str | os.PathLike[str]) -> list[int]:
  """Returns the steps of a workdir's finished checkpoints, in order."""
  folder = pathlib.Path(path) / CHECKPOINTS
  names = (one.name for one in folder.glob('*') if one.is_dir())
  return sorted(int(name) for name in names if name.isdigit())


def find_divergence(path: str | os.PathLike[str]) -> int | None:
  """Returns the step at which a workdir's run diverged; None if it did not."""
  file = pathlib.Path(path) / DIVERGED
  return files.read_json(file)['step'] if file.exists() else None


def find_trainer(path: str | os.PathLike[str]) -> int | None:
  """Returns the process that trains in a workdir; None if none is known."""
  return locks.find_holder(pathlib.Path(path) / _LOCK)


def note_start(
  path: pathlib.Path,
  experiment: experiment_lib.Experiment,
  step: int,
  amounts: Mapping[str, Any] | None = None,
) -> None:
  """Writes devices, versions and length with which the run starts or resumes.

  Args:
    path: the workdir, which is open.
    experiment: the experiment; a longer one replaces that of the workdir.
    step: the step after which the run starts or resumes.
    amounts: what amounts.json shall hold; None for no such file.

  Raises:
    OSError: the files cannot be written.
    ValueError: the run cannot be extended at this step.
  """
  # Imported here, so that `check` and `load_experiment` need no jax.
  from kaiju_jax.training import environment

  file = path / _ENVIRONMENT
  earlier = []
  if file.exists():
    last = files.read_json(file)
    earlier = [*last.pop('earlier', []), last]
  held, extended = load_experiment(path), {}
  differences = compare(strict.dump(held), strict.dump(experiment))
  if differences.keys() & longer.FIELDS:
    # `check` decided by the latest checkpoint, which may be unreadable.
    extension = longer.Extension(held, experiment, find_begin(held))
    if why := extension.find_obstacle(step):
      raise ValueError(f'workdir {path}: cannot be extended: {why}')
    loop = {'steps': held.loop.steps, 'tokens': held.loop.tokens}
    extended = {'extended': {'step': step, 'loop': loop}}
  described = {**environment.describe(), **extended, 'earlier': earlier}
  files.write_json(file, described)
  if amounts is not None:
    files.write_json(path / _AMOUNTS, amounts)
  if extended:
    files.write_json(path / _CONFIG, strict.dump(experiment))


def find_begin(experiment: experiment_lib.Experiment) -> tuple[int, int]:
  """Returns the step and the rows before a run's own first step.

  Raises:
    OSError, ValueError: the checkpoint of `loop.branch` is gone.
  """
  if not experiment.loop.branch:
    return 0, 0
  path, _, step = experiment.loop.branch.rpartition('@')
  return int(step), read_position(path, int(step))['row']


def read_position(path: str | os.PathLike[str], step: int) -> dict[str, Any]:
  """Returns the state of the loader in a checkpoint, as checkpoint.py has it.

  Raises:
    OSError, ValueError: it cannot be read.
  """
  folder = pathlib.Path(path) / CHECKPOINTS / str(step)
  return files.read_json(folder / 'data' / 'metadata')


def _records_text(path: pathlib.Path) -> bool:
  """Returns whether the latest checkpoint to be read has its text's digest."""
  for step in reversed(checkpoints(path)):
    with contextlib.suppress(OSError, ValueError):
      return 'text' in read_position(path, step)
  return False


def _refuse_leftovers(path: pathlib.Path) -> None:
  """Refuses checkpoints whose experiment is unknown."""
  for name in (CHECKPOINTS, 'metrics.jsonl'):
    if (path / name).exists():
      raise ValueError(
        f'workdir {path}: holds {name}, but no {_CONFIG} that says of which'
        f' experiment. Type --workdir={_free_name(path)}'
      )


def _free_name(path: pathlib.Path) -> pathlib.Path:
  if path.name in ('', '..'):  # '.' has no name that a number could follow.
    path = path.resolve()
  number = 2
  while (free := path.parent / f'{path.name}-{number}').exists():
    number += 1
  return free
