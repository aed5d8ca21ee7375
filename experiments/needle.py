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
import pathlib
from typing import TYPE_CHECKING

from absl import flags

from kaiju_jax.reporting import figures
from kaiju_jax.runs import command

if TYPE_CHECKING:
  from kaiju_jax.runs import grid as grid_lib
  from kaiju_jax.tasks.needle import questions as needle
  from kaiju_jax.tasks.needle import report as needle_report
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
_SEEDS = command.define_seeds('0')
_OUT = flags.DEFINE_string(
  'out', None, 'Where everything is written; runs/<task> by default.'
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
_AT_ONCE = flags.DEFINE_integer(
  'jobs',
  None,
  'Runs at once, the cores split among them. By default one per core, and one'
  ' in all on an accelerator.',
  lower_bound=1,
)
_REPORT = flags.DEFINE_bool(
  'report', True, 'Whether needle.json, needle.png and the table are made.'
)


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  if _REPORT.value:
    figures.require_figures()
  jobs = _jobs()
  from kaiju_jax.experiments.studies import arms
  from kaiju_jax.runs import grid
  from kaiju_jax.tasks import registry as tasks
  from kaiju_jax.tasks.needle import questions as needle

  grid.check(jobs)
  for job in jobs:
    tasks.rows(job.experiment)
  questions = arms.NeedleQuestions(_QUESTIONS.value, _EVALUATION_SEED.value)
  again = arms.command(
    'needle',
    _workdir(),
    task=_TASK.value,
    data=_DATA.value,
    questions=questions.questions,
    evaluation_seed=questions.seed,
  )
  grid.run(jobs, _AT_ONCE.value, arms.asks(questions), again)
  if _REPORT.value:
    _publish(arms.read_records(jobs, questions, needle.Record), jobs)


def _jobs() -> 'list[grid_lib.Job]':
  """Returns the runs that the flags name.

  Raises:
    ValueError: names the flag, its value and what would be right.
  """
  config = importlib.import_module(f'.configs.{_TASK.value}', __package__)
  arms = list(config.ARMS)
  if _ARMS.value is not None:
    arms = command.choose(_ARMS, config.ARMS + config.VARIANTS)
  seeds = command.seeds(_SEEDS)
  if _DATA.value is not None and _TASK.value != 'needle_text':
    raise ValueError(
      f'--data={_DATA.value!r}: only --task=needle_text reads text.'
    )
  if _OUT.value is not None:
    command.folder(_OUT)
  from kaiju_jax.runs import grid

  jobs = grid.cross(config.get_config, arms, seeds, _workdir())
  for job in jobs if _DATA.value is not None else ():
    job.experiment.data.path = _DATA.value
  return jobs


def _workdir() -> pathlib.Path:
  named = _OUT.value
  return pathlib.Path(f'runs/{_TASK.value}' if named is None else named)


def _publish(
  records: 'list[needle.Record]', jobs: 'list[grid_lib.Job]'
) -> None:
  """Writes needle.json and needle.png, and prints table and verdicts."""
  from kaiju_jax.experiments.studies import needle_figure
  from kaiju_jax.reporting import report
  from kaiju_jax.storage import files
  from kaiju_jax.tasks.needle import report as needle_report

  experiments = {job.arm: job.experiment for job in jobs}
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
  page = report.Report().add(needle_report.table(records, setting))
  for arm in reach:
    page.say(needle_report.verdict(records, arm, setting, reach[arm]))
  page.show([folder / 'needle.json', folder / 'needle.png'])


def _setting(
  experiments: 'dict[str, experiment_lib.Experiment]',
) -> 'needle_report.Setting':
  from kaiju_jax.tasks import registry as tasks
  from kaiju_jax.tasks.needle import report as needle_report

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
  command.run(main)
