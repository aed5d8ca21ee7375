"""Questions to a chat model, and what replies are worth."""

import numpy as np
import pytest

from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.tasks.dialogues import questions

FORMAT = chat.format_of(tokenizer_lib.Bytes())


@pytest.fixture(scope='module')
def drawn():
  return questions.draw_questions(FORMAT, 8, 2048)


def test_each_character_is_asked_in_every_way(drawn):
  counts = {}
  for one in drawn:
    counts[one.kind] = counts.get(one.kind, 0) + 1
  assert counts == {
    'facts': 24,
    'new phrasing': 24,
    'new values': 24,
    'far': 8,
    'small talk': 8,
    'open': 8,
  }
  assert len({one.tokens.tobytes() for one in drawn}) == len(drawn)


def test_the_answer_stands_in_the_prompt_and_the_reply_is_next(drawn):
  for one in drawn:
    if one.expects:
      system = one.text.split(chat.ETX)[0]
      assert one.expects in system
    assert one.tokens[0] == FORMAT.tokenizer.bos_id
    opening_L = FORMAT.opening('assistant')
    assert np.array_equal(one.tokens[-len(opening_L) :], opening_L)


def test_far_questions_fill_the_context(drawn):
  for one in drawn:
    if one.kind == 'far':
      assert 2048 - 2 * 200 < len(one.tokens) <= 2048 - questions.REPLY
    else:
      assert len(one.tokens) < 700


def reply(text, reason='stop_token'):
  return request_lib.Result(
    np.zeros(1, np.int32), text, np.zeros(1), None, reason, None
  )


def test_a_reply_is_judged():
  question = questions.Question(
    'facts', np.zeros(1), 'a fat cat called Momo', 'Moo!', 'You are Zorbi.'
  )
  right = questions.judge(question, reply('Moo! I have a fat cat called Momo.'))
  assert right == questions.Score(
    total=1,
    ended=1,
    clean=1,
    words=8,
    known=7,  # Momo is a name that neither dialogues nor the prompt have.
    facts=1,
    right=1,
    exclaimers=1,
    exclaimed=1,
  )
  wrong = questions.judge(
    question, reply('I have a fat cat called Zorbi', 'length')
  )
  assert (wrong.right, wrong.ended, wrong.exclaimed) == (0, 0, 0)
  assert wrong.known == wrong.words == 7
  for text in 'a\x01b', 'a\ufffd', '':
    assert questions.judge(question, reply(text)).clean == 0
  # A word that only begins alike is another one.
  assert not questions.judge(question, reply('a fat cat called Momota')).right


def test_scores_are_sums_per_kind():
  facts = questions.Question('facts', np.zeros(1), 'red', '', '')
  open_ = questions.Question('open', np.zeros(1), '', 'Moo!', '')
  found = questions.score(
    [facts, facts, open_], [reply('Red.'), reply('Blue.'), reply('Moo! Yes.')]
  )
  assert (found['facts'].total, found['facts'].right) == (2, 1)
  assert (found['open'].facts, found['open'].exclaimed) == (0, 1)
