"""Branches: runs that begin with a checkpoint of another run.

    loop.branch = 'runs/base@400'

The run starts from checkpoint 400 of runs/base: parameters, moments, count of
tokens and number of the next row. With the settings of that run it has the same
bits as that run; with another batch, rate, seed of the data or end, it shows
the effect of that change from there on. Step numbers continue, and fractions of
the run's tokens (`optimizer.warmup`, `optimizer.batch`) count from the other
run's beginning.
"""

import pathlib
from typing import Any
from typing import NamedTuple

from kaiju_jax.storage import strict
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import workdir as workdir_lib

# These fields must agree, or the state or the data's position would not fit.
_SAME = (
  'model',
  'objective',
  'data.task',
  'data.path',
  'data.tokenizer',
  'data.length',
  'data.held_out',
  'optimizer.skip_nonfinite',
)


class Origin(NamedTuple):
  """The checkpoint from which a run branches off.

  Attributes:
    workdir: the workdir of the other run.
    step: the step of its checkpoint.
  """

  workdir: pathlib.Path
  step: int


class Start(NamedTuple):
  """The state and the position with which a branch begins.

  Attributes:
    state: a `state.TrainState`, stored on the mesh.
    place: the loader's state; None if the seed differs, and with it the earlier
      rows.
    begins: (step, rows), as in `batch_schedule.BatchSchedule`.
  """

  state: Any
  place: dict[str, Any] | None
  begins: tuple[int, int]


def origin(experiment: experiment_lib.Experiment) -> Origin:
  """Returns the checkpoint that `loop.branch` names.

  Raises:
    ValueError: it does not name a workdir and a step.
  """
  text = experiment.loop.branch
  workdir, at, step = text.rpartition('@')
  if not (workdir and at and step.isascii() and step.isdigit()):
    raise ValueError(
      f"loop.branch={text!r}: must be WORKDIR@STEP, as 'runs/base@400'."
    )
  return Origin(pathlib.Path(workdir), int(step))


def check(experiment: experiment_lib.Experiment) -> None:
  """Refuses a branch that cannot begin; needs no jax.

  Raises:
    OSError, ValueError: the run or checkpoint does not exist, or its model or
      data differ; the message names the field and both values.
  """
  found = origin(experiment)
  field = f'loop.branch={experiment.loop.branch!r}'
  other = workdir_lib.load_experiment(found.workdir)
  if not workdir_lib.holds_checkpoint(found.workdir, found.step):
    held = ', '.join(map(str, workdir_lib.checkpoints(found.workdir)))
    raise ValueError(
      f'{field}: there is no checkpoint {found.step} in {found.workdir};'
      f' there {f"are {held}" if held else "is none"}.'
      ' (loop.checkpoints_kept says how many of the latest stay.)'
    )
  different = [
    f'{name}: {theirs!r} there, {ours!r} here'
    for name, (ours, theirs) in strict.differences(
      strict.dump(experiment), strict.dump(other)
    ).items()
    if any(f'{name}.'.startswith(f'{same}.') for same in _SAME)
  ]
  if different:
    raise ValueError(
      f'{field}: the other run does not fit: {"; ".join(different)}.'
    )


def start(experiment: experiment_lib.Experiment, mesh: Any) -> Start:
  """Returns the other run's state and its position in the data.

  Raises:
    FileNotFoundError, checkpoint.RestoreError: the checkpoint is gone, or
      cannot be read.
  """
  from kaiju_jax.training import checkpoint
  from kaiju_jax.training import state as state_lib
  from kaiju_jax.training import token_count

  found = origin(experiment)
  state, place = checkpoint.load_step(
    found.workdir, state_lib.abstract(experiment, mesh), found.step
  )
  rows = token_count.to_int(state.tokens) // experiment.data.length
  if workdir_lib.load_experiment(found.workdir).seed != experiment.seed:
    place = None
  return Start(state, place, (int(state.step), rows))
