"""Recall problems as token rows: to ask trained models, and to train on.

    BOS filler name value filler name name filler … cue answer cue

A row ends in its questions: each cue is followed by its answer, but for the
last one. The answers in the row are read by the model (teacher forcing), so
that all are right exactly where greedy decoding from the first cue would write
them, if it were given the next cues.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import itertools
from typing import NamedTuple

import numpy as np

from kaiju_jax.data import packing
from kaiju_jax.tasks.needle import questions as needle
from kaiju_jax.tasks.recall import problems

NOT_ASKED = -1


def write(
  rng: np.random.Generator, problem: problems.Problem, length: int
) -> np.ndarray:
  """Returns int32[length], the row of a problem.

  Every arrangement of the statements in the filler is equally likely.

  Raises:
    ValueError: the row is too short.
  """
  statements = np.array(problem.statements)
  count, size = statements.shape
  room = length - 2 * len(problem.asked)
  starts = 1 + needle.scatter(rng, 1, count, size, room)[0]
  row = rng.integers(
    problems.FILLER.start, problems.FILLER.stop, length, np.int32
  )
  row[starts[:, None] + np.arange(size)] = statements
  row[0] = problems.BOS
  row[1 + room :] = np.ravel(problem.asked)[:-1]
  return row


def questions(
  rng: np.random.Generator, kind: str, count: int, length: int
) -> needle.Questions:
  """Draws rows of one kind.

  Returns:
    The rows, and the right predictions at the last tokens; `NOT_ASKED` where a
    cue would be predicted.

  Raises:
    ValueError: see `problems.draw`.
  """
  rows, answers = [], []
  for _ in range(count):
    problem = problems.draw(rng, kind, length)
    rows.append(write(rng, problem, length))
    found = np.full(2 * len(problem.asked) - 1, NOT_ASKED, np.int32)
    found[::2] = [answer for _, answer in problem.asked]
    answers.append(found)
  return needle.Questions(np.stack(rows), np.stack(answers))


class Cell(NamedTuple):
  """Questions with equal settings."""

  kind: str  # A name of `problems.KINDS`.
  length: int  # Tokens per row.
  count: int  # Number of questions.


class Record(NamedTuple):
  """The answers of one trained arm (one variant of the model) in one cell."""

  arm: str  # Name of the arm.
  seed: int  # The seed of the arm's training.
  # The cell's values.
  kind: str
  length: int
  right: int  # Questions with all answers right.
  # The share of right answers, each question's weight being equal.
  recalled: float
  count: int  # Number of questions.


def cells(kinds: Iterable[str], length: int, count: int) -> list[Cell]:
  """Returns the cells at a trained length, its half and its double.

  Lengths that do not hold a kind are left out; beyond the trained length there
  is a quarter of the questions.
  """
  lengths = (length // 2, count), (length, count), (2 * length, count // 4)
  return [
    Cell(kind, tokens, max(1, repeats))
    for kind, (tokens, repeats) in itertools.product(kinds, lengths)
    if problems.fits(kind, tokens)
  ]


def ask(
  answer: Callable[[np.ndarray, int], np.ndarray],
  cells: Sequence[Cell],
  seeds: Sequence[int],
) -> Iterator[tuple[Cell, int, float]]:
  """Yields each cell with its right questions, and the share recalled.

  Args:
    answer: see `needle.ask`.
    cells: the cells; their order does not change the draws.
    seeds: the seeds of the questions.
  """
  for cell in cells:
    number = list(problems.KINDS).index(cell.kind)
    rng = np.random.default_rng((*seeds, number, cell.length))
    tokens_BL, answers_BA = questions(rng, cell.kind, cell.count, cell.length)
    asked_A = answers_BA[0] != NOT_ASKED
    predicted_BA = np.asarray(answer(tokens_BL, answers_BA.shape[1]))
    right_BA = (predicted_BA == answers_BA)[:, asked_A]
    yield cell, int(right_BA.all(1).sum()), float(right_BA.mean())


@dataclasses.dataclass(frozen=True)
class Stage:
  """A part of a curriculum."""

  length: int  # Tokens per document; a row packs as many documents as it holds.
  share: int  # Part of the run's rows, relative to the sum over the curriculum.
  kinds: tuple[str, ...]  # Kinds of its documents, equally likely.


def _grow(hops: int) -> tuple[Stage, ...]:
  """Returns a curriculum of chains that grow to so many steps."""
  kinds = tuple(f'hops_{steps}' for steps in range(hops + 1))
  shares = [1, *range(1, hops), hops + 1]
  return tuple(
    Stage(64 if steps else 32, share, kinds[: steps + 1])
    for steps, share in enumerate(shares)
  )


CURRICULA = {'hops_3': _grow(3), 'hops_4': _grow(4)}
DEFAULT = 'hops_3'


def document(rng: np.random.Generator, stage: Stage) -> packing.Piece:
  """Draws one training document, with weight 1 on each answer and 0 elsewhere.

  It ends in its last answer.
  """
  kind = stage.kinds[int(rng.integers(len(stage.kinds)))]
  problem = problems.draw_many(rng, kind, stage.length - 1)
  row = write(rng, problem, stage.length - 1)
  weights = np.zeros(stage.length, np.float32)
  weights[stage.length - 2 * len(problem.asked) + 1 :: 2] = 1
  return packing.Piece(
    np.append(row, np.int32(problem.asked[-1][1])), weights=weights
  )
