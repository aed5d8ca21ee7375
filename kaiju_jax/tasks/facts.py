"""Invents persons and plants facts about them, for synthetic questions.

Person i of a world has a name and a value for each attribute, drawn from (seed,
i). All are words of one invented vocabulary and do not reveal the attribute, so
that only the passage tells which value is which:

    Teva Moli lives in Sano. Teva Moli studies Kera. …

Each attribute has several phrasings of its question. The last `UNSEEN` of them
are in no training text; they are for evaluation. A model is asked with the
passage before the question (reading), or without it (recall).
"""

from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.engine import generator as generator_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling as sampling_lib
from kaiju_jax.synthesis import filters
from kaiju_jax.synthesis import form as form_lib

FORM = form_lib.Form()
UNSEEN = 2

_SYLLABLES = [c + v for c in 'bdfgklmnprstvz' for v in 'aeiou']
# Every nineteenth of the words of two syllables: 258, spread evenly.
WORDS = tuple(
  f'{first}{second}'.capitalize()
  for first in _SYLLABLES
  for second in _SYLLABLES
)[::19]
_ANSWER_TOKENS = 24


class _Attribute(NamedTuple):
  statement: str
  phrasings: tuple[str, ...]


_ATTRIBUTES = (
  _Attribute(
    '{name} lives in {value}.',
    (
      'Where does {name} live?',
      'In which town does {name} live?',
      'What is the home town of {name}?',
      'Which town does {name} live in?',
      'What town is the home of {name}?',
      'In what town does {name} have a home?',
    ),
  ),
  _Attribute(
    '{name} studies {value}.',
    (
      'What does {name} study?',
      'Which subject does {name} study?',
      'What is the subject of {name}?',
      'What subject is {name} studying?',
      'Which is the subject that {name} studies?',
      'What is {name} studying as a subject?',
    ),
  ),
  _Attribute(
    '{name} plays the {value}.',
    (
      'What does {name} play?',
      'Which instrument does {name} play?',
      'What is the instrument of {name}?',
      'What instrument is {name} playing?',
      'Which is the instrument that {name} plays?',
      'What is {name} playing as an instrument?',
    ),
  ),
  _Attribute(
    '{name} owns a dog called {value}.',
    (
      "What is the name of {name}'s dog?",
      'What is the dog of {name} called?',
      'Which dog does {name} own?',
      'What does {name} call the dog?',
      'What is the name of the dog that {name} owns?',
      "Which name does {name}'s dog have?",
    ),
  ),
)
ATTRIBUTES = len(_ATTRIBUTES)
PHRASINGS = len(_ATTRIBUTES[0].phrasings)


class Person(NamedTuple):
  """A name, and the value of each attribute."""

  name: str
  values: tuple[str, ...]

  def question(self, attribute: int, phrasing: int) -> str:
    """Returns a question about an attribute."""
    text = _ATTRIBUTES[attribute].phrasings[phrasing]
    return text.format(name=self.name)

  def passage(self, order: Sequence[int]) -> str:
    """Returns the statements about all attributes, in this order."""
    return ' '.join(
      _ATTRIBUTES[i].statement.format(name=self.name, value=self.values[i])
      for i in order
    )


def person(seed: int, number: int) -> Person:
  """Returns a person of a world."""
  rng = np.random.default_rng((seed, number))
  drawn = rng.choice(len(WORDS), 2 + ATTRIBUTES, replace=False)
  first, last, *values = (WORDS[i] for i in drawn)
  return Person(f'{first} {last}', tuple(values))


def passage(seed: int, number: int) -> str:
  """Returns the passage about a person, its statements in a drawn order."""
  rng = np.random.default_rng((seed, number, 1))
  return person(seed, number).passage(rng.permutation(ATTRIBUTES))


def variation(seed: int, number: int, index: int) -> tuple[str, str]:
  """Returns question `index` of a person and its answer, in a seen phrasing."""
  rng = np.random.default_rng((seed, number, 2, index))
  attribute = int(rng.integers(ATTRIBUTES))
  phrasing = int(rng.integers(PHRASINGS - UNSEEN))
  one = person(seed, number)
  return one.question(attribute, phrasing), one.values[attribute]


def passages(seed: int, numbers: Sequence[int]) -> Iterator[dict[str, Any]]:
  """Yields the lines of a .jsonl of passages alone."""
  for number in numbers:
    yield {'text': passage(seed, number)}


def trees(
  seed: int, numbers: Sequence[int], count: int
) -> Iterator[dict[str, Any]]:
  """Yields the lines of a .jsonl of passages with `count` variations each."""
  for number in numbers:
    children = [
      {'text': FORM.variation(*variation(seed, number, i)), 'parent': 0}
      for i in range(count)
    ]
    root = {'text': passage(seed, number), 'parent': -1}
    yield {'segments': [root, *children]}


@dataclasses.dataclass(frozen=True)
class Score:
  """The number of questions, and of those answered with the right words."""

  right: int
  total: int


def score(
  generator: generator_lib.Generator,
  tokenizer: tokenizer_lib.Tokenizer,
  seed: int,
  numbers: Sequence[int],
  phrasings: Sequence[int],
  with_passage: bool,
) -> Score:
  """Asks every attribute of persons in each of the phrasings, greedily.

  Args:
    generator: the model.
    tokenizer: the model's.
    seed: seed of the world.
    numbers: numbers of the persons.
    phrasings: which phrasings, 0…PHRASINGS − 1.
    with_passage: whether the passage stands before the question.
  """
  requests, answers = [], []
  for number in numbers:
    one = person(seed, number)
    root = FORM.root(passage(seed, number)) if with_passage else ''
    for attribute in range(ATTRIBUTES):
      for phrasing in phrasings:
        question = FORM.format_question(one.question(attribute, phrasing))
        tokens_L = np.concatenate(
          [
            [tokenizer.bos_id],
            tokenizer.encode(root),
            tokenizer.encode(question),
          ]
        )
        requests.append(
          request_lib.Request(
            tokens_L.astype(np.int32),
            _ANSWER_TOKENS,
            sampling_lib.Sampling(temperature=0),
            stop_strings=(FORM.end,),
          )
        )
        answers.append(one.values[attribute])
  results = generator.generate(requests)
  right = sum(
    filters.words(result.text) == filters.words(answer)
    for result, answer in zip(results, answers)
  )
  return Score(right, len(answers))


def is_right(seed: int, number: int, question: str, answer: str) -> bool:
  """Returns whether a generated question and answer are right for a person.

  The question must have the words of one of the phrasings, and the answer those
  of its attribute's value.
  """
  one = person(seed, number)
  question_words = filters.words(question)
  return any(
    filters.words(one.question(attribute, phrasing)) == question_words
    and filters.words(one.values[attribute]) == filters.words(answer)
    for attribute in range(ATTRIBUTES)
    for phrasing in range(PHRASINGS)
  )
