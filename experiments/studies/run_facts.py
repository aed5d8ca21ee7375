"""Runs the study of facts: generator, variations, students."""

import dataclasses
import functools
import pathlib

from kaiju_jax.data import bpe
from kaiju_jax.experiments.configs import facts as config
from kaiju_jax.experiments.studies import facts as study
from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.reporting import report
from kaiju_jax.reporting import statistics
from kaiju_jax.runs import grid
from kaiju_jax.runs import load
from kaiju_jax.storage import files
from kaiju_jax.synthesis import settings as synthesis
from kaiju_jax.tasks import facts as task
from kaiju_jax.training import progress


def run(settings: settings_lib.Facts, root: pathlib.Path) -> None:
  """Trains generator and students in `root`, and prints what they know.

  Raises:
    OSError, ValueError: something cannot be read or written, or is wrong.
  """
  text = root / 'text'
  _text_of_generator(settings, root, text / 'generator')
  get_config = functools.partial(config.get_config, root=str(root))
  grid.run(grid.cross(get_config, ['generator'], [0], root), 1)
  candidates = _pool(settings, root)
  for arm in config.STUDENTS:
    study.texts(
      text / arm,
      settings.world,
      config.SEEDED,
      config.TARGETS,
      config.VARIATIONS,
      _held(candidates, arm),
    )
  students = [
    job
    for seed in settings.seeds
    for job in grid.cross(get_config, config.STUDENTS, [seed], root)
  ]
  grid.run(students, 1)
  scores = {
    (job.arm, job.experiment.seed): study.examine(
      load.from_workdir(job.folder), settings.world, config.ASKED
    )
    for job in students
  }
  detection = study.detection(candidates, settings.world)
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
  _say(settings, candidates, detection, scores)


def _text_of_generator(
  settings: settings_lib.Facts, root: pathlib.Path, folder: pathlib.Path
) -> None:
  """Writes what the generator reads, and a tokenizer trained on it."""
  lines = list(task.trees(settings.world, config.GENERATOR, config.VARIATIONS))
  files.make_folder(folder)
  files.write_json_lines(folder / 'train.jsonl', lines)
  texts = (segment['text'] for line in lines for segment in line['segments'])
  bpe.train(root / 'tokenizer.json', texts, config.VOCABULARY)


def _pool(settings: settings_lib.Facts, root: pathlib.Path):
  """Returns the variations of the targets, filtered and with errors planted."""
  with progress.Progress('passages') as bar:
    return study.pool(
      load.from_workdir(root / 'generator' / 'seed0'),
      settings.world,
      config.TARGETS,
      synthesis.Settings(variations=config.VARIATIONS),
      settings.planted,
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


def _say(settings: settings_lib.Facts, candidates, detection, scores) -> None:
  wrong = sum(not one.is_right(settings.world) for one in candidates)
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
