"""Compares students by how they begin: fresh, by means, by a fit."""

import pathlib

from kaiju_jax.experiments.configs import uptrain as config
from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.experiments.studies import uptrain_study as study
from kaiju_jax.runs import flags
from kaiju_jax.runs import grid
from kaiju_jax.runs import uptrain


def compare(settings: settings_lib.UptrainStudy, root: pathlib.Path) -> None:
  """Trains teacher and students, and writes and prints how they do.

  What is there is not repeated.

  Args:
    settings: which students.
    root: the folder of all runs.

  Raises:
    OSError, ValueError: something cannot be read or written; or an unknown
      world or arm.
  """
  world, seeds = settings.world, settings.seeds
  if world not in config.STUDENTS:
    raise ValueError(
      f'--world={world}: must be one of {", ".join(config.STUDENTS)}.'
    )
  arms = flags.choose('arms', settings.arms, config.STUDENTS[world])
  arms = list(dict.fromkeys((config.BASELINE, *arms)))
  study.write_text(root / config.LETTERS, config.DOCUMENTS, config.LENGTH)
  study.write_prose(root / config.PROSE)

  before = dict.fromkeys(config.ALIGNED, config.ALIGNED_STEPS)

  def run(arm: str, folder: pathlib.Path, steps: int | None, seed: int = 0):
    experiment = config.get_config(f'{world}_{arm}', str(root))
    if arm != config.ALIGNMENT:
      experiment.seed = seed
    if steps:
      experiment.loop.steps = steps - before.get(arm, 0)
    return grid.Job(arm, experiment, folder)

  place = root / world
  teacher = run('teacher', place / 'teacher', settings.teacher_steps)
  grid.run([teacher], 1)
  runs = {
    arm: [run(arm, place / arm / f'seed{s}', settings.steps, s) for s in seeds]
    for arm in arms
  }
  for arm in arms:
    wanted, kind = config.STUDENTS[world][arm]
    shared = arm in config.DISTILLED + config.ALIGNED
    start = place / 'starts' / (kind if shared else arm)
    if kind and not start.exists():
      text = teacher.experiment.data.path
      uptrain.write(
        teacher.folder, start, wanted, uptrain.FirstWeights(kind, text=text)
      )
  if set(arms) & set(config.ALIGNED):
    grid.run([run(config.ALIGNMENT, place / config.ALIGNMENT, None)], 1)
  letters = teacher.experiment.data.path.endswith(config.LETTERS)
  tables = study.Tables(
    teacher, config.BASELINE, config.WINDOW if letters else 0, before
  )
  starts = tables.tabulate_starts(runs)
  (place / 'starts.md').write_text(f'{starts}\n')
  print(starts, flush=True)
  if not settings.train:
    return
  for arm in arms:
    if runs[arm][0].experiment.data.teacher:
      study.teach_once(teacher, runs[arm][0])
  for count in range(1, len(seeds) + 1):
    grid.run([of_arm[count - 1] for of_arm in runs.values()], 1)
    page = tables.tabulate({arm: own[:count] for arm, own in runs.items()})
    (place / 'report.md').write_text(f'{page}\n')
    print(page, flush=True)
