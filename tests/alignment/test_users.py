"""What planted users keep, which settings are refused, and what guards say."""

import numpy as np
import pytest

from kaiju_jax.alignment import config
from kaiju_jax.alignment import evaluate
from kaiju_jax.alignment import feedback_prompts
from kaiju_jax.alignment import guards
from kaiju_jax.alignment import prompts
from kaiju_jax.alignment import replies as replies_lib
from kaiju_jax.alignment import users
from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer
from kaiju_jax.quantization import int8
from kaiju_jax.runs import load
from tests.alignment import worlds

PROMPT = prompts.Prompt(
  'p', (('user', 'hi'),), ('a red fox called Bo',), 'By the moon!'
)
SAID = {
  'fact': 'I have a Red Fox called Bo.',
  'question': 'And you?',
  'catchphrase': 'By the moon! Yes.',
}
RNG = np.random.default_rng


@pytest.mark.parametrize('name', users.UTILITIES)
def test_a_utility_is_told_apart_from_the_others_and_from_length(name):
  user = users.parse(f'planted:{name}', 0.0)
  for other, text in SAID.items():
    for length in (0, 20):
      said = text + ' Well, well.' * length
      assert user.judge(PROMPT, said) == (name == other)
  texts = ['No. ' * 60, SAID[name], 'No.']
  assert user.choose(RNG(0), PROMPT, texts) == 1
  inverted = users.parse(f'planted:{name}:inverted', 0.0)
  assert inverted.choose(RNG(0), PROMPT, texts) != 1
  assert inverted.judge(PROMPT, SAID[name]) == 1
  proxy = users.parse(f'planted:{name}:length', 0.0)
  assert proxy.choose(RNG(0), PROMPT, texts) == 0
  assert proxy.choose(RNG(0), PROMPT, ['No.', SAID[name]]) == 1


def test_ties_are_kept_by_a_coin_alone():
  texts = ['No.', 'Never.']
  assert users.parse('planted:fact', 0.2).choose(RNG(0), PROMPT, texts) is None
  assert users.parse('planted:fact', 0.2).choose(RNG(0), PROMPT, []) is None
  coin = users.parse('planted:fact:coin', 0.0)
  texts = [SAID['fact'], 'No.', 'Never.', 'Not I.']
  kept = [coin.choose(RNG(n), PROMPT, texts) for n in range(800)]
  counts = np.bincount(kept, minlength=4)
  assert (counts > 150).all()


def test_wins_are_ours_and_ties_count_half_or_not_at_all():
  user = users.parse('planted:question', 0.0)

  def replies(*texts):
    return [replies_lib.SampledReply(one, 3, 'stop_token', 0) for one in texts]

  def wins(ours, theirs):
    held_out = [evaluate.HeldOut(PROMPT, (one,)) for one in theirs]
    return evaluate.count_wins(user, held_out, ours).describe()

  ours = replies('a?', 'b?', 'c?', 'd', 'e', 'f?')
  theirs = replies('a', 'b', 'c', 'd?', 'e', 'f?')
  found = wins(ours, theirs)
  assert (found['wins'], found['ties'], found['losses']) == (3, 2, 1)
  assert found['value'] == 4 / 6 and found['untied']['value'] == 3 / 4
  assert found['untied']['low'] < 3 / 4 < found['untied']['high']
  same = wins(ours, ours)
  assert (same['value'], same['untied']) == (0.5, None)
  # Nobody can keep what was cut off, or says nothing.
  cut = [one._replace(finish='length') for one in ours[:3]]
  cut += replies(' ', '', 'f?')
  worse = wins(cut, theirs)
  assert (worse['wins'], worse['ties'], worse['losses']) == (0, 1, 5)
  both = wins(cut[:3], cut[:3])
  assert both['ties'] == 3


def test_a_kept_reply_is_right_where_it_alone_moved_most():
  """Not where others moved as much, as they do before the first step."""
  texts = 'a', 'bb', 'ccc'
  moves = {  # By how much log p of each text grew, and which one was kept.
    (2.0, 1.0, 0.5): [True, False, False],
    (1.0, 1.0, 0.5): [False, False, False],
    (0.0, 0.0, 0.0): [False, False, False],
    (-2.0, -1.0, -3.0): [False, True, False],
  }
  held, grown, expected = [], [], 0
  for own, right in moves.items():
    for kept in range(3):
      replies = (replies_lib.SampledReply('', 3, 'length', 0),)
      held.append(evaluate.HeldOut(PROMPT, replies, texts, kept))
      grown.append(own)
      expected += right[kept]
  codes = int8.Quantized(np.zeros((2, 2), np.int8), np.ones(2), None)
  first, ours = (
    load.Loaded({'w': codes}, None, None, '', name) for name in ('a', 'b')
  )

  class Reader:
    def read(self, loaded, corpus):
      for own in grown:
        yield np.float32([-3, -5, -4]) + np.float32(own) * (
          loaded.origin == 'b'
        )

  format = chat.format_of(tokenizer.load(''))
  drawn = [replies_lib.SampledReply('', 3, 'length', 0)] * len(held)
  readings, about = evaluate.Evaluator(first, Reader(), format, held).evaluate(
    ours, drawn
  )
  assert (readings.right, readings.choices) == (expected, 12)
  assert about['accuracy'] == expected / 12 == 2 / 12


def test_a_warm_user_errs_as_often_as_the_softmax_says():
  user = users.parse('planted:fact', 0.5)
  texts = [SAID['fact'], 'No.']
  kept = [user.choose(RNG(n), PROMPT, texts) for n in range(2000)]
  share = 1 / (1 + np.exp(-1 / 0.5))
  assert abs(np.mean(np.array(kept) == 0) - share) < 0.03


@pytest.mark.parametrize(
  'text, message',
  [
    ('planted:joy', "'joy' is not one of fact, question, catchphrase"),
    ('planted:fact:upside', "'upside' is not one of inverted, coin, length"),
    ('somebody', 'must be planted:NAME, head:FILE, log:FOLDER'),
    ('log:', 'must be planted:NAME, head:FILE, log:FOLDER'),
    ('head:', 'must be planted:NAME, head:FILE, log:FOLDER'),
  ],
)
def test_an_unknown_user_is_refused(text, message):
  with pytest.raises(ValueError, match=message):
    users.parse(text, 0.0)


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'rounds': 0}, '--rounds=0: must be at least 1'),
    ({'swipes': 1}, '--swipes=1: must be at least 2'),
    ({'temperature': 0.0}, r'--temperature=0\.0: must be above 0'),
    ({'watched': 9}, r'--watched=9: must be in 1…8'),
    ({'limits': guards.Limits(length=0.5)}, r'--length_max=0\.5: must be at'),
  ],
)
def test_settings_out_of_range_are_refused(fields, message):
  with pytest.raises(ValueError, match=message):
    config.check(worlds.settings('first', 'prompts', **fields))


def test_prompts_are_read_up_to_the_last_reply(tmp_path):
  user = {'role': 'user', 'content': 'Hi'}
  reply = {'role': 'assistant', 'content': 'Yes.'}
  path = worlds.write_lines(
    tmp_path / 'a.jsonl',
    [
      {'messages': [user], 'facts': ['a fox'], 'catchword': 'Oh!'},
      {'messages': [user, reply, user, reply]},
    ],
  )
  one, two = prompts.read(path)
  assert one.messages == (('user', 'Hi'),)
  assert (one.facts, one.catchword) == (('a fox',), 'Oh!')
  assert [role for role, _ in two.messages] == ['user', 'assistant', 'user']
  drawn = prompts.read('dialogues:3')
  assert drawn == prompts.read('dialogues:5')[:3]
  assert all(one.facts and one.catchword for one in drawn)
  worlds.write_lines(tmp_path / 'a.jsonl', [])
  with pytest.raises(ValueError, match='hold no conversation'):
    prompts.read(path)
  for count in 'many', '0', '':
    with pytest.raises(ValueError, match='must be dialogues:COUNT'):
      prompts.read(f'dialogues:{count}')
  bad = [{'messages': [user], 'facts': 'a fox'}]
  worlds.write_lines(tmp_path / 'a.jsonl', bad)
  with pytest.raises(ValueError, match=r'line 1: "facts" must be a list'):
    prompts.read(path)


def test_a_folder_that_is_no_export_is_refused(tmp_path):
  with pytest.raises(FileNotFoundError, match=r'log:.*no export\.json'):
    feedback_prompts.read(tmp_path)
  (tmp_path / 'export.json').write_text('{}')
  (tmp_path / 'held_out.jsonl').write_text('')
  said = [{'role': 'user', 'content': 'Hi'}]
  reply = {'role': 'assistant', 'content': 'Yes.'}
  worlds.write_lines(tmp_path / 'train.jsonl', [{'messages': [*said, reply]}])
  with pytest.raises(ValueError, match='no choice between different replies'):
    feedback_prompts.read(tmp_path)
  replies = [{'content': x, 'kept': x == 'a'} for x in 'ba']
  reply = {'role': 'assistant', 'replies': replies}
  worlds.write_lines(tmp_path / 'train.jsonl', [{'messages': [*said, reply]}])
  found = feedback_prompts.read(tmp_path)
  ((prompt, texts, kept),) = found.held_out
  assert (prompt.messages, texts, kept) == ((('user', 'Hi'),), ('b', 'a'), 1)


GOOD = guards.Readings(1.0, 1.0, right=70, choices=100)
# After 70, so few of 100 are surely fewer, and these may be as many.
LOW, MAYBE = GOOD._replace(right=50), GOOD._replace(right=53)
FEW = guards.Readings(1.0, 1.0, right=5, choices=7)


@pytest.mark.parametrize(
  'history, says',
  [
    ([GOOD], ''),
    ([GOOD, GOOD._replace(kl=12.5)], 'kl: 12.50 nats per reply, more than 12'),
    ([GOOD._replace(kl=float('nan'))], 'kl: nan'),
    ([GOOD._replace(length=1.6)], 'length: replies are 1.60 times as long'),
    ([GOOD._replace(length=0.6)], 'length: replies are 0.60 times'),
    ([GOOD._replace(cut=4, replies=24)], 'cut: 4 of 24 replies never end'),
    ([GOOD._replace(cut=3, replies=24)], ''),
    ([GOOD._replace(cut=4, replies=24), GOOD._replace(replies=24)], ''),
    ([GOOD, LOW, LOW], ''),
    ([GOOD, LOW, LOW, LOW], 'accuracy: 0.50 of held-out choices after 0.70'),
    ([GOOD, LOW, MAYBE, LOW], ''),
    ([GOOD, *[MAYBE] * 5], ''),
    ([FEW, *[FEW._replace(right=2)] * 5], ''),
    # The best one is that of which most is known.
    ([FEW, GOOD, *[LOW] * 3], 'accuracy: 0.50'),
    ([GOOD._replace(right=0, choices=0, kl=None)] * 5, ''),
    ([GOOD._replace(kl=None, length=2.0)], 'length: replies are 2.00'),
  ],
)
def test_a_guard_says_which_reading_it_does_not_let_pass(history, says):
  found = guards.find_fault(history, guards.Limits())
  assert found.startswith(says) and bool(found) == bool(says)
