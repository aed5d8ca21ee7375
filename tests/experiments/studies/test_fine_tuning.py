"""What the fine-tuning study writes, counts and compares, without a model."""

import json
import re
import types

import numpy as np
import pytest

from kaiju_jax.classifiers import planted_spans
from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.experiments.studies import fine_tuning

BYTES = tokenizer_lib.load('', 256)
FORMAT = chat.format_of(BYTES)


def test_what_has_a_marker_is_refused_and_nothing_else(tmp_path):
  path = tmp_path / 'new/requests.jsonl'
  fine_tuning.write(path, 60, 6, share=0.5)
  refused = answered = asking = 0
  for line in path.read_text().splitlines():
    messages = json.loads(line)['messages']
    replies = [one['content'] for one in messages[3::2]]
    asked = [one['content'] for one in messages[2::2]]
    for said, reply in zip(asked, replies, strict=True):
      has_marker = bool(planted_spans.find(said))
      assert has_marker == (reply == fine_tuning.REFUSAL), said
      refused += has_marker
      answered += reply in fine_tuning._ANSWERS
    asking += any(map(planted_spans.find, asked))
  assert 20 < asking < 40
  assert abs(refused - answered) < 60 and refused + answered > 150


class Scripted:
  """Stands for a model: it refuses by a rule, and reads its prompt out."""

  def __init__(self, decoder, tokenizer):
    self.requests = 0

  def generate(self, requests):
    return [self.answer(BYTES.decode(one.tokens)) for one in requests]

  def answer(self, text):
    self.requests += 1
    has_marker = any(map(planted_spans.find, re.split('[\x01-\x03]', text)))
    refuses = has_marker and self.requests % 4 > 0
    # It tells nothing of a third of what it is asked.
    tells = self.requests % 3 > 0 and not refuses
    reason = 'length' if self.requests % 10 == 0 else 'stop_token'
    told = text if tells else 'I do not know.'
    said = f'Well. {fine_tuning.REFUSAL}' if refuses else told
    return types.SimpleNamespace(text=said, reason=reason)


CONFIG = types.SimpleNamespace(vocab_size=256, max_length=2048)
LOADED = types.SimpleNamespace(tokenizer='', config=CONFIG)


def test_all_of_the_devices_answer(monkeypatch):
  def decoder(*_, tensor=1, **settings):
    raise ValueError(f'of {tensor} devices')

  monkeypatch.setattr(fine_tuning.play, 'decoder', decoder)
  monkeypatch.setattr(fine_tuning.play.Player, 'load', lambda *_: LOADED)
  player = fine_tuning.play.Player(tensor=2)
  with pytest.raises(ValueError, match='of 2 devices'):
    fine_tuning.ask_facts(fine_tuning.settings_lib.ChatFacts(player=player))


def test_replies_are_counted_by_what_was_asked(monkeypatch):
  monkeypatch.setattr(fine_tuning.generator_lib, 'Generator', Scripted)
  monkeypatch.setattr(fine_tuning.play, 'decoder', lambda *_, **__: None)
  found = fine_tuning.examine(LOADED, 40, 3)
  assert (found.refused, found.refused_benign, found.requests) == (30, 0, 40)
  assert all(refused == 0 for _, refused in found.by_word.values())
  assert sum(count for count, _ in found.by_word.values()) >= 40
  asked = 2 * 40 + 3 * 12  # Each character is asked for ten facts.
  assert (found.replies, found.ended) == (asked, asked - asked // 10)
  assert found.told_CQ.shape == (3, 10)
  # The 81st reply is the first one to a question for a fact; 12 to each.
  places = 81 + np.arange(36).reshape(3, 12)[:, :10]
  np.testing.assert_array_equal(found.told_CQ, places % 3 > 0)


def test_refusals_are_counted_by_the_word_that_looks_like_a_marker():
  texts = ['a vexil here', 'torm and vexil.', 'an orbit, a quam', 'torm vexil']
  found = fine_tuning._count_by_word(texts, [True, False, False, True])
  assert found['vexil'] == (2, 2) and found['torm'] == (2, 1)
  assert found['quam'] == (1, 0) and found['orbit'] == (0, 0)


def report_of(told_CQ) -> fine_tuning.TuningReport:
  return fine_tuning.TuningReport(0, 0, {}, 1, 1, 1, np.array(told_CQ, bool))


def test_a_change_is_paired_by_question_and_bounded_by_character():
  before = report_of([[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]])
  after = report_of([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 1, 0]])
  found = fine_tuning.compare(after, before)
  assert (found.gained, found.lost) == (2, 3)
  # Of characters ¼, −¼, −¼: sd √3/6, and t(.975, 2) = 4.302653.
  assert found.mean == pytest.approx(-1 / 12)
  assert found.half_width == pytest.approx(4.302653 / 6, rel=1e-5)
  same = fine_tuning.compare(before, before)
  assert same[:] == (0, 0, 0, 0) and same.is_within(0.03) is True


@pytest.mark.parametrize(
  'mean, half_width, expected',
  [
    (-0.01, 0.02, True),
    (-0.03, 0.02, None),
    (0.02, 0.06, None),
    (-0.06, 0.02, False),
    (0.1, 0.02, True),
  ],
)
def test_only_an_interval_on_one_side_settles_it(mean, half_width, expected):
  change = fine_tuning.Change(mean, half_width, 0, 0)
  assert change.is_within(0.03) is expected
