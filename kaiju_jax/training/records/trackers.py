"""Sends a run's records to trackers, beside metrics.jsonl.

    tensorboard   WORKDIR/tensorboard (`tensorboard.py`)
    trackio       its own folder (TRACKIO_DIR)
    wandb         WORKDIR/wandb, for `wandb sync`; WANDB_MODE=online sends it
    mlflow        WORKDIR/mlflow.db, or what MLFLOW_TRACKING_URI names

`loop.trackers` names them. A run keeps its identity in trackers.json, so that a
resumed one goes on in the same run of a tracker.

A resumed run repeats the steps after its checkpoint, with the same values.
TensorBoard drops its earlier events. The others take nothing back: they are
asked what they have, and told the rest. So a record that a kill took from a
tracker's memory comes again.

A tracker never stops a run. One that fails is named once, and left out.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import io
import json
import os
import pathlib
import struct
import time
from typing import Any
import uuid

from kaiju_jax.storage import files
from kaiju_jax.storage import strict

FILE = 'trackers.json'
_PROJECT = 'kaiju'
# Of a call of MLflow's client.
_MOST_PARAMETERS, _MOST_CHARACTERS = 100, 500
# Of LevelDB's log, in which wandb writes: bytes of a block, and of the file's
# header.
_BLOCK, _HEADER = 32768, 7


class Trackers:
  """The trackers of a run, as far as they work.

  Args:
    names: of `OPENERS`.
    folder: the workdir.
    last_step: the step after which the run starts or resumes.
    say: prints a line for the user.
  """

  def __init__(
    self,
    names: tuple[str, ...],
    folder: pathlib.Path,
    last_step: int,
    say: Callable[[str], None],
  ):
    self._say, self._open = say, {}
    for name in names:
      try:
        self._open[name] = OPENERS[name](folder, last_step)
      except ImportError:
        extra = 'report' if name == 'tensorboard' else name
        say(f"No records for {name}: pip install 'kaiju_jax[{extra}]'.")
      except Exception as error:
        self._drop(name, error)

  def append(
    self, step: int, tokens: float, values: Mapping[str, float]
  ) -> None:
    """Sends a record to those that do not have it."""
    for name, one in list(self._open.items()):
      if name == 'tensorboard':
        self._call(name, 'append', step, values)
      elif not keys_of(step, values) <= one.held:
        self._call(name, 'append', step, {'tokens': tokens, **values})

  def flush(self) -> None:
    """Writes what a tracker has in memory."""
    for name in list(self._open):
      self._call(name, 'flush')

  def close(self) -> None:
    """Ends the trackers' runs."""
    for name in list(self._open):
      self._call(name, 'close')
    self._open.clear()

  def _call(self, name: str, verb: str, *arguments) -> None:
    try:
      getattr(self._open[name], verb)(*arguments)
    except Exception as error:  # Whatever a package raises.
      self._drop(name, error)

  def _drop(self, name: str, error: Exception) -> None:
    lines = str(error).splitlines() or [type(error).__name__]
    self._say(f'{name}: {lines[0]} The run goes on without it.')
    if (broken := self._open.pop(name, None)) is not None:
      with contextlib.suppress(Exception):
        broken.close()


class _Run:
  """A run of a package, which writes by itself."""

  _run: Any

  def append(self, step: int, values: Mapping[str, float]) -> None:
    self._run.log(dict(values), step=step)

  def flush(self) -> None:
    pass

  def close(self) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
      self._run.finish()


class _Trackio(_Run):
  """A run of trackio's local database; its thread writes twice a second."""

  def __init__(self, folder: pathlib.Path, last_step: int):
    del last_step
    import trackio
    from trackio import sqlite_storage

    project = os.environ.get('TRACKIO_PROJECT', _PROJECT)
    with contextlib.redirect_stdout(io.StringIO()):
      self._run = trackio.init(
        project=project,
        name=_name(folder),
        config=_config(folder),
        resume='allow',
        embed=False,
        auto_log_gpu=False,
        auto_log_cpu=False,
      )
    logs = sqlite_storage.SQLiteStorage.get_logs(project, _name(folder))
    self.held = _join(keys_of(one['step'], one) for one in logs)


class _Wandb(_Run):
  """A run of Weights & Biases, whose own process writes."""

  def __init__(self, folder: pathlib.Path, last_step: int):
    del last_step
    import wandb

    self.held = _join(keys_of(*row) for row in read_wandb(folder))
    mode = os.environ.get('WANDB_MODE', 'offline')
    self._run = wandb.init(
      project=os.environ.get('WANDB_PROJECT', _PROJECT),
      id=_identity(folder),
      name=_name(folder),
      config=_config(folder),
      dir=folder,
      mode=mode,
      resume=None if mode == 'offline' else 'allow',
      reinit='create_new',
      settings=wandb.Settings(console='off', silent=True),
    )


class _Mlflow(_Run):
  """A run of MLflow, found by its tag; each record is written at once."""

  def __init__(self, folder: pathlib.Path, last_step: int):
    del last_step
    import mlflow

    self._entities = mlflow.entities
    local = f'sqlite:///{folder.resolve()}/mlflow.db'
    uri = os.environ.get('MLFLOW_TRACKING_URI', local)
    self._client = client = mlflow.MlflowClient(uri, uri)
    name, key = os.environ.get('MLFLOW_EXPERIMENT_NAME', _PROJECT), 'kaiju.id'
    found = client.get_experiment_by_name(name)
    number = found.experiment_id if found else client.create_experiment(name)
    identity, self.held = _identity(folder), set()
    runs = client.search_runs([number], f"tags.`{key}` = '{identity}'")
    if runs:
      self._id = runs[0].info.run_id
      self.held = _join(
        keys_of(one.step, [name])
        for name in runs[0].data.metrics
        for one in client.get_metric_history(self._id, name)
      )
      client.update_run(self._id, status='RUNNING')
      return
    made = client.create_run(
      number, run_name=_name(folder), tags={key: identity}
    )
    self._id = made.info.run_id
    parameters = [
      self._entities.Param(name, str(value)[:_MOST_CHARACTERS])
      for name, (value, _) in strict.differences(_config(folder), {}).items()
    ]
    for first in range(0, len(parameters), _MOST_PARAMETERS):
      some = parameters[first : first + _MOST_PARAMETERS]
      client.log_batch(self._id, params=some)

  def append(self, step: int, values: Mapping[str, float]) -> None:
    now = int(1000 * time.time())
    self._client.log_batch(
      self._id,
      [
        self._entities.Metric(name, float(value), now, step)
        for name, value in values.items()
      ],
    )

  def close(self) -> None:
    self._client.set_terminated(self._id)


def _tensorboard(folder: pathlib.Path, last_step: int) -> Any:
  from kaiju_jax.training.records import tensorboard

  return tensorboard.Events(folder, last_step)


# (workdir, last step) → an object with append(step, values), flush, close, and
# `held`, the `keys_of` what it has.
OPENERS = {
  'tensorboard': _tensorboard,
  'trackio': _Trackio,
  'wandb': _Wandb,
  'mlflow': _Mlflow,
}


def keys_of(step: int, names: Iterable[str]) -> set[tuple[int, bool]]:
  """Returns {(step, whether it is an evaluation)} of a record's names."""
  own = 'step', 'tokens', 'timestamp'
  return {
    (step, name.startswith('eval_'))
    for name in names
    if name not in own and not name.startswith('_')
  }


def read_wandb(folder: pathlib.Path) -> Iterator[tuple[int, dict[str, Any]]]:
  """Yields (step, {name: value}) of the rows in a workdir's offline files."""
  from wandb.proto import wandb_internal_pb2

  for file in sorted((folder / 'wandb').glob('offline-run-*/*.wandb')):
    data, place, whole = file.read_bytes(), _HEADER, b''
    while place + 7 <= len(data):
      if _BLOCK - place % _BLOCK < 7:  # The block's end has no room for one.
        place += _BLOCK - place % _BLOCK
        continue
      _, size, kind = struct.unpack_from('<IHB', data, place)
      part = data[place + 7 : place + 7 + size]
      place += 7 + size
      whole = part if kind in (1, 2) else whole + part
      if kind in (2, 3) or len(part) < size:  # More follows, or was lost.
        continue
      record = wandb_internal_pb2.Record.FromString(whole)
      row = {
        one.key or '/'.join(one.nested_key): json.loads(one.value_json)
        for one in record.history.item
      }
      if '_step' in row:
        yield row['_step'], row


def _join(sets: Iterable[set]) -> set:
  return set().union(*sets)


def _identity(folder: pathlib.Path) -> str:
  """Returns the run's identity for trackers; makes one at the first call."""
  file = folder / FILE
  if not file.exists():
    files.write_json(file, {'id': uuid.uuid4().hex[:12]})
  return files.read_json(file)['id']


def _name(folder: pathlib.Path) -> str:
  """Returns the run's name, which no other workdir has."""
  return f'{folder.resolve().name}-{_identity(folder)[:6]}'


def _config(folder: pathlib.Path) -> dict[str, Any]:
  """Returns the run's experiment and amounts, as its workdir holds them."""
  found = (folder / f'{name}.json' for name in ('config', 'amounts'))
  return {path.stem: files.read_json(path) for path in found if path.exists()}
