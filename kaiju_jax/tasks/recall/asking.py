"""Asks any model recall problems in English, through a responder of personas.

An endpoint, an import and an export are asked alike: the token rows that a
trained arm answers are translated.
"""

from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kaiju_jax.evaluation.persona import dialogue
from kaiju_jax.evaluation.persona import golden
from kaiju_jax.reporting import decision as decision_lib
from kaiju_jax.reporting import statistics
from kaiju_jax.tasks.recall import problems
from kaiju_jax.tasks.recall import rows
from kaiju_jax.tasks.recall import text

NAME = 'recall'
CONFIDENCE = 0.95
# A responder answers in somebody's name; this one has nothing to play.
_NOBODY = golden.Character(
  'Assistant', 'Answers questions about a text.', '', '', ''
)


class Answered(NamedTuple):
  """One question and its reply."""

  cell: rows.Cell  # The question's cell.
  # Whether the reply names all answers, and no other value before.
  is_right: bool
  recalled: float  # The share of the answers that it names.


def draw(
  kinds: Sequence[str], lengths: Sequence[int], count: int, seed: int
) -> list[tuple[rows.Cell, text.Question]]:
  """Draws questions in English, `count` per kind and length.

  Args:
    kinds: names of `problems.KINDS`.
    lengths: tokens of the rows that are translated; a filler token becomes a
      sentence of five words. Rows that do not hold a kind are left out.
    count: questions per kind and length.
    seed: seed of the draws.

  Raises:
    ValueError: no row holds any of the kinds.
  """
  found = []
  for kind in kinds:
    for length in lengths:
      if not problems.fits(kind, length):
        continue
      number = list(problems.KINDS).index(kind)
      rng = np.random.default_rng((seed, number, length))
      for _ in range(count):
        problem = problems.draw(rng, kind, length)
        question = text.write(problem, rows.write(rng, problem, length))
        found.append((rows.Cell(kind, length, count), question))
  if not found:
    raise ValueError(
      f'lengths={list(lengths)}: no row of them holds {", ".join(kinds)}.'
    )
  return found


def ask(
  responder: dialogue.Responder,
  questions: Sequence[tuple[rows.Cell, text.Question]],
) -> list[Answered]:
  """Returns what a responder makes of the questions, each a first message."""
  nobody = golden.GoldenConversation(
    NAME, 'public', 'generated', _NOBODY, (), ()
  )
  replies = responder.answer(
    [dialogue.Asked(nobody, (), one.prompt) for _, one in questions]
  )
  return [
    Answered(cell, *text.score(one, reply))
    for (cell, one), reply in zip(questions, replies, strict=True)
  ]


def count_right(
  answered: Sequence[Answered], arm: str, seed: int
) -> list[rows.Record]:
  """Returns a record per cell."""
  cells = list(dict.fromkeys(one.cell for one in answered))
  records = []
  for cell in cells:
    own = [one for one in answered if one.cell == cell]
    right = sum(one.is_right for one in own)
    share = sum(one.recalled for one in own) / len(own)
    records.append(
      rows.Record(arm, seed, cell.kind, cell.length, right, share, len(own))
    )
  return records


def served_checks(
  records: Sequence[rows.Record], least: float | None
) -> Iterator[decision_lib.Check]:
  """Yields a check per cell: exact bounds show at least `least` right.

  Args:
    records: one per cell.
    least: the share of right questions that must be shown; None decides
      nothing.
  """
  if least is None:
    yield decision_lib.Check(
      decision_lib.NOT_EVALUATED, 'No share of right answers was demanded.'
    )
    return
  for one in records:
    shown = statistics.at_least(one.right, one.count, CONFIDENCE)
    if one.right / one.count >= least > shown:
      yield decision_lib.Check(
        decision_lib.NOT_EVALUATED,
        f'{one.kind} at {one.length}: {one.right} of {one.count} right show'
        f' {shown:.1%}; ask more to show {least:.1%}.',
      )
      continue
    yield decision_lib.refuse_if(
      shown < least,
      f'{one.kind} at {one.length}: {one.right} of {one.count} right; at least'
      f' {least:.1%} must be shown.',
    )
