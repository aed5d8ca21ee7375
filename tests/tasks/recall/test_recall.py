"""Recall problems: a solver that reads tokens alone finds every answer."""

import collections
import re

import numpy as np
import pytest

from kaiju_jax.data import packing
from kaiju_jax.tasks.needle import curriculum
from kaiju_jax.tasks.recall import problems
from kaiju_jax.tasks.recall import rows
from kaiju_jax.tasks.recall import text

LENGTHS = 64, 96, 128
CELLS = [(k, n) for k in problems.KINDS for n in LENGTHS if problems.fits(k, n)]


def drawn(kind, length, seed=0):
  rng = np.random.default_rng(seed)
  problem = problems.draw(rng, kind, length)
  return problem, rows.write(rng, problem, length)


def solve(kind, row):
  """Returns the answers of a row; it reads tokens, and knows the kind."""
  row = [int(one) for one in row]
  asked = {'multi_value': 4, 'multi_query': 4}.get(kind, 1)
  asked = 3 if kind.endswith('_words') else asked
  tail = row[len(row) + 1 - 2 * asked :]
  body, cues = row[: len(row) + 1 - 2 * asked], tail[::2]
  if kind.endswith('_words'):
    counts = collections.Counter(x for x in body if 65 <= x <= 128)
    top = [word for word, _ in counts.most_common(3)]
    ordered = [*sorted(counts.values(), reverse=True), 0]
    assert ordered[2] > ordered[3]  # No ties.
    if kind == 'frequent_words':
      assert len({counts[word] for word in top}) == 3
      return top
    return sorted(top, key=body.index)
  defined = collections.defaultdict(list)
  at = 0
  while at < len(body):
    if 1 <= body[at] <= 64:
      defined[body[at]].append(body[at + 1])
      at += 1
    at += 1
  if kind == 'multi_value':
    return defined[cues[0]]
  answers = []
  for cue in cues:
    while cue <= 64:
      (cue,) = defined[cue]
    answers.append(cue)
  return answers


@pytest.mark.parametrize(('kind', 'length'), CELLS)
def test_a_solver_that_reads_tokens_finds_all_answers(kind, length):
  asked = rows.questions(np.random.default_rng(1), kind, 20, length)
  assert asked.tokens_BL.shape == (20, length)
  for row, answers in zip(asked.tokens_BL, asked.answers_BA):
    found = solve(kind, row)
    assert found == answers[::2].tolist()
    assert (answers[1::2] == rows.NOT_ASKED).all()
    # All but the last answer stand behind their cues.
    tail = row[len(row) + 1 - 2 * len(found) :]
    assert tail[1::2].tolist() == found[:-1]
    assert row[0] == problems.BOS


@pytest.mark.parametrize('kind', problems.KINDS)
def test_answers_do_not_leak(kind):
  for seed in range(20):
    problem, row = drawn(kind, 128, seed)
    names = [one[0] for one in problem.statements if len(one) == 2]
    values = [one[1] for one in problem.statements if len(one) == 2]
    values = [one for one in values if one in problems.VALUES]
    assert len(set(values)) == len(values)
    cues = [cue for cue, _ in problem.asked]
    if kind == 'multi_value':
      assert names.count(cues[0]) == len(cues) == 4
      names = [cues[0], *(x for x in names if x != cues[0])]
    assert len(set(names)) == len(names)
    hops = problems.hops_of(kind)
    if hops is not None:
      assert len(names) == problems.CHAINS * (hops + 1)
      # A variable is defined before it is read, and read at most once.
      read = [x for _, x in problem.statements if x in problems.NAMES]
      assert len(set(read)) == len(read) and cues[0] not in read
      for number, (_, one) in enumerate(problem.statements):
        assert one in problems.VALUES or one in names[:number]
    if not kind.endswith('_words') and kind != 'multi_value':
      # The last question's answer stands once in the row.
      assert row.tolist().count(problem.asked[-1][1]) == 1


def test_steps_are_as_many_as_named():
  for hops in range(problems.MOST_HOPS + 1):
    problem, _ = drawn(f'hops_{hops}', 128)
    read, name, steps = dict(problem.statements), problem.asked[0][0], 0
    while read[name] in problems.NAMES:
      name, steps = read[name], steps + 1
    assert steps == hops


def test_asked_statements_lie_anywhere():
  # Ten pairs in 62 tokens: each tenth of the row holds the asked one as often.
  asked = rows.questions(np.random.default_rng(0), 'multi_key_8', 3000, 64)
  place = np.array(
    [row.tolist().index(row[-1]) for row in asked.tokens_BL[:, :]]
  )
  assert place.min() == 1 and place.max() == 61
  share = np.histogram(place, bins=6, range=(1, 62))[0] / 3000
  np.testing.assert_allclose(share, 1 / 6, atol=0.03)


def test_chains_are_interleaved_in_every_way():
  rng, found = np.random.default_rng(0), collections.Counter()
  for _ in range(3000):
    problem = problems._draw_hops(rng, 64, 1, chains=2)
    found[tuple(x in problems.VALUES for _, x in problem.statements)] += 1
  # Values first and second, or a whole chain before the other: 4 and 2 of 6.
  assert found[True, True, False, False] / 3000 == pytest.approx(
    2 / 3, abs=0.04
  )
  assert found[True, False, True, False] / 3000 == pytest.approx(
    1 / 3, abs=0.04
  )
  assert len(found) == 2


@pytest.mark.parametrize(('kind', 'row_chance'), [
  ('multi_key_8', 1 / 9), ('multi_key_32', 1 / 33), ('hops_3', 1 / 4),
  ('multi_value', 1 / 12), ('common_words', 1 / 27),
])  # fmt: skip
def test_guesses_are_right_by_chance(kind, row_chance):
  rng = np.random.default_rng(3)

  def among_all(tokens_BL, count):
    return rng.choice(problems.VALUES, (len(tokens_BL), count))

  def among_row(tokens_BL, count):
    return np.stack([
      rng.choice(np.unique(row[np.isin(row, problems.VALUES)]), count)
      for row in tokens_BL
    ])  # fmt: skip

  cell = [rows.Cell(kind, 96, 800)]
  [(_, _, share)] = rows.ask(among_all, cell, (0,))
  assert share == pytest.approx(1 / len(problems.VALUES), abs=0.02)
  [(_, right, share)] = rows.ask(among_row, cell, (0,))
  assert share == pytest.approx(row_chance, abs=0.06)
  assert drawn(kind, 96)[0].candidates == round(1 / row_chance)
  if kind == 'multi_value':
    assert right / 800 < 0.02


def test_a_model_that_solves_is_right_and_cells_have_their_own_questions():
  def answer(tokens_BL, count):
    found = np.zeros((len(tokens_BL), count), np.int32)
    for row, one in zip(tokens_BL, found):
      one[::2] = solve(answer.kind, row)
    return found

  for kind in problems.KINDS:
    answer.kind = kind
    cells = rows.cells([kind], 64, 8)
    assert {cell.length for cell in cells} <= {32, 64, 128}
    for cell, right, share in rows.ask(answer, cells, (0, 0)):
      assert right == cell.count and share == 1
      assert cell.count == (2 if cell.length == 128 else 8)


def test_bad_kinds_and_lengths_are_refused():
  rng = np.random.default_rng(0)
  with pytest.raises(ValueError, match="kind='hop': must be one of multi_key"):
    problems.draw(rng, 'hop', 64)
  for kind in problems.KINDS:
    least = min(n for n in range(4, 128) if problems.fits(kind, n))
    rows.write(rng, problems.draw(rng, kind, least), least)
    with pytest.raises(ValueError, match=f'length={least - 1}: '):
      problems.draw(rng, kind, least - 1)
  with pytest.raises(ValueError, match='length=11: must be at least 12'):
    problems.draw_many(rng, 'hops_4', 11)


@pytest.mark.parametrize('kind', ['hops_0', 'hops_2', 'hops_4', 'multi_value'])
def test_documents_weigh_their_answers_alone(kind):
  rng = np.random.default_rng(0)
  stage = rows.Stage(64, 1, (kind,))
  for _ in range(20):
    piece = rows.document(rng, stage)
    assert len(piece.tokens) == len(piece.weights) == 64
    at = np.flatnonzero(piece.weights)
    answers, cues = piece.tokens[at], piece.tokens[at - 1]
    assert at[-1] == 63 and np.isin(answers, problems.VALUES).all()
    if kind == 'multi_value':
      continue
    assert len(set(cues)) == len(cues) and len(at) >= 2
    for cue, answer in zip(cues, answers):
      row = np.append(piece.tokens[: at[0] - 1], cue)
      assert solve(kind, row) == [answer]


def test_a_curriculum_has_rows_of_its_stages():
  stages = rows.CURRICULA[rows.DEFAULT]
  drawn = curriculum.Rows(50, 64, 1, stages, rows.document)
  assert drawn.stage(0) == stages[0] and drawn.stage(49) == stages[-1]
  batch = packing.stack([drawn[0], drawn[49]])
  assert batch.tokens_BL.shape == (2, 64)
  assert not np.array_equal(drawn[49].tokens, drawn.unseen()[49].tokens)
  np.testing.assert_array_equal(drawn[7].tokens, drawn[7].tokens)


def read_back(kind, prompt):
  """Parses English: the statements in their order, and the cues."""
  body, _, ask = prompt.partition('\n\n')
  if kind.endswith('_words'):
    return [(word,) for word in body[:-1].split(', ')], []
  if kind.startswith('hops'):
    pairs = re.findall(r'Let (\w+) be (\w+)\.', body)
    return pairs, re.findall(r'number is (\w+)\?', ask)
  pairs = re.findall(r'The magic number for (\w+) is (\w+)\.', body)
  return pairs, [x for x in re.findall(r'\w+', ask) if x in text.CITIES]


@pytest.mark.parametrize(('kind', 'length'), CELLS)
def test_text_and_tokens_carry_the_same_problem(kind, length):
  for seed in range(5):
    problem, row = drawn(kind, length, seed)
    found = text.write(problem, row)
    pairs, cues = read_back(kind, found.prompt)
    names = text.VARIABLES if kind.startswith('hops') else text.CITIES
    values = text.NOUNS if kind.endswith('_words') else text.NUMBERS
    spoken = dict(zip(problems.VALUES, values)) | dict(
      zip(problems.NAMES, names)
    )
    # In the order of the row, which is that of the statements.
    wanted = [tuple(spoken[x] for x in one) for one in problem.statements]
    assert pairs == wanted
    if not kind.endswith('_words'):
      asked = list(dict.fromkeys(spoken[cue] for cue, _ in problem.asked))
      assert cues == asked
    assert found.answers == tuple(spoken[x] for _, x in problem.asked)
    assert found.answers == tuple(spoken[x] for x in solve(kind, row))
    assert len(found.candidates) == problem.candidates


def test_words_of_the_text_are_different():
  for names in (text.CITIES, text.VARIABLES, text.NUMBERS, text.NOUNS):
    assert len(set(names)) == len(names) == 64
  assert {len(one) for one in text.NUMBERS} == {5}


def test_replies_count_by_what_they_name_first():
  question = text.Question('', ('17', '23'), frozenset({'17', '23', '42'}))
  assert text.score(question, 'They are 23 and 17.') == (True, 1.0)
  assert text.score(question, '17, and 17 again') == (False, 0.5)
  assert text.score(question, '99. Then 23, 17.') == (True, 1.0)
  # Whoever names all values has not answered, nor who names other words.
  assert text.score(question, '42, 17, 23') == (False, 0.5)
  assert text.score(question, '1723') == (False, 0.0)
  assert text.score(question, '') == (False, 0.0)
  word = text.Question('', ('Lamp'.lower(),), frozenset({'lamp', 'hat'}))
  assert text.score(word, 'Lamp!') == (True, 1.0)
