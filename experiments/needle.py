"""Needle in a haystack: full attention, Kaiju's layers, and windows alone.

    python -m experiments.needle [--arms=full,kaiju] [--seeds=0,1,2]
    python -m experiments.needle --task=needle_text --data=FOLDER

Trains each arm of `experiments/configs/<task>.py` in <workdir>/<arm>/seed<S>,
asks all the same questions, and writes into the workdir

    needle.json   records (arm, seed, length, depth, distance, distractors,
                  accuracy, count)
    needle.png    heatmaps of depth × length, and the curve along the distance

and a table and a verdict on each arm to the terminal. They show the arms and
seeds that the command names. The same command goes on where it was stopped;
what is finished is not repeated.
"""

from collections.abc import Sequence
import importlib
import pathlib
import time
from typing import TYPE_CHECKING

from absl import app
from absl import flags

from kaiju_jax.runs import command
from kaiju_jax.runs import train
from kaiju_jax.storage import addresses

if TYPE_CHECKING:
  from kaiju_jax.evaluation.needle import questions as needle
  from kaiju_jax.evaluation.needle import report as needle_report
  from kaiju_jax.training import experiment as experiment_lib

_TASK = flags.DEFINE_enum(
  'task',
  'needle',
  ['needle', 'needle_text'],
  'Synthetic, or sentences hidden in natural text.',
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
  'File, folder or glob of text for needle_text; what this Python carries by'
  ' default.',
)
_QUESTIONS = flags.DEFINE_integer(
  'questions', 64, 'Questions in a cell of the grid.', lower_bound=1
)
_EVALUATION_SEED = flags.DEFINE_integer(
  'evaluation_seed', 0, 'Seed of the questions.', lower_bound=0
)


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'unexpected arguments: {" ".join(argv[1:])}')
  command.begin()
  try:
    runs = _runs()
    _check(runs)
    records = []
    with command.abortable():
      for folder, (arm, experiment) in runs.items():
        records += _finished(folder, arm, experiment)
    _publish(records, runs)
  except (OSError, ValueError) as error:
    raise SystemExit(f'error: {error}') from error


def _runs() -> 'dict[pathlib.Path, tuple[str, experiment_lib.Experiment]]':
  """Returns what the flags name: {folder: (arm, experiment)}.

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
  """Refuses what cannot run, before anything compiles or is written."""
  from kaiju_jax.runs import tasks
  from kaiju_jax.training import workdir

  for folder, (_, experiment) in runs.items():
    train.check(experiment)
    tasks.rows(experiment)
    workdir.check(folder, experiment)


def _workdir() -> pathlib.Path:
  named = _WORKDIR.value
  return pathlib.Path(f'runs/{_TASK.value}' if named is None else named)


def _finished(
  folder: pathlib.Path, arm: str, experiment: 'experiment_lib.Experiment'
) -> 'list[needle.Record]':
  """Returns a run's records, from its folder or by training and asking."""
  from kaiju_jax.evaluation.needle import questions as needle
  from kaiju_jax.storage import files

  name = f'needle.seed{_EVALUATION_SEED.value}.x{_QUESTIONS.value}.json'
  if (folder / name).exists():
    print(f'{folder}: finished before.')
    rows = files.read_json(folder / name)
    return [needle.Record(**row) for row in rows]
  print(f'{folder}: {arm}, seed {experiment.seed}.', flush=True)
  records = _asked(arm, experiment, _trained(experiment, folder))
  files.write_json(folder / name, [record._asdict() for record in records])
  return records


def _trained(experiment: 'experiment_lib.Experiment', folder: pathlib.Path):
  """Trains to the end, or goes on from the last checkpoint; the parameters."""
  state = train.train(experiment, folder)
  if int(state.step) < experiment.loop.steps:
    raise SystemExit(130)  # Interrupted; the loop has said how to go on.
  return state.params


def _asked(
  arm: str, experiment: 'experiment_lib.Experiment', params
) -> 'list[needle.Record]':
  from kaiju_jax.evaluation import answers
  from kaiju_jax.evaluation.needle import questions as needle
  from kaiju_jax.runs import tasks
  from kaiju_jax.training import step

  task = tasks.questions(experiment.data)
  cells = needle.cells(task, experiment.data.length, _QUESTIONS.value)
  read = answers.reader(step.model_of(experiment), params)
  started = time.monotonic()
  records = [
    needle.Record(arm, experiment.seed, *cell[:-1], accuracy, cell.count)
    for cell, accuracy in needle.ask(read, task, cells, _EVALUATION_SEED.value)
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
  """Tokens that the layers look back; None where one of them is global."""
  windows = [layer.window for layer in experiment.model.layers()]
  return None if None in windows else sum(window - 1 for window in windows)


if __name__ == '__main__':
  app.run(main)
