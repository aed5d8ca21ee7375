"""The needle in a haystack: a synthetic task, and its grid of questions.

A needle is two tokens, `key value`, at a random place in random filler. The
query is the key once more, as the last token; the answer is the value. The
vocabulary is BOS, 64 keys, 64 values, and filler; chance is one value in 64.
The keys of a row differ, and so do its values. A model that answers with any
value of the row is right one time in two with one distractor (another needle),
and one time in nine with eight. So eight distractors test whether the model
matches keys.

A question's needle is placed by its *distance*, the query's index less the
value's (1: adjacent), or by its *depth*: 0 % is right behind BOS, 100 % right
before the question.

The sources compare sliding windows with full attention on needles and give no
task: this one and its grid are ours. From the initialization that suggests
induction (`evaluation/induction.py`) the results are about reach, the distance
over which layers carry information, and not about how induction emerges.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import itertools
import math
from typing import NamedTuple
from typing import Protocol

import numpy as np

BOS = 0
KEYS = range(1, 65)
VALUES = range(65, 129)
FILLER = range(129, 256)
VOCAB_SIZE = 256
CHANCE = 1 / len(VALUES)

DEPTHS = tuple(range(0, 101, 10))
DISTRACTORS = (1, 8)
NEAREST = 8


def scatter(
  rng: np.random.Generator,
  rows: int,
  count: int,
  size: int,
  room: int,
  wall: int = 0,
) -> np.ndarray:
  """Draws places for things of equal size that may not overlap.

  Every arrangement is equally likely.

  Args:
    rng: numpy's generator.
    rows: number of independent draws.
    count: things per row.
    size: tokens per thing.
    room: tokens in which the things may lie.
    wall: tokens before a boundary across which no thing may lie.

  Returns:
    int64[rows, count], the first token of each thing, ascending.

  Raises:
    ValueError: the room is too small.
  """
  # The number of arrangements with 0, 1, … things before the wall.
  ways = [
    _ways(before, size, wall) * _ways(count - before, size, room - wall)
    for before in range(count + 1)
  ]
  if not any(ways):
    raise ValueError(
      f'{count} needles of {size} tokens do not fit into {room} tokens'
      f' (divided at {wall}); ask for fewer distractors or a longer row.'
    )
  starts = np.empty((rows, count), np.int64)
  drawn = rng.choice(count + 1, rows, p=[way / sum(ways) for way in ways])
  for before in np.unique(drawn):
    here = drawn == before
    draws = int(np.sum(here))
    starts[here, :before] = _arrange(rng, draws, before, size, wall)
    starts[here, before:] = wall + _arrange(
      rng, draws, count - before, size, room - wall
    )
  return starts


def _ways(count: int, size: int, room: int) -> int:
  """Returns in how many ways things fit into a room without a wall."""
  slack = room - count * size
  return math.comb(slack + count, count) if slack >= 0 else 0


def _arrange(rng, rows: int, count: int, size: int, room: int) -> np.ndarray:
  """Draws a way per row: things shrink to one token, and grow again."""
  order = rng.random((rows, room - count * (size - 1))).argsort(axis=1)
  order = np.sort(order[:, :count], axis=1)
  return order + (size - 1) * np.arange(count)[None, :]


def distinct(
  rng: np.random.Generator, rows: int, count: int, among: Sequence[int]
) -> np.ndarray:
  """Draws `count` different members of `among` for each row, [rows, count]."""
  order = rng.random((rows, len(among))).argsort(axis=1)
  return np.asarray(among)[order[:, :count]]


class Questions(NamedTuple):
  """Rows that end in a question."""

  # int32; the answer except its last token is the row's end.
  tokens_BL: np.ndarray
  # int32, the right predictions at the last A positions.
  answers_BA: np.ndarray


class Task(Protocol):
  """A task for the grid: `Pairs`, `letters.Letters` or `text.Sentences`."""

  chance: float  # Accuracy of a guess.

  def distances(self, length: int) -> tuple[int, int]:
    """Returns the smallest and the largest distance in a row."""

  def fits(self, length: int, distractors: int) -> bool:
    """Returns whether a row holds so many distractors at every distance."""

  def questions(
    self,
    rng: np.random.Generator,
    count: int,
    length: int,
    distance: int,
    distractors: int,
  ) -> Questions:
    """Draws `count` questions with the needle at `distance`."""


class Pairs:
  """The synthetic task: a needle is two tokens, an answer one."""

  chance = CHANCE
  keys, values, bos = KEYS, VALUES, BOS

  def distances(self, length: int) -> tuple[int, int]:
    return 1, length - 3

  def fits(self, length: int, distractors: int) -> bool:
    # If the needle leaves odd rooms on both sides, one token stays unused.
    return 2 * distractors + 1 <= length - 4

  def questions(
    self,
    rng: np.random.Generator,
    count: int,
    length: int,
    distance: int,
    distractors: int,
  ) -> Questions:
    tokens_BL = self.fill(rng, (count, length))
    keys = distinct(rng, count, 1 + distractors, self.keys)
    values = distinct(rng, count, 1 + distractors, self.values)
    before = length - 3 - distance  # Tokens between BOS and the needle.
    others = scatter(rng, count, distractors, 2, length - 4, wall=before)
    others += 1 + 2 * (others >= before)
    needle = np.full((count, 1), 1 + before)
    starts = np.concatenate([needle, others], axis=1)
    np.put_along_axis(tokens_BL, starts, keys, axis=1)
    np.put_along_axis(tokens_BL, starts + 1, values, axis=1)
    tokens_BL[:, 0] = self.bos
    tokens_BL[:, -1] = keys[:, 0]
    return Questions(tokens_BL, values[:, :1].astype(np.int32))

  def fill(self, rng: np.random.Generator, shape: tuple[int, int]):
    """Draws the tokens between needles, int32."""
    return rng.integers(FILLER.start, FILLER.stop, shape, np.int32)


class Cell(NamedTuple):
  """A cell of the grid: questions with equal settings."""

  length: int  # Tokens per row.
  depth: float  # The needle's depth in per cent.
  distance: int  # The needle's distance in tokens.
  distractors: int  # Other needles in the row.
  count: int  # Number of questions.


class Record(NamedTuple):
  """The result of one trained arm (one variant of the model) in one cell."""

  arm: str  # Name of the arm.
  seed: int  # The seed of the arm's training.
  # The cell's values.
  length: int
  depth: float
  distance: int
  distractors: int
  accuracy: float  # Fraction of right answers.
  count: int  # Number of questions.


def cells(task: Task, length: int, count: int) -> list[Cell]:
  """Returns the cells of the grid and the curve, each once.

  The verdicts quote the trained length with most distractors, at all depths and
  at the nearest distances; each of those cells has `count` questions. Other
  cells of the trained length or shorter have at most a quarter of them. Longer
  ones have an eighth, because a question costs twice as much there.
  """
  fewer, fewest = max(1, count // 4), max(1, count // 8)
  merged = {}
  for cell in grid(task, length, fewer, fewest) + curve(task, length, fewer):
    if _is_quoted(cell, task, length):
      cell = cell._replace(count=count)
    key = cell.length, cell.distance, cell.distractors
    first = merged.setdefault(key, cell)
    merged[key] = first._replace(count=max(first.count, cell.count))
  return list(merged.values())


def _is_quoted(cell: Cell, task: Task, length: int) -> bool:
  nearest, _ = task.distances(length)
  return (
    cell.length == length
    and cell.distractors == max(DISTRACTORS)
    and (cell.depth in DEPTHS or cell.distance < nearest + NEAREST)
  )


def grid(
  task: Task, length: int, count: int, beyond: int | None = None
) -> list[Cell]:
  """Returns the depth × length grid around a trained `length`.

  Lengths go from an eighth of the trained one to twice it, as far as they hold
  the needles.

  Args:
    task: the task.
    length: the trained length.
    count: questions per cell.
    beyond: questions per cell beyond the trained length; a quarter of `count`
      by default.
  """
  if beyond is None:
    beyond = max(1, count // 4)
  grid = []
  lengths = (length // 8, length // 4, length // 2, length, 2 * length)
  for tokens, distractors in itertools.product(lengths, DISTRACTORS):
    if not task.fits(tokens, distractors):
      continue
    nearest, farthest = task.distances(tokens)
    repeats = beyond if tokens > length else count
    for depth in DEPTHS:
      distance = farthest - round(depth / 100 * (farthest - nearest))
      grid.append(Cell(tokens, float(depth), distance, distractors, repeats))
  return grid


def curve(task: Task, length: int, count: int) -> list[Cell]:
  """Returns the curve along the distance at the trained length.

  It has the eight nearest distances with `count` questions each, then sixteen
  that are evenly spaced in their logarithm with half as many each.
  """
  nearest, farthest = task.distances(length)
  near = range(nearest, nearest + NEAREST)
  far = np.geomspace(nearest + NEAREST, farthest, 16).round().astype(int)
  curve = []
  for distractors in DISTRACTORS:
    if not task.fits(length, distractors):
      continue
    for distance in [*near, *far.tolist()]:
      depth = 100 * (farthest - distance) / (farthest - nearest)
      repeats = count if distance in near else max(1, count // 2)
      curve.append(
        Cell(length, round(depth, 2), distance, distractors, repeats)
      )
  return curve


def ask(
  answer: Callable[[np.ndarray, int], np.ndarray],
  task: Task,
  cells: Sequence[Cell],
  seeds: Sequence[int],
) -> Iterator[tuple[Cell, float]]:
  """Yields each cell with the fraction of its questions answered right.

  Args:
    answer: (tokens_BL, A) → the tokens [B, A] predicted at the last A
      positions; called once per length, with all questions of that length.
    task: draws the questions.
    cells: the cells; their order does not change the draws.
    seeds: the seeds of the questions. Arms that are compared get the same ones.
  """
  for _, group in itertools.groupby(
    sorted(cells, key=lambda cell: cell.length), lambda cell: cell.length
  ):
    group = list(group)
    drawn = [_draw(task, cell, seeds) for cell in group]
    tokens_BL = np.concatenate([q.tokens_BL for q in drawn])
    answers_BA = np.concatenate([q.answers_BA for q in drawn])
    predicted_BA = np.asarray(answer(tokens_BL, answers_BA.shape[1]))
    right_B = np.all(predicted_BA == answers_BA, axis=1)
    ends = np.cumsum([cell.count for cell in group])
    for cell, part in zip(group, np.split(right_B, ends[:-1])):
      yield cell, float(np.mean(part))


def accuracy(
  answer: Callable[[np.ndarray, int], np.ndarray],
  task: Task,
  cells: Sequence[Cell],
  seeds: Sequence[int],
) -> float:
  """Returns the fraction of all questions answered right; args as `ask`'s."""
  right = total = 0
  for cell, fraction in ask(answer, task, cells, seeds):
    right += fraction * cell.count
    total += cell.count
  return right / total


def _draw(task: Task, cell: Cell, seeds: Sequence[int]) -> Questions:
  rng = np.random.default_rng(
    (*seeds, cell.length, cell.distance, cell.distractors)
  )
  return task.questions(
    rng, cell.count, cell.length, cell.distance, cell.distractors
  )
