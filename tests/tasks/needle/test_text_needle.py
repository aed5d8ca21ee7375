"""Magic numbers in natural text: rows read back as a person would."""

import re

import numpy as np
import pytest

from kaiju_jax.data import config as data_config
from kaiju_jax.data import documents
from kaiju_jax.data import text
from kaiju_jax.data import tokenizer
from kaiju_jax.data.store import corpora
from kaiju_jax.tasks import registry as tasks
from kaiju_jax.tasks.needle import text as needle_text
from kaiju_jax.training import experiment as experiment_lib
from tests import toys

SENTENCE = re.compile(r' The magic number for ([A-Z][a-z]{5}) is (\d{5})\. ')
PROSE = 'it was a bright cold day in april and the clocks struck thirteen. ' * 9


def haystack_of(*texts):
  read = [documents.Document(str(i), (one,)) for i, one in enumerate(texts)]
  return needle_text.Haystack(text.corpus(read, tokenizer.Bytes()).tokens)


HAYSTACK = haystack_of(PROSE)


def read(tokens):
  return bytes(np.asarray(tokens, np.uint8)).decode()


@pytest.mark.parametrize('length, distractors', [(256, 1), (512, 8)])
def test_needle_lies_at_its_distance_and_answers_the_question(
  length, distractors
):
  task = needle_text.Sentences(HAYSTACK)
  rng = np.random.default_rng(0)
  nearest, farthest = task.distances(length)
  assert task.fits(length, distractors)
  for distance in (nearest, nearest + 1, 100, farthest - 1, farthest):
    drawn = task.questions(rng, 6, length, distance, distractors)
    assert drawn.tokens_BL.shape == (6, length)
    for row, answer in zip(drawn.tokens_BL, drawn.answers_BA):
      line = read(row)
      found = {m[1]: m for m in SENTENCE.finditer(line)}
      assert len(found) == 1 + distractors
      assert len({m[2] for m in found.values()}) == 1 + distractors
      digits = read(answer)
      # All digits but the last are given; each is predicted where it is due.
      question = f' The magic number for {{}} is {digits[:-1]}'
      city = line[-len(question.format('London')) :].split()[4]
      assert line.endswith(question.format(city))
      assert found[city][2] == digits
      query = len(line) - len(digits)
      assert query - found[city].start(2) == distance


def test_nearest_ends_right_before_the_question_and_farthest_starts_the_row():
  task = needle_text.Sentences(HAYSTACK)
  rng = np.random.default_rng(1)
  nearest, farthest = task.distances(256)
  (near,) = task.questions(rng, 1, 256, nearest, 0).tokens_BL
  assert SENTENCE.search(read(near)).end() == 256 - 32 - 4
  (far,) = task.questions(rng, 1, 256, farthest, 0).tokens_BL
  assert SENTENCE.search(read(far)).start() == 1


def test_haystack_is_the_text_and_nothing_else():
  task = needle_text.Sentences(HAYSTACK)
  drawn = task.questions(np.random.default_rng(2), 8, 512, 200, 8)
  for row in drawn.tokens_BL:
    assert row[0] == 0 and np.all(row[1:] != 0)
    body = read(row[1:-36])
    left = SENTENCE.sub('', body)
    assert len(left) == len(body) - 9 * 39
    # Text cut anywhere, which starts again where it is too short.
    assert left in f'\n{PROSE}' * 2


def test_documents_are_divided_by_newlines():
  cut = haystack_of('one', 'two').cut(np.random.default_rng(0), 1, 16)[0]
  assert re.search('\none\ntwo\n', read(cut))


def test_fits_is_honest():
  task = needle_text.Sentences(HAYSTACK)
  rng = np.random.default_rng(0)
  length = next(n for n in range(100, 600) if task.fits(n, 8))
  nearest, farthest = task.distances(length)
  for distance in range(nearest, farthest + 1):
    task.questions(rng, 1, length, distance, 8)
  assert not task.fits(64, 1)


def documents_of(row):
  for source in range(row.source.max() + 1):
    here = row.source == source
    yield read(row.tokens[here]), row.weight[here]


def test_training_rows_ask_for_what_they_hold():
  rows = needle_text.rows(HAYSTACK, count=80, length=640)
  lengths = [len(next(documents_of(rows[i]))[0]) for i in (0, 39, 40, 59, 60)]
  assert lengths == [160, 160, 320, 320, 640]
  asked_most = 0
  for index in range(0, 80, 7):
    for line, weight in documents_of(rows[index]):
      found = list(SENTENCE.finditer(line))
      half = len(found) // 2
      needles, questions = found[:half], found[half:]
      asked_most = max(asked_most, half)
      assert half >= 1
      assert sorted(m[0] for m in needles) == sorted(m[0] for m in questions)
      assert questions[-1].end() == len(line)
      expected = np.ones(len(line))
      expected[0] = 0
      for match in needles:
        expected[match.start(2) : match.end(2)] = 0
      for match in questions:
        expected[match.start(2) : match.end(2)] = needle_text.ANSWER_WEIGHT
      np.testing.assert_array_equal(weight, expected)
  assert asked_most > 1


def test_rows_are_pure_in_seed_and_number():
  rows = needle_text.rows(HAYSTACK, count=8, length=640, seed=3)
  again = needle_text.rows(HAYSTACK, count=8, length=640, seed=3)
  np.testing.assert_array_equal(rows[5].tokens, again[5].tokens)
  other = needle_text.rows(HAYSTACK, count=8, length=640, seed=4)
  assert np.any(rows[5].tokens != other[5].tokens)
  assert np.any(rows[5].tokens != rows[6].tokens)


def test_what_has_no_rows_or_questions_is_refused():
  with pytest.raises(ValueError, match=r'data\.length=512: .* 624'):
    needle_text.rows(HAYSTACK, count=8, length=512)
  with pytest.raises(ValueError, match=r"data\.task='text': has no questions"):
    tasks.questions(data_config.DataConfig(task='text'))


def test_all_cities_have_six_letters():
  assert {len(city) for city in needle_text.CITIES} == {6}
  assert len(set(needle_text.CITIES)) == len(needle_text.CITIES) >= 64


def experiment_of(**data):
  return experiment_lib.Experiment(
    data=data_config.DataConfig(task='needle_text', length=640, **data)
  )


@pytest.mark.parametrize('held_out', [0.25, 0.0])
def test_questions_are_asked_in_the_last_of_the_text(tmp_path, held_out):
  (tmp_path / 'a.txt').write_text('train ' * 500)
  # The last quarter of both begins a byte into this file.
  (tmp_path / 'b.txt').write_text('asked ' * 167)
  experiment = experiment_of(path=str(tmp_path), held_out=held_out)
  rows = tasks.rows(experiment)
  trained = ''.join(read(rows[index].tokens) for index in range(20))
  task = tasks.questions(experiment.data)
  question_text = ''.join(
    read(row)
    for row in task.questions(
      np.random.default_rng(0), 20, 256, 60, 1
    ).tokens_BL
  )
  assert 'train' in trained and 'asked' in question_text
  assert ('train' in question_text) == ('asked' in trained) == (held_out == 0)


def test_any_python_carries_a_haystack():
  config = data_config.DataConfig(path='', held_out=0.0)
  corpus, _ = corpora.load(config)
  training, unseen = needle_text.haystacks(corpus, 0.05)
  rng = np.random.default_rng(0)
  for haystack in (training, unseen):
    (cut,) = haystack.cut(rng, 1, 2000)
    assert len(np.unique(cut)) > 30


@pytest.mark.parametrize(
  'change, message',
  [
    ({'data.tokenizer': 'a.json'}, r"data\.tokenizer='a\.json'"),
    ({'model.vocab_size': 255}, r'model\.vocab_size=255: .* 256'),
    ({'model.max_length': 1279}, r'model\.max_length=1279: .* 1280'),
    ({'data.path': '/nowhere'}, r'/nowhere'),
  ],
)
def test_what_does_not_fit_is_refused(change, message):
  with pytest.raises((ValueError, OSError), match=message):
    tasks.rows(toys.change(experiment_of(), change))
