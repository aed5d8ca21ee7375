"""Needle in a haystack: full attention, Kaiju's layers, and windows alone.

    python -m experiments.needle [--arms=full,kaiju] [--seeds=0,1,2]
    python -m experiments.needle --task=needle_text --data=FOLDER

Trains each arm (one layout) of `experiments/configs/<task>.py` on each seed in
<workdir>/<arm>/seed<S>, asks all arms the same questions, and writes into the
workdir

    needle.json   records (arm, seed, length, depth, distance, distractors,
                  accuracy, count)
    needle.png    heatmaps of depth × length, and the curve along the distance

and to the terminal a table and a verdict on each arm, with 95 % intervals. They
show the arms and seeds that the command names. Where there are several runs and
no accelerator, each is a process of its own on its share of the cores, which
prints into log.txt in its folder (`--jobs`). The same command goes on where it
was stopped; what is finished is not repeated.
"""

from collections.abc import Sequence
import importlib
import os
import pathlib
import sys
import time
from typing import TYPE_CHECKING

from absl import app
from absl import flags

from kaiju_jax.runs import command
from kaiju_jax.runs import train
from kaiju_jax.runs.ablation import jobs
from kaiju_jax.storage import addresses

if TYPE_CHECKING:
  from kaiju_jax.evaluation.needle import questions as needle
  from kaiju_jax.evaluation.needle import report as needle_report
  from kaiju_jax.training import experiment as experiment_lib

_TASK = flags.DEFINE_enum(
  'task',
  'needle',
  ['needle', 'needle_text'],
  'Synthetic pairs, or sentences hidden in natural text.',
)
_ARMS = flags.DEFINE_list(
  'arms', None, "Arms to compare; the config's ARMS by default."
)
_SEEDS = flags.DEFINE_list('seeds', ['0'], 'Seeds to train with.')
_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Where everything is written; runs/<task> by default.'
)
_DATA = flags.DEFINE_string(
  'data',
  None,
  'File, folder or glob of text for needle_text; by default the text in this'
  ' Python installation.',
)
_QUESTIONS = flags.DEFINE_integer(
  'questions',
  64,
  'Questions in each cell that the verdicts quote; fewer in the others.',
  lower_bound=1,
)
_EVALUATION_SEED = flags.DEFINE_integer(
  'evaluation_seed', 0, 'Seed of the questions.', lower_bound=0
)
_JOBS = flags.DEFINE_integer(
  'jobs',
  None,
  'Runs at once, the cores split among them. By default one per core, and one'
  ' in all on an accelerator.',
  lower_bound=1,
)
_REPORT = flags.DEFINE_bool(
  'report', True, 'Whether needle.json, needle.png and the table are made.'
)

_WATCHED = 20.0  # Seconds between two lines on what runs.


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'unexpected arguments: {" ".join(argv[1:])}')
  command.begin()
  try:
    runs = _runs()
    _check(runs)
    with command.abortable():
      records = _records(runs)
    if _REPORT.value:
      _publish(records, runs)
  except (OSError, ValueError) as error:
    raise SystemExit(f'error: {error}') from error


def _runs() -> 'dict[pathlib.Path, tuple[str, experiment_lib.Experiment]]':
  """Returns the runs that the flags name: {folder: (arm, experiment)}.

  Raises:
    ValueError: names the flag, its value and what would be right.
  """
  config = importlib.import_module(f'experiments.configs.{_TASK.value}')
  arms = list(config.ARMS) if _ARMS.value is None else _ARMS.value
  known = config.ARMS + config.VARIANTS
  for arm in arms:
    if arm not in known:
      raise ValueError(f'--arms: {arm!r} is not one of {", ".join(known)}.')
  for seed in _SEEDS.value:
    if not (seed.isascii() and seed.isdigit()):
      raise ValueError(
        f'--seeds: {seed!r} is not a non-negative integer; write 0,1,2.'
      )
  if not arms or not _SEEDS.value:
    raise ValueError('--arms and --seeds each need at least one.')
  if _DATA.value is not None and _TASK.value != 'needle_text':
    raise ValueError(
      f'--data={_DATA.value!r}: only --task=needle_text reads text.'
    )
  if _WORKDIR.value == '':
    raise ValueError('--workdir=: must name a folder.')
  addresses.refuse(_WORKDIR.value or '', f'--workdir={_WORKDIR.value}')
  runs = {}
  for arm in arms:
    for seed in map(int, _SEEDS.value):
      experiment = config.get_config(arm)
      experiment.seed = seed
      if _DATA.value is not None:
        experiment.data.path = _DATA.value
      runs[_workdir() / arm / f'seed{seed}'] = arm, experiment
  return runs


def _check(runs) -> None:
  """Refuses runs that cannot work, before anything compiles or is written."""
  from kaiju_jax.runs import tasks
  from kaiju_jax.training import workdir

  for folder, (_, experiment) in runs.items():
    train.check(experiment)
    tasks.rows(experiment)
    workdir.check(folder, experiment)


def _workdir() -> pathlib.Path:
  named = _WORKDIR.value
  return pathlib.Path(f'runs/{_TASK.value}' if named is None else named)


def _records(runs) -> 'list[needle.Record]':
  """Returns the records of all runs; those that are missing run first."""
  from kaiju_jax.evaluation.needle import questions as needle
  from kaiju_jax.storage import files

  missing = {}
  for folder, (arm, experiment) in runs.items():
    if (folder / _answers_file()).exists():
      print(f'{folder}: finished before.')
    else:
      missing[folder] = arm, experiment
  at_once = min(len(missing), _JOBS.value or _default_jobs(len(missing)))
  if at_once > 1:
    _run_side_by_side(missing, at_once)
  else:
    _run_in_turn(missing)
  return [
    needle.Record(**row)
    for folder in runs
    for row in files.read_json(folder / _answers_file())
  ]


def _answers_file() -> str:
  return f'needle.questions{_QUESTIONS.value}.seed{_EVALUATION_SEED.value}.json'


def _default_jobs(runs: int) -> int:
  """One per core; an accelerator holds one process at a time."""
  if runs < 2:
    return 1
  import jax

  if jax.default_backend() != 'cpu':
    return 1
  return len(jobs.own_cores()) or os.cpu_count() or 1


def _run_in_turn(runs) -> None:
  """Trains and asks in this process; the seeds of an arm share its calls."""
  from kaiju_jax.evaluation import answers
  from kaiju_jax.storage import files
  from kaiju_jax.training import step

  predictors = {}
  for folder, (arm, experiment) in runs.items():
    print(f'{folder}: {arm}, seed {experiment.seed}.', flush=True)
    params = _trained(experiment, folder)
    if arm not in predictors:
      predictors[arm] = answers.predictor(step.model_of(experiment))
    records = _asked(arm, experiment, predictors[arm], params)
    files.write_json(
      folder / _answers_file(), [record._asdict() for record in records]
    )


def _run_side_by_side(runs, at_once: int) -> None:
  """Runs each in a process of its own, `at_once` at a time.

  Raises:
    ValueError: a run failed; names its log.
  """
  print(f'{len(runs)} runs, {at_once} at a time.', flush=True)
  folders = {
    jobs.Job(
      f'{arm} seed {one.seed}', _command(arm, one), folder / 'log.txt'
    ): (
      folder,
      one,
    )
    for folder, (arm, one) in runs.items()
  }
  watch = _Watch(folders)
  completed = jobs.run(
    list(folders),
    at_once,
    started=watch.started,
    ended=watch.ended,
    tick=watch.tick,
  )
  if not completed:
    print('Interrupted. The same command goes on.', file=sys.stderr)
    raise SystemExit(130)
  if watch.failed:
    raise ValueError(f'failed: {"; ".join(watch.failed)}.')


def _command(
  arm: str, experiment: 'experiment_lib.Experiment'
) -> tuple[str, ...]:
  """Returns the command of one run, which leaves the report to this one."""
  named = {
    'task': _TASK.value,
    'arms': arm,
    'seeds': experiment.seed,
    'workdir': _workdir(),
    'questions': _QUESTIONS.value,
    'evaluation_seed': _EVALUATION_SEED.value,
    'jobs': 1,
    'report': 'false',
    'compilation_cache': str(flags.FLAGS.compilation_cache).lower(),
  }
  if _DATA.value is not None:
    named['data'] = _DATA.value
  settings = [f'--{name}={value}' for name, value in named.items()]
  return sys.executable, '-m', 'experiments.needle', *settings


class _Watch:
  """Prints a line as a run starts or ends, and now and then how far all are."""

  def __init__(self, folders: 'dict[jobs.Job, tuple]'):
    self._folders = folders
    self._running: list[jobs.Job] = []
    self._looked = time.monotonic()
    self.failed: list[str] = []

  def started(self, job: jobs.Job) -> None:
    self._running.append(job)
    print(f'{job.name}: started; {job.log}', flush=True)

  def ended(self, job: jobs.Job, status: int, seconds: float) -> None:
    self._running.remove(job)
    print(f'{job.name}: ended after {seconds:.0f} s.', flush=True)
    folder, _ = self._folders[job]
    if status or not (folder / _answers_file()).exists():
      self.failed.append(f'{job.name} (status {status}), see {job.log}')

  def tick(self) -> None:
    if time.monotonic() < self._looked + _WATCHED:
      return
    self._looked = time.monotonic()
    print(', '.join(map(self._progress, self._running)), flush=True)

  def _progress(self, job: jobs.Job) -> str:
    from kaiju_jax.training import metrics

    folder, experiment = self._folders[job]
    try:
      step = max((r['step'] for r in metrics.read(folder)), default=0)
    except FileNotFoundError:
      step = 0
    steps = experiment.loop.steps
    return f'{job.name}: ' + (
      f'step {step}/{steps}' if step < steps else 'asking'
    )


def _trained(experiment: 'experiment_lib.Experiment', folder: pathlib.Path):
  """Trains, or goes on from the last checkpoint; returns the parameters."""
  state = train.train(experiment, folder)
  if int(state.step) < experiment.loop.steps:
    raise SystemExit(130)  # Interrupted; the loop has said how to go on.
  return state.params


def _asked(
  arm: str, experiment: 'experiment_lib.Experiment', predict, params
) -> 'list[needle.Record]':
  from kaiju_jax.evaluation import answers
  from kaiju_jax.evaluation.needle import questions as needle
  from kaiju_jax.runs import tasks

  task = tasks.questions(experiment.data)
  cells = needle.cells(task, experiment.data.length, _QUESTIONS.value)
  read = answers.reader(predict, params, {cell.length for cell in cells})
  # Arms of one seed are asked the same; other seeds, other questions, which
  # may be added up as independent ones.
  seeds = _EVALUATION_SEED.value, experiment.seed
  started = time.monotonic()
  records = [
    needle.Record(arm, experiment.seed, *cell[:-1], accuracy, cell.count)
    for cell, accuracy in needle.ask(read, task, cells, seeds)
  ]
  asked = sum(cell.count for cell in cells)
  seconds = time.monotonic() - started
  print(f'{arm}: {asked:,} questions in {seconds:.0f} s.', flush=True)
  return records


def _publish(records: 'list[needle.Record]', runs) -> None:
  """Writes needle.json and needle.png, and prints table and verdicts."""
  import rich.console

  from kaiju_jax.evaluation.needle import figure as needle_figure
  from kaiju_jax.evaluation.needle import report as needle_report
  from kaiju_jax.storage import files

  experiments = dict(runs.values())
  setting = _setting(experiments)
  reach = {arm: _reach(one) for arm, one in experiments.items()}
  folder = _workdir()
  files.write_json(
    folder / 'needle.json', [record._asdict() for record in records]
  )
  titles = {
    'needle': 'Needle in a haystack',
    'needle_text': 'Magic numbers in natural text',
  }
  needle_figure.draw(
    records, setting, reach, folder / 'needle.png', titles[_TASK.value]
  )
  console = rich.console.Console()
  console.print(needle_report.table(records, setting))
  for arm in reach:
    line = needle_report.verdict(records, arm, setting, reach[arm])
    console.print(line, highlight=False, soft_wrap=True)
  console.print(f'Written: {folder / "needle.json"}, {folder / "needle.png"}')


def _setting(
  experiments: 'dict[str, experiment_lib.Experiment]',
) -> 'needle_report.Setting':
  from kaiju_jax.evaluation.needle import report as needle_report
  from kaiju_jax.runs import tasks

  first = next(iter(experiments.values()))
  model, length = first.model, first.data.length
  task = tasks.questions(first.data)
  return needle_report.Setting(
    length=length,
    window=model.window,
    windows_reach=len(model.layers()) * (model.window - 1),
    nearest=task.distances(length)[0],
    chance=task.chance,
    note=needle_report.note(
      {arm: one.init for arm, one in experiments.items()}
    ),
  )


def _reach(experiment: 'experiment_lib.Experiment') -> int | None:
  """Returns how many tokens the layers look back; None if one is global."""
  windows = [layer.window for layer in experiment.model.layers()]
  return None if None in windows else sum(window - 1 for window in windows)


if __name__ == '__main__':
  app.run(main)
