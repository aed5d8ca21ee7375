"""Trains an experiment in a workdir; all commands that train call this module.

train.train(experiment, 'runs/tiny')              trains, or resumes
train.train(experiment, 'runs/tiny', until=100)   stops after step 100
"""

from collections.abc import MutableMapping
import contextlib
import dataclasses
import json
import os
import pathlib
from typing import Any

from kaiju_jax import tpu_gpu_configs
from kaiju_jax.costs import step_time
from kaiju_jax.data import config as data_config
from kaiju_jax.model import config as model_config
from kaiju_jax.objectives import config as objective_config
from kaiju_jax.runs import own_parts
from kaiju_jax.runs import start as start_lib
from kaiju_jax.sharding import config as sharding_config
from kaiju_jax.storage import strict
from kaiju_jax.tasks import registry as tasks
from kaiju_jax.training import batch_schedule
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import fit
from kaiju_jax.training import workdir as workdir_lib

_SEEDS = 2**32


def train(
  experiment: experiment_lib.Experiment,
  workdir: str | os.PathLike[str],
  mesh: sharding_config.MeshConfig | None = None,
  cluster: Any = None,
  until: int | None = None,
  programs: MutableMapping[str, Any] | None = None,
):
  """Trains `experiment` in `workdir`, or resumes it.

  Args:
    experiment: the experiment.
    workdir: the folder of the run; created if it does not exist.
    mesh: the mesh over all devices; by default the first device trains alone. A
      resumed run may use another mesh; its results then agree up to rounding.
    cluster: a `processes.Cluster` if this is one of several processes.
    until: step after which to save and stop, as after Ctrl-C; the same call
      without it continues to the run's end.
    programs: compiled functions that calls in one process share. Pass the same
      dictionary, empty at first, to each: runs that differ only in rate, seed
      and workdir then trace and compile once.

  Returns:
    The last `state.TrainState`; adapters come without their base. Its `step` is
    less than the last step of the run's `batch_schedule` after `until`, Ctrl-C
    or SIGTERM.

  Raises:
    ValueError, OSError: settings, data or the workdir are unusable, which is
      checked before anything compiles; or a record or checkpoint could not be
      written or read (`loop.train`).
    KeyboardInterrupt: at a second Ctrl-C.
  """
  if until is not None and until < 1:
    raise ValueError(f'until={until}: must be a step, counted from 1.')
  if cluster is not None:
    return _train_together(experiment, workdir, mesh, cluster, until)
  experiment = start_lib.resolve(experiment)
  check(experiment)
  if mesh is not None:
    fit.check(experiment, mesh)
  with workdir_lib.reserve(workdir, experiment, tasks.common_rows):
    return _train(experiment, workdir, mesh, until, programs)


def _train_together(experiment, workdir, mesh, cluster, until):
  """Does what `train` does for one of several processes, if all agree."""
  import jax

  from kaiju_jax.sharding import mesh as mesh_lib
  from kaiju_jax.sharding import processes
  from kaiju_jax.training import agreement

  with processes.join_cluster(cluster), contextlib.ExitStack() as stack:
    experiment = start_lib.resolve(experiment)
    agreement.check(
      {
        **strict.dump(experiment),
        'mesh': mesh and dataclasses.asdict(mesh),
        'workdir': os.path.abspath(workdir),
        'until': until,
        'jax': jax.__version__,
      }
    )
    check(experiment)
    if mesh is None:
      raise ValueError(
        f'--fsdp and --tensor are missing: {jax.process_count()} processes'
        f' have {jax.device_count()} devices, and all of them must train.'
      )
    fit.check(experiment, mesh)
    mesh_lib.make(mesh)
    if processes.is_main():
      stack.enter_context(
        workdir_lib.reserve(workdir, experiment, tasks.common_rows)
      )
    processes.barrier('workdir reserved')
    agreement.check_shared(pathlib.Path(workdir))
    return _train(experiment, workdir, mesh, until)


def _train(
  experiment: experiment_lib.Experiment,
  workdir: str | os.PathLike[str],
  mesh: sharding_config.MeshConfig | None,
  until: int | None,
  programs: MutableMapping[str, Any] | None = None,
):
  # These import jax, which costs seconds that a refusal should not.
  import jax

  from kaiju_jax.data import loader
  from kaiju_jax.data import placement
  from kaiju_jax.sharding import mesh as mesh_lib
  from kaiju_jax.training import loop
  from kaiju_jax.training import step

  devices = mesh_lib.single() if mesh is None else mesh_lib.make(mesh)
  found = tasks.task_of(experiment).load(experiment)
  own_parts.check(experiment, found)
  if experiment.data.reference and not workdir_lib.checkpoints(workdir):
    from kaiju_jax.runs import reference

    reference.check_start(experiment)
  programs = {} if programs is None else programs
  # The step knows shapes alone, readings the held-out text as well.
  known = programs.setdefault(_program(experiment, mesh), {})
  read = programs.setdefault(_program(experiment, mesh, True), {})
  if 'evaluate' not in read:
    read['evaluate'] = None
    if found.evaluator is not None:
      model = step.model_of(experiment)
      read['evaluate'] = found.evaluator(model, devices)
  data = experiment.data
  sharding = jax.sharding.NamedSharding(devices, step.BATCH)
  own = placement.find_own_rows(
    sharding, (data.microbatches, data.batch, data.length)
  )
  schedule = batch_schedule.schedule_of(experiment)
  amounts = _show_amounts(experiment, found, schedule.rows, devices)
  batches = loader.batches(
    found.rows,
    data.batch,
    data.microbatches,
    own=own,
    after=schedule.row_after,
    text=found.text,
  )
  with contextlib.closing(batches):
    start = start_lib.read(experiment, workdir, devices)
    if start.begins is not None:
      schedule = schedule.branch(start.begins)
      if start.place is None:
        batches.seek(start.begins[1])
      else:
        batches.set_state(start.place)
    if 'step' not in known:
      known['step'] = step.make(experiment, devices, start=start.state)
    one_step = known['step'].with_rate(experiment.optimizer.learning_rate)
    state, evaluate = start.state, read['evaluate']
    if start.split is not None:
      state, one_step, evaluate = start_lib.hide_frozen(
        start, one_step, evaluate
      )
    return loop.train(
      experiment,
      workdir,
      state=state,
      step=one_step,
      batches=placement.ShardedBatches(batches, sharding, data.batch),
      evaluate=evaluate,
      until=until,
      schedule=schedule,
      amounts=amounts,
    )


def _show_amounts(
  experiment: experiment_lib.Experiment,
  found: tasks.TaskData,
  rows: int,
  mesh: Any,
) -> dict[str, Any]:
  """Shows how much text the run has, how often it reads it, and idle devices.

  Args:
    experiment: the experiment.
    found: its data.
    rows: rows of the whole run.
    mesh: the devices that train.

  Returns:
    What amounts.json holds.
  """
  import jax

  from kaiju_jax.sharding import processes
  from kaiju_jax.tasks import amounts
  from kaiju_jax.training import progress

  shown = progress.Progress('step', quiet=not processes.is_main())
  if mesh.size < jax.device_count():
    shown.say(
      f'{mesh.size} of {jax.device_count()} devices trains; --fsdp and --tensor'
      ' are for the others.'
    )
  counted = {}
  if found.text is not None:
    length = experiment.data.length
    counted = amounts.count(found.text, found.rows, rows, length)
    for line in amounts.describe(counted):
      shown.say(line)
  kind = mesh.devices.flat[0].device_kind
  device = {'kind': kind, 'count': mesh.size}
  return {
    'sources': counted,
    'devices': device,
    'peak': _peak(experiment, kind),
  }


def _peak(
  experiment: experiment_lib.Experiment, kind: str
) -> dict[str, Any] | None:
  """Returns `step_time.peak`; None for unknown chips, or weights at rest."""
  trains_all = experiment.objective.name in ('language', 'distillation')
  chip = tpu_gpu_configs.find_chip(kind)
  if chip is None or not trains_all or experiment.lora.rank:
    return None
  length = experiment.data.length
  return step_time.peak(experiment.model, length, chip)._asdict()


def _program(
  experiment: experiment_lib.Experiment, mesh: Any, reads: bool = False
) -> str:
  """Returns the settings that determine the compiled functions, as a string.

  Args:
    experiment: the run's experiment.
    mesh: its mesh.
    reads: whether the functions have read the run's text.
  """
  data = strict.dump(experiment)
  del data['seed'], data['optimizer']['learning_rate']
  for name in training_config.WATCHING:
    del data['loop'][name]
  if reads:
    data['reads'] = True
  else:
    del data['begin_with'], data['data']['path'], data['data']['reference']
  # The step depends on a branch only through this.
  is_full = data['loop']['branch'] = batch_schedule.is_full(experiment)
  optimizer = experiment.optimizer
  if is_full and optimizer.schedule == 'constant' and not optimizer.warmup:
    del data['loop']['steps']  # No rate depends on the length of the run.
  data['mesh'] = mesh and dataclasses.asdict(mesh)
  return json.dumps(data, sort_keys=True)


def check(experiment: experiment_lib.Experiment) -> None:
  """Refuses an experiment that cannot run, before anything compiles.

  Raises:
    OSError, ValueError: names the field, its value and what would be right.
  """
  model_config.check(experiment.model)
  data_config.check(experiment.data)
  objective_config.check(experiment.objective)
  training_config.check_optimizer(experiment.optimizer)
  training_config.check_loop(experiment.loop)
  training_config.check_lora(experiment.lora)
  batch_schedule.schedule_of(experiment)
  if experiment.data.length > experiment.model.max_length:
    raise ValueError(
      f'data.length={experiment.data.length}: rows are longer than the'
      f' positions of model.max_length={experiment.model.max_length}.'
    )
  if not 0 <= experiment.seed < _SEEDS:
    raise ValueError(
      f'seed={experiment.seed}: must lie in 0…{_SEEDS - 1}. (numpy takes no'
      ' seed below, and jax counts from 0 again above.)'
    )
  if experiment.model.quantization.wire_weights == 'ternary':
    from kaiju_jax.training import replicas  # Imports jax: not for all.

    replicas.least_scale(experiment)
  tasks.check(experiment)
  start_lib.check(experiment)
