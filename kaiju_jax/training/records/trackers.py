"""Sends a run's records to trackers, beside metrics.jsonl.

    tensorboard   WORKDIR/tensorboard (`tensorboard.py`)
    trackio       its own folder (TRACKIO_DIR)
    wandb         WORKDIR/wandb, for `wandb sync`; WANDB_MODE=online sends it
    mlflow        WORKDIR/mlflow.db, or what MLFLOW_TRACKING_URI names

`loop.trackers` names them. A run keeps its identity in trackers.json, so that a
resumed one goes on in the same run of a tracker.

A resumed run repeats the steps after its checkpoint. TensorBoard drops its
earlier events. The others take nothing back, and are not told again what they
were told before, which has the same values. (After a kill, trackio may lack the
last half second of it.)

A tracker never stops a run. One that fails is named once, and left out.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Set
import contextlib
import io
import os
import pathlib
import time
from typing import Any
import uuid

from kaiju_jax.storage import files
from kaiju_jax.storage import strict
from kaiju_jax.training.records import metrics

FILE = 'trackers.json'
_PROJECT = 'kaiju'
# Of a call of MLflow's client.
_MOST_PARAMETERS, _MOST_CHARACTERS = 100, 500


class Trackers:
  """The trackers of a run, as far as they work.

  Args:
    names: of `OPENERS`.
    folder: the workdir.
    last_step: the step after which the run starts or resumes.
    repeated: `metrics.Records.repeated`.
    say: prints a line for the user.
  """

  def __init__(
    self,
    names: tuple[str, ...],
    folder: pathlib.Path,
    last_step: int,
    repeated: Set[tuple[int, bool]],
    say: Callable[[str], None],
  ):
    self._say, self._repeated, self._open = say, repeated, {}
    self._began = set()
    for name in names:
      try:
        self._open[name] = OPENERS[name](folder, last_step)
        self._note(folder, name)
      except ImportError:
        say(_MISSING[name])
      except Exception as error:
        self._drop(name, error)

  def append(
    self, step: int, tokens: float, values: Mapping[str, float]
  ) -> None:
    """Sends a record."""
    is_repeated = metrics.key_of(step, values) in self._repeated
    for name in list(self._open):
      if name == 'tensorboard':
        self._call(name, 'append', step, values)
      elif not (is_repeated and name in self._began):
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

  def _note(self, folder: pathlib.Path, name: str) -> None:
    """Notes that a tracker has records of this run, and whether it had."""
    if name == 'tensorboard':
      return
    known = _read(folder)
    if name in known['began']:
      self._began.add(name)
    else:
      known['began'].append(name)
      files.write_json(folder / FILE, known)


class _Trackio:
  """A run of trackio's local database."""

  def __init__(self, folder: pathlib.Path, last_step: int):
    del last_step
    import trackio

    with contextlib.redirect_stdout(io.StringIO()):
      self._run = trackio.init(
        project=os.environ.get('TRACKIO_PROJECT', _PROJECT),
        name=_name(folder),
        config=_config(folder),
        resume='allow',
        embed=False,
        auto_log_gpu=False,
        auto_log_cpu=False,
      )

  def append(self, step: int, values: Mapping[str, float]) -> None:
    self._run.log(dict(values), step=step)

  def flush(self) -> None:
    """Does nothing: a thread of trackio writes twice a second."""

  def close(self) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
      self._run.finish()


class _Wandb:
  """A run of Weights & Biases, offline unless WANDB_MODE says otherwise."""

  def __init__(self, folder: pathlib.Path, last_step: int):
    del last_step
    import wandb

    mode = os.environ.get('WANDB_MODE', 'offline')
    self._run = wandb.init(
      project=os.environ.get('WANDB_PROJECT', _PROJECT),
      id=_read(folder)['id'],
      name=_name(folder),
      config=_config(folder),
      dir=folder,
      mode=mode,
      resume=None if mode == 'offline' else 'allow',
      reinit='create_new',
      settings=wandb.Settings(console='off', silent=True),
    )

  def append(self, step: int, values: Mapping[str, float]) -> None:
    self._run.log(dict(values), step=step)

  def flush(self) -> None:
    """Does nothing: another process of wandb writes."""

  def close(self) -> None:
    self._run.finish()


class _Mlflow:
  """A run of MLflow, found by its tag."""

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
    identity = _read(folder)['id']
    runs = client.search_runs([number], f"tags.`{key}` = '{identity}'")
    if runs:
      self._id = runs[0].info.run_id
      client.update_run(self._id, status='RUNNING')
      return
    made = client.create_run(
      number, run_name=_name(folder), tags={key: identity}
    )
    self._id = made.info.run_id
    flat = strict.differences(_config(folder), {}).items()
    parameters = [
      self._entities.Param(name, str(value)[:_MOST_CHARACTERS])
      for name, (value, _) in flat
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

  def flush(self) -> None:
    """Does nothing: each record is written when it is appended."""

  def close(self) -> None:
    self._client.set_terminated(self._id)


def _tensorboard(folder: pathlib.Path, last_step: int) -> Any:
  from kaiju_jax.training.records import tensorboard

  return tensorboard.Events(folder, last_step)


# (workdir, last step) → an object with append(step, values), flush and close.
OPENERS = {
  'tensorboard': _tensorboard,
  'trackio': _Trackio,
  'wandb': _Wandb,
  'mlflow': _Mlflow,
}
_MISSING = {
  'tensorboard': "No TensorBoard events: pip install 'kaiju_jax[report]'.",
  **{
    name: f"No records for {name}: pip install 'kaiju_jax[{name}]'."
    for name in OPENERS
    if name != 'tensorboard'
  },
}


def _read(folder: pathlib.Path) -> dict[str, Any]:
  """Returns the run's identity for trackers; makes one at the first call."""
  file = folder / FILE
  if not file.exists():
    files.write_json(file, {'id': uuid.uuid4().hex[:12], 'began': []})
  return files.read_json(file)


def _name(folder: pathlib.Path) -> str:
  """Returns the run's name, which no other workdir has."""
  return f'{folder.resolve().name}-{_read(folder)["id"][:6]}'


def _config(folder: pathlib.Path) -> dict[str, Any]:
  """Returns the run's experiment and amounts, as its workdir holds them."""
  found = (folder / f'{name}.json' for name in ('config', 'amounts'))
  return {path.stem: files.read_json(path) for path in found if path.exists()}
