"""Recall problems as English: the same rows, for models that answer in words.

A token row is translated word by word, so that both forms carry one problem:

    name value    The magic number for London is 48213.
    name name     Let A1 be C7. (in problems of variables; A1 be 48213)
    word          a noun, in a list
    filler        a short sentence; nothing in a list of words

The question follows the text. A reply counts by the values of the row that it
names, and a model that names all of them has not answered: only as many count
as are asked for, the first ones.
"""

from collections.abc import Iterator
import re
from typing import NamedTuple

import numpy as np

from kaiju_jax.tasks.needle import text as needle_text
from kaiju_jax.tasks.recall import problems

CITIES = needle_text.CITIES[: len(problems.NAMES)]
VARIABLES = tuple(f'{a}{b}' for a in 'ABCDEFGH' for b in range(1, 9))
# 35,317 shares no factor with 90,000, so that all numbers differ.
NUMBERS = tuple(
  str(10_000 + (index * 35_317 + 20_011) % 90_000)
  for index in range(len(problems.VALUES))
)
_NOUNS = (
  'anchor apple basket bell blanket boat bottle bridge bucket button candle'
  ' carpet castle chair clock cloud coat copper corner crown desk door drum'
  ' feather fence flag flute forest garden glove hammer harbor hat honey island'
  ' jacket kettle kite ladder lamp lemon letter mirror mountain needle paper'
  ' pencil pepper piano pillow pocket puzzle ribbon river rocket saddle shovel'
  ' silver spoon table thread ticket tunnel window'
)
NOUNS = tuple(_NOUNS.split())
_WHO = 'farmer', 'painter', 'sailor', 'teacher', 'baker'
_DID = 'watched', 'followed', 'greeted', 'praised', 'drew'
_WHOM = (
  'a grey cat',
  'the old dog',
  'a young fox',
  'the brown hen',
  'a tall man',
)
_ALONE = 'Answer with nothing else.'
_COUNT = 'three'


class Question(NamedTuple):
  """A problem in English."""

  prompt: str  # The text, then the question.
  answers: tuple[str, ...]  # The words or numbers of a right reply.
  # All words or numbers of the row, `answers` among them.
  candidates: frozenset[str]


def write(problem: problems.Problem, row: np.ndarray) -> Question:
  """Returns the English of a row that `rows.write` made of the problem."""
  body = row[1 : len(row) + 1 - 2 * len(problem.asked)].tolist()
  is_list = problem.kind.endswith('_words')
  said = list(_translate(problem.kind, body))
  text = ', '.join(said) + '.' if is_list else ' '.join(said)
  names = NOUNS if is_list else NUMBERS
  answers, candidates = (
    [names[one - problems.VALUES.start] for one in found]
    for found in (
      [answer for _, answer in problem.asked],
      [one[-1] for one in problem.statements if one[-1] in problems.VALUES],
    )
  )
  prompt = f'{text}\n\n{_ask(problem)}'
  return Question(prompt, tuple(answers), frozenset(candidates))


def score(question: Question, reply: str) -> tuple[bool, float]:
  """Returns whether a reply names all answers, and the share it names."""
  wanted = set(question.answers)
  words = [
    word
    for word in dict.fromkeys(re.findall(r'\w+', reply.lower()))
    if word in question.candidates
  ]
  found = wanted & set(words[: len(wanted)])
  return found == wanted, len(found) / len(wanted)


def _translate(kind: str, body: list[int]) -> Iterator[str]:
  tokens = iter(body)
  for token in tokens:
    if token in problems.VALUES:
      yield NOUNS[token - problems.VALUES.start]
    elif token in problems.NAMES:
      yield _state(kind, token, next(tokens))
    elif not kind.endswith('_words'):
      number = token - problems.FILLER.start
      who, did, whom = number // 25, number // 5 % 5, number % 5
      yield f'The {_WHO[who]} {_DID[did]} {_WHOM[whom]}.'


def _state(kind: str, name: int, read: int) -> str:
  if problems.hops_of(kind) is None:
    return f'The magic number for {_city(name)} is {_number(read)}.'
  other = _number(read) if read in problems.VALUES else _variable(read)
  return f'Let {_variable(name)} be {other}.'


def _ask(problem: problems.Problem) -> str:
  cues = [cue for cue, _ in problem.asked]
  if problem.kind == 'common_words':
    return f'Which {_COUNT} words stand most often in this list? {_ALONE}'
  if problem.kind == 'frequent_words':
    return f'Which are the {_COUNT} most frequent words of this list? {_ALONE}'
  if problems.hops_of(problem.kind) is not None:
    return f'Which number is {_variable(cues[0])}? {_ALONE}'
  if len(cues) == 1:
    return f'What is the magic number for {_city(cues[0])}? {_ALONE}'
  if len(set(cues)) == 1:
    return f'What are all magic numbers for {_city(cues[0])}? {_ALONE}'
  *first, last = map(_city, cues)
  cities = f'{", ".join(first)} and {last}'
  return f'What are the magic numbers for {cities}? {_ALONE}'


def _city(name: int) -> str:
  return CITIES[name - problems.NAMES.start]


def _variable(name: int) -> str:
  return VARIABLES[name - problems.NAMES.start]


def _number(value: int) -> str:
  return NUMBERS[value - problems.VALUES.start]
