"""From an experiment to a run: what every script that trains calls."""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
import difflib
import os
import pathlib
import sys
from typing import Any
import zlib

from absl import app
from absl import flags
from absl import logging

from kaiju_jax.data import config as data_config
from kaiju_jax.model import config as model_config
from kaiju_jax.sharding import config as sharding_config
from kaiju_jax.storage import strict
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import fit
from kaiju_jax.training import workdir as workdir_lib

_SEEDS = 2**32


def parse(argv: Sequence[str]) -> list[str]:
  """Reads the flags for `app.run`; a bad --config is a line, no traceback."""
  try:
    check_fields(argv)
    return app.parse_flags_with_usage(argv)
  except (OSError, ValueError) as error:
    raise SystemExit(f'error: {error}') from error


def check_fields(argv: Sequence[str]) -> None:
  """Refuses a --config.FIELD that no experiment has.

  Raises:
    ValueError: names it, and the fields that there are.
  """
  for argument in argv:
    name = argument.lstrip('-').partition('=')[0]
    if not argument.startswith('-') or not name.startswith('config.'):
      continue
    holder = experiment_lib.Experiment()
    for part in name.split('.')[1:]:
      known = (
        [field.name for field in dataclasses.fields(holder)]
        if dataclasses.is_dataclass(holder)
        else []
      )
      if part not in known:
        raise ValueError(f'{argument}: {_unknown(part, holder, known)}')
      holder = getattr(holder, part)


def _unknown(part: str, holder: object, known: Sequence[str]) -> str:
  line = f'{type(holder).__name__} has no field {part!r}.'
  if close := difflib.get_close_matches(part, known, 1):
    line += f' Did you mean {close[0]!r}?'
  if known:
    line += f' It has {", ".join(known)}.'
  return line


def train(
  experiment: experiment_lib.Experiment,
  workdir: str,
  mesh: sharding_config.MeshConfig | None = None,
  cluster: Any = None,
):
  """Trains `experiment` in `workdir`, or resumes it.

  Args:
    experiment: what is trained.
    workdir: where; made where it does not exist.
    mesh: how it spreads over all devices; by default the first one trains
      alone. A resumed run may change it.
    cluster: `processes.Cluster`, where this is one of several processes.

  Returns:
    The last `state.TrainState`. Its `step` is less than
    `experiment.loop.steps` where Ctrl-C or SIGTERM came first.

  Raises:
    ValueError, OSError: settings, data or a workdir that cannot serve, looked
      at before anything compiles; a record or checkpoint that could not be
      written or read (`loop.train`).
    KeyboardInterrupt: at a second Ctrl-C.
  """
  if cluster is not None:
    return _train_together(experiment, workdir, mesh, cluster)
  check(experiment)
  if mesh is not None:
    fit.check(experiment, mesh)
  with workdir_lib.reserved(workdir, experiment):
    return _train(experiment, workdir, mesh)


def _train_together(experiment, workdir, mesh, cluster):
  """The same for one of several processes, once they agree on what to do."""
  import jax

  from kaiju_jax.sharding import mesh as mesh_lib
  from kaiju_jax.sharding import processes
  from kaiju_jax.training import agreement

  with processes.joined(cluster), contextlib.ExitStack() as stack:
    agreement.check(
      {
        **strict.dump(experiment),
        'mesh': mesh and dataclasses.asdict(mesh),
        'workdir': os.path.abspath(workdir),
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
      stack.enter_context(workdir_lib.reserved(workdir, experiment))
    processes.barrier('workdir reserved')
    agreement.check_shared(pathlib.Path(workdir))
    return _train(experiment, workdir, mesh)


def _train(
  experiment: experiment_lib.Experiment,
  workdir: str,
  mesh: sharding_config.MeshConfig | None,
):
  # These import jax, which costs seconds that --help should not.
  import jax

  from kaiju_jax.data import loader
  from kaiju_jax.data import placement
  from kaiju_jax.sharding import mesh as mesh_lib
  from kaiju_jax.training import loop
  from kaiju_jax.training import optimizer
  from kaiju_jax.training import replicas
  from kaiju_jax.training import state
  from kaiju_jax.training import step

  model = step.model_of(experiment)
  if mesh is None:
    _note_idle(jax.device_count())
  devices = mesh_lib.single() if mesh is None else mesh_lib.make(mesh)
  rows, evaluate = _data(experiment, model, devices)
  params = state.init_params(model, experiment.seed, devices)
  if experiment.init == 'induction':
    from kaiju_jax.evaluation import induction

    params = induction.suggest(params, experiment.model, experiment.seed)
  data = experiment.data
  sharding = jax.sharding.NamedSharding(devices, step.BATCH)
  own = placement.own(sharding, (data.microbatches, data.batch, data.length))
  batches = loader.batches(rows, data.batch, data.microbatches, own=own)
  plan = replicas.plan_of(experiment, params)
  with contextlib.closing(batches):
    return loop.train(
      experiment,
      workdir,
      state=state.create(
        params, optimizer.make(experiment.optimizer), devices, plan
      ),
      step=step.make(experiment, devices),
      batches=placement.Placed(batches, sharding, data.batch),
      evaluate=evaluate,
    )


def _note_idle(count: int) -> None:
  if count > 1:
    print(
      f'1 of {count} devices trains; --fsdp and --tensor are for the others.',
      file=sys.stderr,
    )


def check(experiment: experiment_lib.Experiment) -> None:
  """Refuses an experiment that cannot run, before anything compiles.

  Raises:
    OSError, ValueError: names the field, its value and what would be right.
  """
  model_config.check(experiment.model)
  data_config.check(experiment.data)
  training_config.check_optimizer(experiment.optimizer)
  training_config.check_loop(experiment.loop)
  if experiment.data.length > experiment.model.max_length:
    raise ValueError(
      f'data.length={experiment.data.length}: rows are longer than the'
      f' positions of model.max_length={experiment.model.max_length}.'
    )
  if experiment.init not in ('standard', 'induction'):
    raise ValueError(
      f"init={experiment.init!r}: must be one of 'standard', 'induction'."
    )
  if not 0 <= experiment.seed < _SEEDS:
    raise ValueError(
      f'seed={experiment.seed}: must lie in 0…{_SEEDS - 1}. (numpy takes none'
      ' below, and jax counts from 0 again above.)'
    )
  # These import numpy, grain and jax, which --help should not wait for.
  if experiment.model.quantization.wire_weights == 'ternary':
    from kaiju_jax.training import replicas

    replicas.least_scale(experiment)
  if experiment.data.task == 'text':
    from kaiju_jax.data import text

    text.check(experiment.data, experiment.model.vocab_size)
  else:
    from kaiju_jax.runs import tasks as needle_tasks

    needle_tasks.check(experiment)


def _data(experiment: experiment_lib.Experiment, model, mesh):
  """Returns the row source, and what to evaluate a state with, if any."""
  if experiment.data.task != 'text':
    from kaiju_jax.runs import tasks as needle_tasks

    return needle_tasks.rows(experiment), None

  from kaiju_jax.data import text
  from kaiju_jax.data import tokenizer
  from kaiju_jax.evaluation import held_out

  data = experiment.data
  tokens = tokenizer.load(data.tokenizer, experiment.model.vocab_size)
  training, unseen = text.load(data, tokens)
  _agree_on_text(training, unseen)
  evaluate = None
  if unseen is not None:
    scores = held_out.evaluator(
      model, unseen, data.length, data.batch, data.evaluated_rows, mesh
    )

    def evaluate(state):
      return scores(state.params, state.replica)

  return text.Rows(training, data.length, experiment.seed), evaluate


def _agree_on_text(*corpora) -> None:
  """Other text on another host would be in no row where it is expected."""
  from kaiju_jax.training import agreement

  sums = [
    [len(corpus.names), zlib.crc32(corpus.begins), zlib.crc32(corpus.tokens)]
    for corpus in corpora
    if corpus is not None
  ]
  agreement.check({'documents, and sums of the text': sums})


@contextlib.contextmanager
def abortable() -> Iterator[None]:
  """Leaves at once, with status 130, at a Ctrl-C that nothing else answers.

  An ordinary exit waits for threads, and these for a step or a save.
  """
  try:
    yield
  except KeyboardInterrupt:
    print('Aborted.', file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(130)


def quiet() -> None:
  """Keeps the libraries' own progress off the screen, unless asked for."""
  if not flags.FLAGS['verbosity'].present:
    logging.set_verbosity(logging.WARNING)
