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
import time

from absl import flags

from kaiju_jax.runs import command
from kaiju_jax.storage import addresses

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
  arms, seeds, root = _checked()
  _study(arms, seeds, root)


def _checked() -> tuple[list[str], list[int], pathlib.Path]:
  from .configs import uptrain as config

  if not _OUT.value:
    raise ValueError('--out=: must name a folder.')
  addresses.refuse(_OUT.value, f'--out={_OUT.value}')
  arms = list(dict.fromkeys(_ARMS.value or config.STUDENTS))
  for arm in arms:
    if arm not in config.STUDENTS:
      raise ValueError(
        f'--arms: {arm!r} is not one of {", ".join(config.STUDENTS)}.'
      )
  # Each arm stands behind the one that it is compared with.
  arms = list(dict.fromkeys(x for a in arms for x in (config.baseline(a), a)))
  seeds = command.seeds(_SEEDS)
  return arms, seeds, pathlib.Path(_OUT.value)


def _study(arms: list[str], seeds: list[int], root: pathlib.Path) -> None:
  # These import jax, which costs seconds that a refusal should not.
  from kaiju_jax.runs import uptrain
  from kaiju_jax.runs import uptrain_study as study
  from kaiju_jax.tasks.needle import letters

  from .configs import uptrain as config

  if not (root / config.CORPUS).exists():
    letters.write(root / config.CORPUS, config.DOCUMENTS, config.LENGTH)
  experiment = config.get_config('teacher', str(root))
  if _TEACHER_STEPS.value:
    experiment.loop.steps = _TEACHER_STEPS.value
  teacher = study.Run('teacher', experiment, root / 'teacher')
  study.train_once(teacher)
  runs = {arm: [] for arm in arms}
  for arm in arms:
    for seed in seeds:
      experiment = config.get_config(arm, str(root))
      experiment.seed = seed
      if _STEPS.value:
        experiment.loop.steps = _STEPS.value
      folder = root / arm / f'seed{seed}'
      runs[arm].append(study.Run(arm, experiment, folder))
    start = runs[arm][0].experiment.begin_with
    if start and not pathlib.Path(start).exists():
      uptrain.write(teacher.folder, start, **config.STUDENTS[arm])
  rows = _Rows(teacher, config.WINDOW)
  if not _TRAIN.value:
    print(rows.starts(runs))
    return
  for arm in arms:
    if arm.endswith('distilled'):
      study.teach_once(teacher, runs[arm][0])
  for number in range(len(seeds)):
    _train([of_arm[number] for of_arm in runs.values()])
    page = rows.table(
      {arm: of_arm[: number + 1] for arm, of_arm in runs.items()}
    )
    (root / 'report.md').write_text(f'{page}\n')
    print(page, flush=True)


def _train(runs) -> None:
  """Trains what is not trained yet, with a line on the time left."""
  from kaiju_jax.runs import uptrain_study as study

  missing = [run for run in runs if not run.is_trained]
  started = time.monotonic()
  for number, run in enumerate(missing):
    left = ''
    if number:
      seconds = (time.monotonic() - started) / number * (len(missing) - number)
      left = f', about {seconds / 60:.0f} min left'
    print(
      f'{run.arm} seed {run.experiment.seed}: {number + 1} of'
      f' {len(missing)}{left}',
      flush=True,
    )
    study.train_once(run)


class _Rows:
  """Makes the table; the programs of equal models are compiled once."""

  def __init__(self, teacher, window: int):
    self._teacher = teacher
    # Three local layers, each of which looks back window − 1 tokens.
    self._reach = 3 * (window - 1) + 1
    self._readers = {}

  def table(self, runs) -> str:
    """Returns one table per baseline, the teacher's row first in each."""
    from .configs import uptrain as config

    groups = {}
    for arm, of_arm in runs.items():
      groups.setdefault(config.baseline(arm), []).append(of_arm)
    return '\n\n'.join(
      self._of(baseline, group) for baseline, group in groups.items()
    )

  def _of(self, baseline: str, group) -> str:
    from kaiju_jax.runs import uptrain_study as study

    reached = {
      run.experiment.seed: run
      for of_arm in group
      for run in of_arm
      if run.arm == baseline
    }
    rows = []
    for of_arm in [self._teacher], *group:
      experiment = of_arm[0].experiment
      read = self._reader(of_arm[0])
      start = None
      if experiment.begin_with:
        start = study.of_start(pathlib.Path(experiment.begin_with), read)
      compared = {} if of_arm[0] is self._teacher else reached
      rows.append(study.row(of_arm, compared, start, read))
    return study.table(rows, baseline)

  def starts(self, runs) -> str:
    """Returns the table of what was lost before any training."""
    from kaiju_jax.runs import uptrain_study as study

    found = {
      'teacher': study.of_run(self._teacher, self._reader(self._teacher))
    }
    for arm, of_arm in runs.items():
      begin_with = of_arm[0].experiment.begin_with
      # A distilled student begins as the pooled one does.
      if begin_with and not arm.endswith('distilled'):
        read = self._reader(of_arm[0])
        found[arm] = study.of_start(pathlib.Path(begin_with), read)
    return study.starts_table(found)

  def _reader(self, run):
    from kaiju_jax.runs import uptrain_study as study

    model = repr(run.experiment.model)
    if model not in self._readers:
      self._readers[model] = study.reader(run.experiment, self._reach)
    return self._readers[model]


if __name__ == '__main__':
  command.run(main)
