"""Compares students by how they begin: fresh, by means, by a fit.

    python -m experiments.uptrain_study --world=gated --out=runs/uptrain

Writes the text, trains the world's toy teacher
(`experiments/configs/uptrain.py`), makes a start for each arm
(`experiments.uptrain`), trains the arms on equal tokens, asks all of them the
same questions, and writes the tables that it prints into ROOT/WORLD/starts.md
(before training) and report.md. Whatever is there is not repeated: Ctrl-C
saves, and the same command goes on.
"""

from collections.abc import Sequence
import pathlib

from absl import flags

from kaiju_jax.runs import command

_OUT = flags.DEFINE_string('out', 'runs/uptrain', 'Where everything lies.')
_WORLD = flags.DEFINE_string(
  'world', 'gated', "One of the config's worlds: a teacher and its text."
)
_SEEDS = command.define_seeds('0,1,2')
_ARMS = flags.DEFINE_list('arms', None, "Arms; the config's by default.")
_STEPS = flags.DEFINE_integer(
  'steps', None, "Steps of a student; the config's by default.", lower_bound=1
)
_TRAIN = flags.DEFINE_bool(
  'train', True, 'Whether students train; otherwise only their starts are read.'
)
_TEACHER_STEPS = flags.DEFINE_integer(
  'teacher_steps', None, "Steps of the teacher; the config's by default."
)


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  from .configs import uptrain as config

  world = _WORLD.value
  if world not in config.STUDENTS:
    raise ValueError(
      f'--world={world}: must be one of {", ".join(config.STUDENTS)}.'
    )
  root = command.folder(_OUT)
  arms = command.choose(_ARMS, config.STUDENTS[world])
  arms = list(dict.fromkeys((config.BASELINE, *arms)))
  _study(world, arms, command.seeds(_SEEDS), root)


def _study(
  world: str, arms: list[str], seeds: list[int], root: pathlib.Path
) -> None:
  # These import jax, which costs seconds that a refusal should not.
  from kaiju_jax.experiments.studies import uptrain_study as study
  from kaiju_jax.runs import grid
  from kaiju_jax.runs import uptrain

  from .configs import uptrain as config

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
  teacher = run('teacher', place / 'teacher', _TEACHER_STEPS.value)
  grid.run([teacher], 1)
  runs = {
    arm: [run(arm, place / arm / f'seed{s}', _STEPS.value, s) for s in seeds]
    for arm in arms
  }
  for arm in arms:
    wanted, kind = config.STUDENTS[world][arm]
    shared = arm in config.DISTILLED + config.ALIGNED
    start = place / 'starts' / (kind if shared else arm)
    if kind and not start.exists():
      text = teacher.experiment.data.path
      uptrain.write(
        teacher.folder, start, wanted, uptrain.Start(kind, text=text)
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
  if not _TRAIN.value:
    return
  for arm in arms:
    if runs[arm][0].experiment.data.teacher:
      study.teach_once(teacher, runs[arm][0])
  for count in range(1, len(seeds) + 1):
    grid.run([of_arm[count - 1] for of_arm in runs.values()], 1)
    page = tables.tabulate({arm: own[:count] for arm, own in runs.items()})
    (place / 'report.md').write_text(f'{page}\n')
    print(page, flush=True)


if __name__ == '__main__':
  command.run(main)
