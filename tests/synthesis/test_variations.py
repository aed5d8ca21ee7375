"""What an author asks its generator, held to a generator that obeys rules."""

import dataclasses
import json
import re

import numpy as np
import pytest

from kaiju_jax.data import documents
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.synthesis import settings as settings_lib
from kaiju_jax.synthesis import variations

TOKENIZER = tokenizer_lib.Bytes()
PASSAGES = [
  variations.Passage('a', 'Ada owns the number 17.'),
  variations.Passage('b', 'Bo owns the number 4.'),
]


class Obedient:
  """Asks for the number, and answers with the passage's, if there is one.

  Where the draw's seed is odd, the drawn answer is 99. An answer's tokens are
  worth −1 nat each below a passage that holds the answer, −3 elsewhere.
  """

  def __init__(self, question='Which number is it?'):
    self.question = question
    self.prompts = []

  def generate(self, requests):
    return [self._result(one) for one in requests]

  def _result(self, request):
    prompt = TOKENIZER.decode(request.tokens)
    self.prompts.append(prompt)
    text, reason, scores = '', 'length', None
    if request.scores_prompt:
      answer = prompt.rpartition('\nA:')[2].strip()
      passage = prompt.partition('\n\nQ:')[0]
      value = -1.0 if answer in passage else -3.0
      scores = np.full(len(request.tokens) - 1, value, np.float32)
    elif prompt.endswith('\n\nQ:'):
      text = f' {self.question}'
      reason = 'stop_string' if request.stop_strings == ('\nA:',) else 'length'
    elif prompt.endswith('\nA:'):
      greedy = request.sampling.temperature == 0
      found = re.findall(r'\d+', prompt)
      odd = request.sampling.seed % 2 and not greedy
      text = ' 99' if odd or not found else f' {found[0]}'
      reason = 'stop_string' if request.stop_strings == ('\n',) else 'length'
    return request_lib.Result(
      np.zeros(0, np.int32), text, None, scores, reason, None
    )


def author(generator, **settings):
  settings = settings_lib.Settings(variations=6, **settings)
  return variations.Author(generator, TOKENIZER, settings)


def test_questions_answers_and_scores_come_from_the_right_prompts():
  generator = Obedient()
  first, second = author(generator).write(PASSAGES)
  assert [one.number for one in first] == list(range(6))
  for number, own in ('17', first), ('4', second):
    for one in own:
      assert one.question == 'Which number is it?'
      assert one.answer == ('99' if one.seed % 2 else number)
      assert one.again == number
      tokens = len(f' {one.answer}\n')
      is_in_passage = one.answer == number
      assert one.informed == (-1.0 if is_in_passage else -3.0) * tokens
      assert one.uninformed == -3.0 * tokens
      assert one.gain == (2.0 * tokens if is_in_passage else 0.0)
  assert {one.seed % 2 for one in first + second} == {0, 1}
  # Nothing is asked of a passage with another passage in sight.
  assert not any('Ada' in p and 'Bo' in p for p in generator.prompts)


def test_a_seed_depends_on_seed_name_and_number_alone():
  (alone,) = author(Obedient()).write(PASSAGES[1:])
  _, second = author(Obedient()).write(PASSAGES)
  assert alone == second
  (other,) = author(Obedient(), seed=1).write(PASSAGES[1:])
  seeds = {one.seed for one in second} | {one.seed for one in other}
  assert len(seeds) == 12


def test_what_never_ends_has_no_question_and_no_answer():
  generator = Obedient()
  generator.generate = lambda requests: [
    request_lib.Result(
      np.zeros(0, np.int32), 'and so on', None, None, 'length', None
    )
    for _ in requests
  ]
  (own,) = author(generator).write(PASSAGES[:1])
  assert all(one == variations.Variation(one.number, one.seed) for one in own)


def test_bad_logits_are_raised():
  generator = Obedient()
  error = request_lib.BadLogits('row 3')
  generator.generate = lambda requests: [
    request_lib.Result(np.zeros(0, np.int32), '', None, None, 'error', error)
  ]
  with pytest.raises(request_lib.BadLogits):
    author(generator).write(PASSAGES[:1])


def test_given_variations_are_weighed_as_they_are():
  given = [
    variations.Variation(0, 0, 'How many?', '17', again='?', informed=5.0),
    variations.Variation(1, 0),
  ]
  ((first, second),) = author(Obedient()).weigh(PASSAGES[:1], [given])
  assert first == dataclasses.replace(
    given[0], again='17', informed=-4.0, uninformed=-12.0
  )
  assert second == given[1]


def test_a_row_is_long_enough_for_every_prompt():
  settings = settings_lib.Settings(question_tokens=20, answer_tokens=3)
  generator = Obedient(question='x' * 20)
  variations.Author(generator, TOKENIZER, settings).write(PASSAGES)
  for passage in PASSAGES:
    length = variations.length(settings, TOKENIZER, passage.text)
    own = [p for p in generator.prompts if passage.text in p]
    # BOS is not in the decoded text; each prompt is continued.
    assert max(map(len, own)) + 1 + 3 <= length


def test_a_tree_has_the_passage_once_and_each_variation_below_it(tmp_path):
  settings = settings_lib.Settings()
  kept = [
    variations.Variation(0, 7, 'Which number?', '17', '17', -1.0, -9.0),
    variations.Variation(2, 9, 'What is it?', '17', '17', -1.0, -8.0),
  ]
  record = variations.record(settings.form, PASSAGES[0], kept)
  assert [one.get('seed') for one in record['segments']] == [None, 7, 9]
  (tmp_path / 'qa.jsonl').write_text(json.dumps(record) + '\n')
  (document,) = documents.read(str(tmp_path / 'qa.jsonl'))
  assert document.parents == (-1, 0, 0)
  assert document.segments == (
    'Ada owns the number 17.',
    '\n\nQ: Which number?\nA: 17\n',
    '\n\nQ: What is it?\nA: 17\n',
  )
  # P + ΣQ tokens, below one BOS.
  piece = documents.encode(document, TOKENIZER)
  assert len(piece.tokens) == 1 + sum(map(len, document.segments))
  # Both variations follow the passage's last token.
  end = len(document.segments[0])
  assert piece.parents[1 + end] == end
  assert piece.parents[1 + end + len(document.segments[1])] == end
