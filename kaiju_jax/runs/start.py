"""Starts a run in one of five ways, by what its config names.

    init                  fresh parameters
    begin_with            those of a workdir, an export or a Hugging Face folder
                          (`begin.py`)
    lora.rank             new adapters beside the frozen model of `begin_with`,
                          or those of a run with such adapters
    attention_alignment   a student, `begin_with`, and the teacher whose
                          attention it learns
    loop.branch           'runs/base@400': checkpoint 400 of another run, with
                          its moments, count of tokens and place in the data

A branch with the settings of the other run has the same bits as that run; with
another batch, rate, seed of the data or end it shows the effect of that change
from there on. Its step numbers continue, and fractions of its tokens
(`optimizer.warmup`, `optimizer.batch`) count from the other run's beginning.

Adapters' base and attention's teacher are frozen: the step's state holds them,
and the loop, and with it a checkpoint, does not (`hide_frozen`). Their digests
are in the workdir (`training/frozen_model.py`).

Importing this module does not import jax.
"""

from collections.abc import Callable
import dataclasses
import os
import pathlib
from typing import TYPE_CHECKING
from typing import Any
from typing import NamedTuple

from kaiju_jax.data import mix_file
from kaiju_jax.model import config as model_config
from kaiju_jax.runs import own_parts
from kaiju_jax.storage import strict
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import workdir as workdir_lib

if TYPE_CHECKING:
  import jax

# Of a branch and the other run: the state or the data's place would not fit.
_SAME = (
  'model',
  'objective',
  'data.task',
  'data.path',
  'data.tokenizer',
  'data.length',
  'data.held_out',
  'optimizer.skip_nonfinite',
  'parts.digest',
  'parts.settings',
)
_ALIGNMENT = 'attention_alignment'


class Origin(NamedTuple):
  """The checkpoint from which a run branches off."""

  workdir: pathlib.Path  # The workdir of the other run.
  step: int  # The step of its checkpoint.


class Start(NamedTuple):
  """The state and the position with which a run starts."""

  state: Any  # A `state.TrainState`, stored on the mesh.
  # Parameters → those that checkpoints hold, and the frozen ones; None where
  # checkpoints hold all.
  split: Callable[[Any], tuple[Any, Any]] | None = None
  # Of a branch, (step, rows) before its first step, as in
  # `batch_schedule.BatchSchedule`; None otherwise.
  begins: tuple[int, int] | None = None
  # Of a branch, the loader's state; None if the seed differs, and with it the
  # earlier rows.
  place: dict[str, Any] | None = None


def read(
  experiment: experiment_lib.Experiment,
  workdir: str | os.PathLike[str],
  mesh: 'jax.sharding.Mesh',
) -> Start:
  """Returns the state before the run's first step, stored on `mesh`.

  Args:
    experiment: a resolved and checked one.
    workdir: of the run; it keeps the digests of frozen models.
    mesh: the mesh of the run.

  Raises:
    OSError, ValueError, checkpoint.RestoreError: what the config names cannot
      be read, does not fit the run, or is not what the run began with.
  """
  from kaiju_jax.training import state

  if experiment.loop.branch:
    return _read_branch(experiment, mesh)
  if experiment.init == 'standard' and not experiment.begin_with:
    return Start(state.initialize(experiment, mesh))
  from kaiju_jax.runs import begin

  if experiment.lora.rank:
    params = begin.attach_adapters(experiment, workdir, mesh)
    split = state.objective_of(experiment).split
  elif experiment.objective.name == _ALIGNMENT:
    params = begin.params(experiment, experiment.begin_with, mesh)
    params |= begin.read_teacher(experiment, workdir, mesh)
    split = begin.split_teacher
  elif experiment.begin_with:
    params = begin.params(experiment, experiment.begin_with, mesh)
    split = None
  else:
    params, split = begin.initial(experiment, mesh), None
  return Start(state.initialize(experiment, mesh, params=params), split)


def _read_branch(
  experiment: experiment_lib.Experiment, mesh: 'jax.sharding.Mesh'
) -> Start:
  """Returns the other run's state and its position in the data."""
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
  return Start(state, begins=(int(state.step), rows), place=place)


def hide_frozen(
  start: Start,
  step: Callable[..., Any],
  evaluate: Callable[[Any], Any] | None,
) -> tuple[Any, Callable[..., Any], Callable[[Any], Any] | None]:
  """Returns state, step and evaluation as the loop sees them.

  Args:
    start: with a `split`; its arrays belong to the result.
    step: (state, batch) → (state, metrics) on whole states, whose arrays it
      takes.
    evaluate: takes whole states; None for no evaluation.
  """
  from kaiju_jax.objectives import objective as objective_lib

  seen, frozen = start.split(start.state.params)

  def whole(state):
    return state.replace(params=objective_lib.join(state.params, frozen))

  def step_seen(state, batch):
    nonlocal frozen
    state, metrics = step(whole(state), batch)
    seen, frozen = start.split(state.params)
    return state.replace(params=seen), metrics

  reading = None if evaluate is None else lambda state: evaluate(whole(state))
  return start.state.replace(params=seen), step_seen, reading


def resolve(
  experiment: experiment_lib.Experiment,
) -> experiment_lib.Experiment:
  """Returns the experiment with what other files say.

  These are the sources that its mix.json names, digest and settings of its own
  parts (`own_parts.resolve`), and with adapters the model of their base, of
  which the experiment says how it is computed: `dtype`,
  `attention` and `remat`. The workdir holds this experiment, so that a run does
  not depend on a file that may change.

  Raises:
    OSError, ValueError: see `mix_file.resolve`, `own_parts.resolve` and
      `load.base_config`; or there are adapters and no base.
  """
  experiment = own_parts.resolve(experiment)
  resolved = {'data': mix_file.resolve(experiment.data)}
  if experiment.lora.rank:
    from kaiju_jax.runs import load

    if not experiment.begin_with:
      raise ValueError(
        "begin_with='': must name the base of the adapters with lora.rank="
        f'{experiment.lora.rank}: a workdir, an export or a Hugging Face'
        ' folder.'
      )
    given = experiment.model
    base = workdir_lib.find_base(experiment.begin_with)
    computed = {name: getattr(given, name) for name in model_config.COMPUTED}
    resolved['model'] = dataclasses.replace(
      load.base_config(base, given.dtype), **computed
    )
  return dataclasses.replace(experiment, **resolved)


def check(experiment: experiment_lib.Experiment) -> None:
  """Refuses a run that cannot start, before anything compiles.

  Raises:
    OSError, ValueError: names the field, its value and what would be right.
  """
  if experiment.init not in experiment_lib.INITS:
    raise ValueError(
      f'init={experiment.init!r}: must be one of'
      f' {", ".join(map(repr, experiment_lib.INITS))}.'
    )
  if experiment.begin_with and experiment.init != 'standard':
    raise ValueError(
      f'init={experiment.init!r}: parameters come from'
      f' begin_with={experiment.begin_with!r}; only one of the two can be set.'
    )
  branch = experiment.loop.branch
  if experiment.lora.rank:
    if branch:
      raise ValueError(
        f"loop.branch={branch!r}: must be '' with lora.rank="
        f'{experiment.lora.rank}: adapters begin anew beside their base.'
      )
    from kaiju_jax.runs import begin  # Imports jax: not for all.

    begin.check_adapters(experiment)
  if experiment.objective.name == _ALIGNMENT:
    if not experiment.begin_with:
      raise ValueError(
        "begin_with='': must name a student of the teacher"
        f' (experiments.uptrain) for objective.name={_ALIGNMENT!r}.'
      )
    if branch:
      raise ValueError(
        f"loop.branch={branch!r}: must be '' for objective.name="
        f'{_ALIGNMENT!r}, whose checkpoints are without the teacher.'
      )
  if branch:
    _check_branch(experiment)


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


def _check_branch(experiment: experiment_lib.Experiment) -> None:
  """Refuses a branch from no checkpoint, or of another model or other data."""
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
