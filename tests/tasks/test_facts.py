"""The planted world: what it says, and that its judge can tell."""

from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.tasks import facts


def test_a_passage_states_every_value_and_each_question_has_one_answer():
  for number in range(20):
    one = facts.person(3, number)
    passage = facts.passage(3, number)
    assert all(value in passage for value in one.values)
    assert passage.count(one.name) == facts.ATTRIBUTES
    questions = {
      one.question(attribute, phrasing)
      for attribute in range(facts.ATTRIBUTES)
      for phrasing in range(facts.PHRASINGS)
    }
    assert len(questions) == facts.ATTRIBUTES * facts.PHRASINGS
  orders = {facts.passage(3, n).split()[2] for n in range(20)}
  assert len(orders) == facts.ATTRIBUTES


def test_training_text_holds_no_unseen_phrasing():
  unseen = range(facts.PHRASINGS - facts.UNSEEN, facts.PHRASINGS)
  numbers = range(300)
  question_texts = {
    child['text']
    for line in facts.trees(0, numbers, 4)
    for child in line['segments'][1:]
  }
  for number in numbers:
    one = facts.person(0, number)
    for attribute in range(facts.ATTRIBUTES):
      for phrasing in unseen:
        question = facts.FORM.format_question(one.question(attribute, phrasing))
        assert not any(text.startswith(question) for text in question_texts)
  # All other phrasings are there.
  heads = {text.split('\n')[2].split()[1] for text in question_texts}
  assert heads == {'Where', 'In', 'What', 'Which'}


def test_the_judge_knows_right_from_wrong():
  one, other = facts.person(0, 1), facts.person(0, 2)
  question = one.question(2, 3)
  assert facts.is_right(0, 1, question, one.values[2])
  assert facts.is_right(0, 1, question.lower(), f'{one.values[2]}.')
  assert not facts.is_right(0, 1, question, one.values[1])
  assert not facts.is_right(0, 1, question, one.values[2][:-1])
  assert not facts.is_right(0, 1, other.question(2, 3), other.values[2])
  assert not facts.is_right(0, 1, question + ' Now?', one.values[2])


class Reader:
  """Answers with what stands behind 'lives in' in the passage, if anything."""

  def generate(self, requests):
    results = []
    for request in requests:
      text = tokenizer_lib.Bytes().decode(request.tokens)
      _, _, rest = text.partition('lives in ')
      results.append(_Answer(f' {rest.partition(".")[0]}'))
    return results


class _Answer:
  def __init__(self, text):
    self.text = text


def test_a_score_counts_right_answers():
  tokenizer = tokenizer_lib.Bytes()
  arguments = Reader(), tokenizer, 0, range(5), range(2)
  assert facts.score(*arguments, True) == facts.Score(5 * 2, 5 * 2 * 4)
  assert facts.score(*arguments, False) == facts.Score(0, 5 * 2 * 4)
