"""The needle task: what a row holds, and what the grid asks and counts."""

import numpy as np
import pytest

from kaiju_jax.tasks.needle import questions as needle

TASK = needle.Pairs()


def scan(row):
  """The answer as a reader finds it: the query's key earlier, what follows."""
  places = [i for i, token in enumerate(row[:-1]) if token == row[-1]]
  assert len(places) == 1
  return places[0] + 1, row[places[0] + 1]


@pytest.mark.parametrize('distractors', [0, 1, 8])
@pytest.mark.parametrize('length', [32, 256])
def test_needle_lies_at_its_distance_and_answers_the_question(
  length, distractors
):
  rng = np.random.default_rng(0)
  nearest, farthest = TASK.distances(length)
  for distance in (nearest, 2, 7, farthest - 1, farthest):
    drawn = TASK.questions(rng, 20, length, distance, distractors)
    assert drawn.tokens_BL.shape == (20, length)
    for row, answer in zip(drawn.tokens_BL, drawn.answers_BA[:, 0]):
      place, value = scan(row)
      assert length - 1 - place == distance
      assert value == answer


def test_every_needle_is_whole_and_all_keys_and_values_differ():
  rng = np.random.default_rng(1)
  # The tightest row of the grid, and a needle in an odd place.
  for distance in range(1, 30):
    for row in TASK.questions(rng, 10, 32, distance, 8).tokens_BL:
      assert row[0] == needle.BOS and np.all(row[1:] != needle.BOS)
      keys = [i for i in range(31) if row[i] in needle.KEYS]
      values = [i for i in range(32) if row[i] in needle.VALUES]
      assert [i + 1 for i in keys] == values
      assert len({row[i] for i in keys}) == len(keys) == 9
      assert len({row[i] for i in values}) == 9


def test_vocabulary_is_divided_without_rest():
  kinds = [needle.BOS, *needle.KEYS, *needle.VALUES, *needle.FILLER]
  assert kinds == list(range(needle.VOCAB_SIZE))


def test_scatter_makes_every_arrangement_equally_often():
  # Two pairs in five tokens: 01.23 is not the same as 0.12.3; three ways.
  starts = needle.scatter(np.random.default_rng(0), 6000, 2, 2, 5)
  found, counts = np.unique(starts, axis=0, return_counts=True)
  assert found.tolist() == [[0, 2], [0, 3], [1, 3]]
  np.testing.assert_allclose(counts / 6000, 1 / 3, atol=0.03)


def test_scatter_never_crosses_the_wall_and_favours_no_side():
  # Two pairs in seven tokens, divided 3 | 4.
  starts = needle.scatter(np.random.default_rng(0), 5000, 2, 2, 7, wall=3)
  found, counts = np.unique(starts, axis=0, return_counts=True)
  assert found.tolist() == [
    [0, 3], [0, 4], [0, 5], [1, 3], [1, 4], [1, 5], [3, 5]
  ]  # fmt: skip
  np.testing.assert_allclose(counts / 5000, 1 / 7, atol=0.03)


def test_scatter_refuses_what_does_not_fit():
  rng = np.random.default_rng(0)
  with pytest.raises(ValueError, match='3 needles of 2 tokens do not fit'):
    needle.scatter(rng, 1, 3, 2, 5)
  with pytest.raises(ValueError, match='divided at 3'):
    needle.scatter(rng, 1, 3, 2, 6, wall=3)


def test_fits_is_exact():
  # 8 distractors need 16 tokens beside the needle, 17 where it lies oddly.
  rng = np.random.default_rng(0)
  assert TASK.fits(21, 8)
  for distance in range(1, 19):
    TASK.questions(rng, 2, 21, distance, 8)
  assert not TASK.fits(20, 8)
  with pytest.raises(ValueError, match='do not fit'):
    for distance in range(1, 18):
      TASK.questions(rng, 2, 20, distance, 8)


def test_a_guesser_is_right_by_chance():
  rng = np.random.default_rng(2)
  drawn = TASK.questions(rng, 20_000, 32, 9, 8)
  among_all = rng.choice(needle.VALUES, 20_000)
  assert np.mean(among_all == drawn.answers_BA[:, 0]) == pytest.approx(
    needle.CHANCE, abs=0.004
  )
  values = np.sort(drawn.tokens_BL, axis=1)
  values = values[(values > 64) & (values < 129)].reshape(20_000, 9)
  some = rng.permuted(values, axis=1)[:, 0]
  assert np.mean(some == drawn.answers_BA[:, 0]) == pytest.approx(
    1 / 9, abs=0.01
  )


def test_grid_spans_depths_and_lengths():
  grid = needle.grid(TASK, 256, 64)
  assert sorted({cell.length for cell in grid}) == [32, 64, 128, 256, 512]
  assert len(grid) == 5 * 2 * 11
  row = [cell for cell in grid if cell[0] == 256 and cell.distractors == 8]
  assert [cell.depth for cell in row] == [10.0 * i for i in range(11)]
  assert [cell.distance for cell in row] == [
    253, 228, 203, 177, 152, 127, 102, 77, 51, 26, 1
  ]  # fmt: skip
  assert {cell.count for cell in grid if cell.length <= 256} == {64}
  assert {cell.count for cell in grid if cell.length == 512} == {16}


def test_curve_asks_512_near_questions_and_goes_to_the_end():
  curve = [c for c in needle.curve(TASK, 256, 64) if c.distractors == 8]
  near = [cell for cell in curve if cell.distance <= 8]
  assert sum(cell.count for cell in near) == 512
  assert [cell.distance for cell in curve][7:11] == [8, 9, 11, 14]
  assert curve[-1].distance == 253
  assert curve[-1].depth == 0.0 and curve[0].depth == 100.0


def test_lengths_that_do_not_hold_the_needles_are_left_out():
  grid = needle.grid(TASK, 64, 4)
  assert {c.length for c in grid if c.distractors == 1} == {8, 16, 32, 64, 128}
  assert {c.length for c in grid if c.distractors == 8} == {32, 64, 128}


def test_cells_are_asked_once():
  cells = needle.cells(TASK, 256, 64)
  keys = [(cell.length, cell.distance, cell.distractors) for cell in cells]
  assert len(keys) == len(set(keys))
  # Every cell of the grid and of the curve is there.
  grid = needle.grid(TASK, 256, 64) + needle.curve(TASK, 256, 64)
  assert set(keys) == {(c.length, c.distance, c.distractors) for c in grid}


def test_most_questions_are_asked_where_verdicts_look():
  counts = {64: set(), 16: set(), 8: set()}
  for cell in needle.cells(TASK, 256, 64):
    counts[cell.count].add(cell)
  quoted = [c for c in counts[64] if c.length == 256 and c.distractors == 8]
  assert len(quoted) == len(counts[64])
  # Eleven depths, and distances 1 to 8, the first of which is the last depth.
  distances = sorted(cell.distance for cell in quoted)
  assert distances == [
    1, 2, 3, 4, 5, 6, 7, 8, 26, 51, 77, 102, 127, 152, 177, 203, 228, 253
  ]  # fmt: skip
  beyond = {c for c in counts[8] if c.length == 512}
  assert len(beyond) == 2 * 11
  assert {c.length for c in counts[8] - beyond} == {256}  # The curve's far end.
  assert {c.count for c in needle.cells(TASK, 256, 1)} == {1}


def test_ask_counts_right_answers_of_each_cell():
  cells = [
    needle.Cell(32, 0.0, 29, 1, 10),
    needle.Cell(64, 0.0, 61, 1, 7),
    needle.Cell(32, 100.0, 1, 1, 5),
  ]
  shapes = []

  def right_where_near(tokens_BL, count):
    shapes.append(tokens_BL.shape)
    assert count == 1
    answers = [scan(row) for row in tokens_BL]
    return np.array(
      [[v if tokens_BL.shape[1] - 1 - p < 9 else 0] for p, v in answers]
    )

  found = dict(needle.ask(right_where_near, TASK, cells, [0]))
  assert found == {cells[0]: 0.0, cells[1]: 0.0, cells[2]: 1.0}
  assert shapes == [(15, 32), (7, 64)]


def test_questions_depend_on_the_seeds_and_the_cell_alone():
  cells = [needle.Cell(32, 0.0, d, 8, 3) for d in (3, 4)]

  def seen(cells, *seeds):
    rows = []

    def answer(tokens_BL, count):
      rows.extend(tokens_BL.tolist())
      return np.zeros((len(tokens_BL), count), int)

    for cell in cells:
      list(needle.ask(answer, TASK, [cell], seeds))
    return rows

  first = seen(cells, 0, 0)
  assert seen(cells[::-1], 0, 0) == first[3:] + first[:3]
  assert seen(cells, 1, 0) != first and seen(cells, 0, 1) != first
  assert [r[-1] for r in first[:3]] != [r[-1] for r in first[3:]]


def test_all_tokens_of_an_answer_must_be_right():
  class Two(needle.Pairs):
    def questions(self, rng, count, *_):
      tokens = np.zeros((count, 4), np.int32)
      return needle.Questions(tokens, np.array([[1, 2]] * count))

  answers = np.array([[1, 2], [1, 3], [2, 2], [1, 2]])
  ((_, accuracy),) = needle.ask(
    lambda *_: answers, Two(), [needle.Cell(4, 0.0, 1, 0, 4)], [0]
  )
  assert accuracy == 0.5


def test_accuracy_counts_each_question_once():
  cells = [needle.Cell(32, 0.0, 29, 1, 3), needle.Cell(64, 0.0, 61, 1, 1)]

  def answer(tokens_BL, count):
    if tokens_BL.shape[1] == 64:
      return np.full((len(tokens_BL), count), -1)
    return np.array([[scan(row)[1]] for row in tokens_BL])

  assert needle.accuracy(answer, TASK, cells, [0]) == 0.75
