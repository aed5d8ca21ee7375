"""The planted-facts study: a test of synthetic questions and their filters.

    texts(…)       writes the text on which generator and students train
    pool(…)        draws the generator's variations and plants errors in them
    detection(…)   counts the errors that the filters reject
    examine(…)     asks a student questions and scores the answers

A share of the variations gets an error of one kind:

    attribute   the answer is the value of another attribute of the passage
    person      question and answer are about another person
    invented    the answer is a word that no passage has
    cut         the answer lacks its last letters
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import pathlib
from typing import NamedTuple

import numpy as np

from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.engine import generator as generator_lib
from kaiju_jax.runs import load
from kaiju_jax.runs import play
from kaiju_jax.storage import files
from kaiju_jax.synthesis import filters
from kaiju_jax.synthesis import journal as journal_lib
from kaiju_jax.synthesis import settings as settings_lib
from kaiju_jax.synthesis import trees
from kaiju_jax.synthesis import variations as variations_lib
from kaiju_jax.tasks import facts

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
  decoder = play.decoder(
    loaded,
    tokenizer,
    rows=_ROWS,
    length=length,
  )
  # A variation must not depend on the others that run with it.
  generator = generator_lib.Generator(decoder, tokenizer, batch_invariant=True)
  return generator, tokenizer


def pool(
  loaded: load.Loaded,
  world: int,
  numbers: Sequence[int],
  settings: settings_lib.Settings,
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
  world: int, number: int, settings: settings_lib.Settings, planted: float
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
      trees.record(
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
