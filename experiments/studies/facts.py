"""The planted-facts study: a test of synthetic questions and their filters.

    texts(…)       writes the text on which generator and students train
    pool(…)        draws the generator's variations and plants errors in them
    detection(…)   counts the errors that the filters reject
    examine(…)     asks a student questions and scores the answers
    run(…)         all of these in order, and prints what came out

A share of the variations gets an error of one kind:

    attribute   the answer is the value of another attribute of the passage
    person      question and answer are about another person
    invented    the answer is a word that no passage has
    cut         the answer lacks its last letters
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
import pathlib
from typing import NamedTuple

import numpy as np

from kaiju_jax.data import bpe
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.engine import generator as generator_lib
from kaiju_jax.experiments.configs import facts as config
from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.reporting import report
from kaiju_jax.reporting import statistics
from kaiju_jax.runs import grid
from kaiju_jax.runs import load
from kaiju_jax.runs import play
from kaiju_jax.storage import files
from kaiju_jax.synthesis import filters
from kaiju_jax.synthesis import journal as journal_lib
from kaiju_jax.synthesis import settings as synthesis
from kaiju_jax.synthesis import variations as variations_lib
from kaiju_jax.tasks import facts
from kaiju_jax.training import progress

ERRORS = ('attribute', 'person', 'invented', 'cut')
_ROWS = 16


class Candidate(NamedTuple):
  """One variation of a person's passage."""

  number: int  # The person's number.
  # The generator's variation, or an error in its place.
  variation: variations_lib.Variation
  planted: str  # The kind of the error, '' for none.
  verdict: str  # The filters' verdict.

  def is_right(self, world: int) -> bool:
    return facts.is_right(
      world, self.number, self.variation.question, self.variation.answer
    )


def generator_of(
  loaded: load.Loaded, length: int
) -> tuple[generator_lib.Generator, tokenizer_lib.Tokenizer]:
  """Returns a generator over rows of `length`, and its tokenizer."""
  tokenizer = tokenizer_lib.load(loaded.tokenizer, loaded.config.vocab_size)
  decoder = play.decoder(loaded, tokenizer, rows=_ROWS, length=length)
  # A variation must not depend on the others that run with it.
  generator = generator_lib.Generator(decoder, tokenizer, batch_invariant=True)
  return generator, tokenizer


def pool(
  loaded: load.Loaded,
  world: int,
  numbers: Sequence[int],
  settings: synthesis.Settings,
  planted: float,
  path: pathlib.Path,
  noted: Callable[[int, int], None] = lambda done, total: None,
) -> list[Candidate]:
  """Returns all variations of persons' passages, a share of them wrong.

  Args:
    loaded: the generator.
    world: seed of the world.
    numbers: the persons' numbers.
    settings: the settings of drawing and filtering.
    planted: the share of variations that errors replace, 0…1.
    path: the journal, from which the same call continues.
    noted: called with the number of passages done, and of all.

  Raises:
    OSError: the journal cannot be read or written.
    ValueError: the journal belongs to another pool.
  """
  passages = [
    variations_lib.Passage(str(number), facts.passage(world, number))
    for number in numbers
  ]
  tokenizer = tokenizer_lib.load(loaded.tokenizer, loaded.config.vocab_size)
  length = max(
    variations_lib.length(settings, tokenizer, one.text) for one in passages
  )
  head = {
    'generator': loaded.origin,
    'world': world,
    'planted': planted,
    'settings': dataclasses.asdict(settings),
  }
  with journal_lib.Journal(path, head) as journal:
    left = [one for one in passages if one.name not in journal.judged]
    noted(len(passages) - len(left), len(passages))
    if left:
      generator, tokenizer = generator_of(loaded, length)
      author = variations_lib.Author(generator, tokenizer, settings)
      size = max(1, _ROWS // settings.variations)
      for first in range(0, len(left), size):
        group = left[first : first + size]
        drawn = [
          _with_errors(world, one, own, settings, planted)
          for one, own in zip(group, author.write(group))
        ]
        for one, own in zip(group, author.weigh(group, drawn)):
          verdicts = filters.judge(one.text, own, settings)
          journal.append(one.name, list(zip(own, verdicts)))
        noted(len(journal.judged), len(passages))
    judged = dict(journal.judged)
  return [
    Candidate(number, variation, kind, verdict)
    for number in numbers
    for (variation, verdict), kind in zip(
      judged[str(number)], _kinds(world, number, settings, planted)
    )
  ]


def _kinds(
  world: int, number: int, settings: synthesis.Settings, planted: float
) -> list[str]:
  """Returns the kind of error per variation of a person, '' for none."""
  rng = np.random.default_rng((world, settings.seed, number))
  return [
    str(rng.choice(ERRORS)) if rng.random() < planted else ''
    for _ in range(settings.variations)
  ]


def _with_errors(world, passage, variations, settings, planted):
  number = int(passage.name)
  rng = np.random.default_rng((world, settings.seed, number, 1))
  kinds = _kinds(world, number, settings, planted)
  return [
    _plant_error(rng, world, number, one, kind)
    for one, kind in zip(variations, kinds)
  ]


def _plant_error(rng, world: int, number: int, one, kind: str):
  """Returns the variation, or an error of the given kind in its place."""
  if not kind:
    return one
  person = facts.person(world, number)
  attribute = int(rng.integers(facts.ATTRIBUTES))
  phrasing = int(rng.integers(facts.PHRASINGS - facts.UNSEEN))
  question = person.question(attribute, phrasing)
  answer = person.values[attribute]
  if kind == 'attribute':
    other = (attribute + int(rng.integers(1, facts.ATTRIBUTES))) % (
      facts.ATTRIBUTES
    )
    answer = person.values[other]
  elif kind == 'person':
    somebody = facts.person(world, number + 1_000_000)
    question = somebody.question(attribute, phrasing)
    answer = somebody.values[attribute]
  elif kind == 'invented':
    answer = facts.person(world, number + 2_000_000).values[attribute]
  else:
    answer = answer[:-2]
  return dataclasses.replace(one, question=question, answer=answer)


class Detection(NamedTuple):
  """Counts of the filters' verdicts on variations whose truth is known."""

  candidates: int  # All variations without repetitions.
  wrong: int  # The wrong ones.
  rejected: int  # The rejected ones.
  rejected_wrong: int  # Those that are both.

  @property
  def precision(self) -> float:
    """The share of rejected variations that are wrong."""
    return self.rejected_wrong / self.rejected if self.rejected else 1.0

  @property
  def recall(self) -> float:
    """The share of wrong variations that are rejected."""
    return self.rejected_wrong / self.wrong if self.wrong else 1.0


def detection(candidates: Sequence[Candidate], world: int) -> Detection:
  """Counts how verdicts agree with the truth, without repetitions."""
  judged = [one for one in candidates if one.verdict != 'repeated']
  wrong = [not one.is_right(world) for one in judged]
  rejected = [one.verdict != filters.KEPT for one in judged]
  both = sum(w and r for w, r in zip(wrong, rejected))
  return Detection(len(judged), sum(wrong), sum(rejected), both)


def texts(
  folder: pathlib.Path,
  world: int,
  seeded: Sequence[int],
  targets: Sequence[int],
  count: int,
  candidates: Sequence[Candidate] | None,
) -> None:
  """Writes the text on which a model trains.

  Args:
    folder: the folder; created if it does not exist.
    world: seed of the world.
    seeded: persons with `count` true questions each.
    targets: persons with passages.
    count: see `seeded`.
    candidates: the targets' variations; None for passages alone.
  """
  folder.mkdir(parents=True, exist_ok=True)
  files.write_json_lines(
    folder / 'seeded.jsonl', facts.trees(world, seeded, count)
  )
  if candidates is None:
    lines = facts.passages(world, targets)
  else:
    own = {number: [] for number in targets}
    for one in candidates:
      if one.variation.question and one.variation.answer:
        own[one.number].append(one.variation)
    lines = (
      variations_lib.record(
        facts.FORM,
        variations_lib.Passage(str(number), facts.passage(world, number)),
        own[number],
      )
      for number in targets
    )
  files.write_json_lines(folder / 'targets.jsonl', lines)


def examine(
  loaded: load.Loaded, world: int, numbers: Sequence[int]
) -> dict[str, facts.Score]:
  """Returns a student's scores on new persons, by kind of phrasing."""
  generator, tokenizer = generator_of(loaded, loaded.config.max_length)
  first_unseen = facts.PHRASINGS - facts.UNSEEN
  return {
    name: facts.score(
      generator, tokenizer, world, numbers, phrasings, with_passage=True
    )
    for name, phrasings in (
      ('seen', range(first_unseen)),
      ('unseen', range(first_unseen, facts.PHRASINGS)),
    )
  }


def run(settings: settings_lib.Facts, root: pathlib.Path) -> None:
  """Trains generator and students in `root`, and prints what they know.

  Raises:
    OSError, ValueError: something cannot be read or written, or is wrong.
  """
  text = root / 'text'
  _text_of_generator(settings, root, text / 'generator')
  get_config = functools.partial(config.get_config, root=str(root))
  grid.run(grid.cross(get_config, ['generator'], [0], root))
  candidates = _pool(settings, root)
  for arm in config.STUDENTS:
    texts(
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
  grid.run(students)
  scores = {
    (job.arm, job.experiment.seed): examine(
      load.from_workdir(job.folder), settings.world, config.ASKED
    )
    for job in students
  }
  detected = detection(candidates, settings.world)
  files.write_json(
    root / 'facts.json',
    {
      'detection': detected._asdict(),
      'scores': [
        {'arm': arm, 'seed': seed}
        | {name: dataclasses.asdict(one) for name, one in own.items()}
        for (arm, seed), own in scores.items()
      ],
    },
  )
  print(_describe(settings.world, candidates, detected))
  _show(scores)


def _text_of_generator(
  settings: settings_lib.Facts, root: pathlib.Path, folder: pathlib.Path
) -> None:
  """Writes what the generator reads, and a tokenizer trained on it."""
  lines = list(facts.trees(settings.world, config.GENERATOR, config.VARIATIONS))
  files.make_folder(folder)
  files.write_json_lines(folder / 'train.jsonl', lines)
  texts = (segment['text'] for line in lines for segment in line['segments'])
  bpe.train(root / 'tokenizer.json', texts, config.VOCABULARY)


def _pool(settings: settings_lib.Facts, root: pathlib.Path):
  """Returns the variations of the targets, filtered and with errors planted."""
  with progress.Progress('passages') as bar:
    return pool(
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


def _describe(
  world: int, candidates: Sequence[Candidate], found: Detection
) -> str:
  """Returns how well the filters found the errors."""
  wrong = sum(not one.is_right(world) for one in candidates)
  planted = sum(bool(one.planted) for one in candidates)
  return (
    f'{len(candidates)} variations, {wrong} of them wrong ({planted} planted).'
    f' Filters: precision {found.precision:.3f}, recall {found.recall:.3f}'
    f' ({found.rejected_wrong} wrong ones rejected of {found.wrong},'
    f' {found.rejected} rejected).'
  )


class _Row(NamedTuple):
  """A student's right answers, over its seeds."""

  student: str
  seen_phrasings: statistics.Share
  unseen_phrasings: statistics.Share


def _show(scores: Mapping[tuple[str, int], Mapping[str, facts.Score]]) -> None:
  """Prints what the students know, by {(arm, seed): `examine`}."""

  def pool_seeds(arm: str, name: str) -> statistics.Share:
    own = [one[name] for (of, _), one in scores.items() if of == arm]
    return statistics.Share(
      sum(x.right for x in own), sum(x.total for x in own)
    )

  rows = {
    arm: _Row(arm, pool_seeds(arm, 'seen'), pool_seeds(arm, 'unseen'))
    for arm in config.STUDENTS
  }
  report.Report().table(rows.values()).show()
  for other in 'originals', 'unfiltered':
    d, (low, high) = statistics.newcombe(
      rows['filtered'].unseen_phrasings, rows[other].unseen_phrasings
    )
    print(
      f'filtered − {other}, unseen phrasings: {100 * d:+.1f} points'
      f' ({100 * low:+.1f} … {100 * high:+.1f})'
    )
