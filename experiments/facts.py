"""Do filtered synthetic questions teach what repeated passages do not?

    python -m experiments.facts [--seeds=0,1,2] [--out=runs/facts]

Trains the generator of `experiments/configs/facts.py`, has it write variations
of the students' passages, plants errors in some, filters, trains the students
on each seed, and asks them about new persons. Writes facts.json into the
workdir, and prints how well the filters found the errors and what each student
answered, with 95 % intervals. The same command goes on where it was stopped.
"""

from collections.abc import Sequence
import dataclasses
import functools
import pathlib

from absl import flags

from kaiju_jax.reporting import report
from kaiju_jax.runs import command

_OUT = flags.DEFINE_string('out', 'runs/facts', 'Folder of all runs.')
_SEEDS = command.define_seeds('0')
_PLANTED = flags.DEFINE_float(
  'planted',
  0.3,
  'Share of the variations that become errors.',
  lower_bound=0.0,
  upper_bound=1.0,
)
_WORLD = flags.DEFINE_integer('world', 0, 'Seed of the facts.', lower_bound=0)


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  seeds = command.seeds(_SEEDS)
  _run(command.folder(_OUT), seeds)


def _run(root: pathlib.Path, seeds: Sequence[int]) -> None:
  from kaiju_jax.experiments.studies import facts as study
  from kaiju_jax.runs import grid
  from kaiju_jax.runs import load
  from kaiju_jax.storage import files

  from .configs import facts as config

  text = root / 'text'
  _text_of_generator(root, text / 'generator')
  get_config = functools.partial(config.get_config, root=str(root))
  grid.run(grid.cross(get_config, ['generator'], [0], root), 1)
  candidates = _pool(root)
  for arm in config.STUDENTS:
    study.texts(
      text / arm,
      _WORLD.value,
      config.SEEDED,
      config.TARGETS,
      config.VARIATIONS,
      _held(candidates, arm),
    )
  students = [
    job
    for seed in seeds
    for job in grid.cross(get_config, config.STUDENTS, [seed], root)
  ]
  grid.run(students, 1)
  scores = {
    (job.arm, job.experiment.seed): study.examine(
      load.from_workdir(job.folder), _WORLD.value, config.ASKED
    )
    for job in students
  }
  detection = study.detection(candidates, _WORLD.value)
  files.write_json(
    root / 'facts.json',
    {
      'detection': detection._asdict(),
      'scores': [
        {'arm': arm, 'seed': seed}
        | {name: dataclasses.asdict(one) for name, one in own.items()}
        for (arm, seed), own in scores.items()
      ],
    },
  )
  _say(candidates, detection, scores)


def _text_of_generator(root: pathlib.Path, folder: pathlib.Path) -> None:
  """Writes what the generator reads, and a tokenizer trained on it."""
  from kaiju_jax.data import bpe
  from kaiju_jax.storage import files
  from kaiju_jax.tasks import facts

  from .configs import facts as config

  lines = list(facts.trees(_WORLD.value, config.GENERATOR, config.VARIATIONS))
  files.make_folder(folder)
  files.write_json_lines(folder / 'train.jsonl', lines)
  texts = (segment['text'] for line in lines for segment in line['segments'])
  bpe.train(root / 'tokenizer.json', texts, config.VOCABULARY)


def _pool(root: pathlib.Path):
  """Returns the variations of the targets, filtered and with errors planted."""
  from kaiju_jax.experiments.studies import facts as study
  from kaiju_jax.runs import load
  from kaiju_jax.synthesis import settings
  from kaiju_jax.training import progress

  from .configs import facts as config

  with progress.Progress('passages') as bar:
    return study.pool(
      load.from_workdir(root / 'generator' / 'seed0'),
      _WORLD.value,
      config.TARGETS,
      settings.Settings(variations=config.VARIATIONS),
      _PLANTED.value,
      root / 'pool.journal',
      lambda done, total: bar.update(done, total=total),
    )


def _held(candidates, arm: str):
  """Returns the candidates that a student reads; None for none."""
  if arm == 'originals':
    return None
  if arm == 'unfiltered':
    return candidates
  return [one for one in candidates if one.verdict == 'kept']


def _say(candidates, detection, scores) -> None:
  from kaiju_jax.reporting import statistics

  from .configs import facts as config

  wrong = sum(not one.is_right(_WORLD.value) for one in candidates)
  print(
    f'{len(candidates)} variations, {wrong} of them wrong'
    f' ({sum(bool(one.planted) for one in candidates)} planted).'
    f' Filters: precision {detection.precision:.3f}, recall'
    f' {detection.recall:.3f} ({detection.rejected_wrong} wrong ones rejected'
    f' of {detection.wrong}, {detection.rejected} rejected).'
  )
  rows = []
  pooled = {}
  for arm in config.STUDENTS:
    cells = []
    for name in 'seen', 'unseen':
      own = [one[name] for (of, _), one in scores.items() if of == arm]
      right, total = sum(s.right for s in own), sum(s.total for s in own)
      pooled[arm, name] = right, total
      low, high = statistics.wilson(right, total)
      cells.append(
        f'{100 * right / total:.1f} % ({100 * low:.1f} … {100 * high:.1f})'
      )
    rows.append((arm, *cells))
  names = 'student', 'seen phrasings', 'unseen phrasings'
  report.Report().table(rows, names).show()
  for other in 'originals', 'unfiltered':
    d, (low, high) = statistics.difference(
      pooled['filtered', 'unseen'], pooled[other, 'unseen']
    )
    print(
      f'filtered − {other}, unseen phrasings: {100 * d:+.1f} points'
      f' ({100 * low:+.1f} … {100 * high:+.1f})'
    )


if __name__ == '__main__':
  command.run(main)
