"""Trains arms on needles in a haystack, asks them, and reports."""

import importlib
import pathlib

from kaiju_jax.experiments.studies import arms
from kaiju_jax.experiments.studies import needle_figure
from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.reporting import figures
from kaiju_jax.reporting import report
from kaiju_jax.runs import flags
from kaiju_jax.runs import grid
from kaiju_jax.storage import files
from kaiju_jax.tasks import registry as tasks
from kaiju_jax.tasks.needle import questions as needle
from kaiju_jax.tasks.needle import report as needle_report
from kaiju_jax.training import experiment as experiment_lib


def run(settings: settings_lib.Needle) -> None:
  """Trains and asks the arms, and writes and prints what they answer.

  Raises:
    OSError, ValueError: something cannot be read or written, or is wrong.
  """
  if settings.report:
    figures.require_figures()
  jobs = _jobs(settings)

  grid.check(jobs)
  for job in jobs:
    tasks.rows(job.experiment)
  questions = arms.NeedleQuestions(settings.questions, settings.evaluation_seed)
  questions.run(
    jobs,
    settings,
    _workdir(settings),
    task=settings.task,
    data=settings.data,
  )
  if settings.report and not settings.dry_run:
    _publish(settings, questions.read(jobs), jobs)


def _jobs(settings: settings_lib.Needle) -> list[grid.Job]:
  """Returns the runs that the flags name.

  Raises:
    ValueError: names the flag, its value and what would be right.
  """
  config = importlib.import_module(
    f'kaiju_jax.experiments.configs.{settings.task}'
  )
  names = list(config.ARMS)
  if settings.arms is not None:
    names = flags.choose('arms', settings.arms, config.ARMS + config.VARIANTS)
  if settings.out is not None:
    flags.folder('out', settings.out)

  jobs = grid.cross(
    config.get_config, names, settings.seeds, _workdir(settings)
  )
  for job in jobs if settings.data is not None else ():
    job.experiment.data.path = settings.data
  return jobs


def _workdir(settings: settings_lib.Needle) -> pathlib.Path:
  named = settings.out
  return pathlib.Path(f'runs/{settings.task}' if named is None else named)


def _publish(
  settings: settings_lib.Needle,
  records: list[needle.Record],
  jobs: list[grid.Job],
) -> None:
  """Writes needle.json and needle.png, and prints table and verdicts."""
  experiments = {job.arm: job.experiment for job in jobs}
  setting = _setting(experiments)
  reach = {arm: _reach(one) for arm, one in experiments.items()}
  folder = _workdir(settings)
  files.write_json(
    folder / 'needle.json', [record._asdict() for record in records]
  )
  titles = {
    'needle': 'Needle in a haystack',
    'needle_text': 'Magic numbers in natural text',
  }
  needle_figure.draw(
    records, setting, reach, folder / 'needle.png', titles[settings.task]
  )
  page = report.Report().add(needle_report.table(records, setting))
  for arm in reach:
    page.say(needle_report.verdict(records, arm, setting, reach[arm]))
  page.show([folder / 'needle.json', folder / 'needle.png'])


def _setting(
  experiments: dict[str, experiment_lib.Experiment],
) -> needle_report.Setting:
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


def _reach(experiment: experiment_lib.Experiment) -> int | None:
  """Returns how many tokens the layers look back; None if one is global."""
  windows = [layer.window for layer in experiment.model.layers()]
  return None if None in windows else sum(window - 1 for window in windows)
