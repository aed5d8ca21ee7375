"""Compares students by how they begin: fresh, uptrained, distilled.

    python -m experiments.uptrain_study --out=runs/uptrain [--seeds=0,1,2]

Writes a corpus, trains the toy teacher of `experiments/configs/uptrain.py`,
makes a start for each arm (`experiments.uptrain`), trains the arms on equal
tokens, asks all of them the same questions, and writes the table that it prints
into ROOT/report.md. Whatever is there is not repeated: Ctrl-C saves, and the
same command goes on.
"""

from collections.abc import Sequence
import pathlib

from absl import flags

from kaiju_jax.runs import command

_OUT = flags.DEFINE_string('out', 'runs/uptrain', 'Where everything lies.')
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

  root = command.folder(_OUT)
  arms = command.choose(_ARMS, config.STUDENTS)
  # Each arm stands behind the one that it is compared with.
  arms = list(dict.fromkeys(x for a in arms for x in (config.baseline(a), a)))
  _study(arms, command.seeds(_SEEDS), root)


def _study(arms: list[str], seeds: list[int], root: pathlib.Path) -> None:
  # These import jax, which costs seconds that a refusal should not.
  from kaiju_jax.runs import uptrain
  from kaiju_jax.runs import uptrain_study as study
  from kaiju_jax.tasks.needle import letters

  from .configs import uptrain as config

  if not (root / config.CORPUS).exists():
    letters.write(root / config.CORPUS, config.DOCUMENTS, config.LENGTH)

  def run(arm: str, folder: pathlib.Path, steps: int | None, seed: int = 0):
    experiment = config.get_config(arm, str(root))
    experiment.seed, experiment.loop.steps = (
      seed,
      steps or experiment.loop.steps,
    )
    return study.Run(arm, experiment, folder)

  teacher = run('teacher', root / 'teacher', _TEACHER_STEPS.value)
  study.train_once(teacher)
  runs = {
    arm: [run(arm, root / arm / f'seed{s}', _STEPS.value, s) for s in seeds]
    for arm in arms
  }
  for arm, of_arm in runs.items():
    start = of_arm[0].experiment.begin_with
    if start and not pathlib.Path(start).exists():
      uptrain.write(teacher.folder, start, **config.STUDENTS[arm])
  tables = study.Tables(teacher, config.WINDOW, config.baseline)
  if not _TRAIN.value:
    print(tables.tabulate_starts(runs))
    return
  for arm in arms:
    if arm.endswith('distilled'):
      study.teach_once(teacher, runs[arm][0])
  for count in range(1, len(seeds) + 1):
    study.train_all([of_arm[count - 1] for of_arm in runs.values()])
    page = tables.tabulate({arm: own[:count] for arm, own in runs.items()})
    (root / 'report.md').write_text(f'{page}\n')
    print(page, flush=True)


if __name__ == '__main__':
  command.run(main)
