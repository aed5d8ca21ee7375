"""Rules, intervals and claims of persona scores."""

import math
import statistics

import numpy as np
import pytest

from kaiju_jax.evaluation.persona import golden
from kaiju_jax.evaluation.persona import rules
from kaiju_jax.evaluation.persona import scores
from kaiju_jax.gates import persona
from kaiju_jax.reporting import decision
from kaiju_jax.reporting import report
from kaiju_jax.reporting import statistics as statistics_lib
from kaiju_jax.tasks.dialogues import golden as generated

ONE = generated.conversations(1)[0]


def probe(expect=(), forbid=(), property='speech', turn=1, weight=1.0):
  return golden.Probe(turn, property, tuple(expect), tuple(forbid), weight)


@pytest.mark.parametrize(
  'reply, found',
  [
    ('In a WINDMILL, on a hill.', 1),
    ('windmill', 1),
    ('windmills', 0),
    ('I live in a wind mill', 0),
    ('', 0),
    ('windmill or castle', -1),
    ("the castle's windmill", 1),
    ('on  a\nhill', 1),
    ('on hill', 0),
  ],
)
def test_phrases_are_held_word_for_word(reply, found):
  one = probe(['windmill', 'on a hill'], ['castle'])
  assert rules.judge(one, reply) == found


def test_a_probe_that_forbids_alone_is_met_by_any_other_words():
  one = probe(forbid=['my dear'])
  assert rules.judge(one, 'hello') == 1
  assert rules.judge(one, 'hello, My Dear!') == -1
  assert rules.judge(one, '') == 0


def test_weights_count_and_a_broken_probe_takes_away():
  conversation = golden.GoldenConversation(
    **{
      **vars(ONE),
      'probes': (
        probe(['a'], weight=3),
        probe(['b'], ['c'], weight=1),
        probe(['d'], property='backstory', turn=2),
        probe(['d'], property='goal', turn=2),
      ),
    }
  )
  replies = ['a'] + ['d'] * 7
  assert rules.score(conversation, replies) == {
    'speech': 4,
    'backstory': 5,
    'goal': 5,
  }
  assert rules.score_turns(conversation, replies) == {1: 4, 2: 5}
  assert rules.score(conversation, ['a c', *replies[1:]])['speech'] == 3
  assert rules.score(conversation, ['c', *replies[1:]])['speech'] == 1


def test_intervals_of_skewed_scores_cover_the_mean():
  """2,000 populations' samples of 60 conversations, most of them near 5."""
  rng = np.random.default_rng(0)
  covered = 0
  for number in range(2000):
    values = 5 - 4 * rng.beta(1, 4, 60)
    found = statistics_lib.bootstrap_mean(values, seed=number, resamples=999)
    covered += found.low <= 5 - 4 * 0.2 <= found.high
  assert 0.93 <= covered / 2000 <= 0.97


def test_few_or_equal_values_have_no_width_to_speak_of():
  assert statistics_lib.bootstrap_mean([])[3] == 0
  assert statistics_lib.bootstrap_mean([3.0])[:1] == (3.0,) and math.isnan(
    statistics_lib.bootstrap_mean([3.0]).low
  )
  assert statistics_lib.bootstrap_mean([5.0] * 9) == (5.0, 5.0, 5.0, 9)


def test_a_median_is_claimed_at_its_confidence():
  """At a true share of a half, a claim is wrong in at most 5 % of samples."""
  rng = np.random.default_rng(1)
  wrong = 0
  for _ in range(1000):
    values = np.where(rng.random(200) < 0.5, 4.5, 4.0)
    wrong += scores.share_at_least(values, 4.2) >= 0.5
  assert 0 < wrong / 1000 <= 0.05
  assert scores.share_at_least([4.2] * 200, 4.2) > 0.98
  assert scores.share_at_least([4.19] * 200, 4.2) == 0


def test_a_rectified_mean_covers_what_people_say_of_a_biased_judge():
  rng = np.random.default_rng(2)
  covered = naive = 0
  for _ in range(500):
    human = 3 + rng.normal(0, 0.8, 400)
    judge = human + 0.4 + rng.normal(0, 0.3, 400)  # Too kind.
    pairs = list(zip(human[:50], judge[:50]))
    found = scores.rectified_mean(judge, pairs)
    covered += found.low <= 3 <= found.high
    naive += abs(judge.mean() - 3) < 0.2
  assert covered / 500 >= 0.93 and naive == 0
  with pytest.raises(ValueError, match='at least two of each'):
    scores.rectified_mean([1.0, 2.0], [])


def test_a_drop_of_the_stated_size_is_shown_with_the_stated_power():
  rng = np.random.default_rng(3)
  shown = 0
  for _ in range(500):
    drops = rng.normal(0, 0.5, 50)
    least = scores.least_drop(drops)
    drops = drops + least
    error = drops.std(ddof=1) / math.sqrt(50)
    shown += drops.mean() - 1.645 * error > 0
  assert 0.7 <= shown / 500 <= 0.9
  assert math.isnan(scores.least_drop([0.1]))


# Decisions.


def judged(values_by_tier):
  """Returns conversations with given means, one by one."""
  found = []
  for tier, values in values_by_tier.items():
    for n, value in enumerate(values):
      conversation = golden.GoldenConversation(
        **{**vars(ONE), 'id': f'{tier} {n}', 'tier': tier}
      )
      score = dict.fromkeys(golden.PROPERTIES, value)
      found.append(persona.Judged(conversation, [''] * 8, score))
  return found


def statuses(checks):
  return [one.status for one in checks]


def test_each_tier_decides_by_its_own_median():
  enough = {tier: [4.5] * 200 for tier in golden.TIERS}
  assert statuses(persona.checks_of_medians(judged(enough))) == ['passed'] * 3
  mixed = {**enough, 'official': [4.5] * 110 + [4.1] * 90}
  found = list(persona.checks_of_medians(judged(mixed)))
  assert statuses(found) == ['passed', 'refused', 'passed']
  assert found[1].reason.startswith(
    'official: the median is 4.50; at least 49%'
  )
  few = {**enough, 'mature': [5.0] * 199}
  assert statuses(persona.checks_of_medians(judged(few)))[2] == 'not evaluated'
  none = {**enough, 'public': []}
  whole = decision.decide(
    'p', list(persona.checks_of_medians(judged(none))), {}, {}
  )
  assert whole.exit_status == 4


def test_a_drop_is_refused_or_not_seen_or_ruled_out():
  rng = np.random.default_rng(4)
  names = {f'{tier} {n}': 4.5 for tier in golden.TIERS for n in range(50)}
  spread = rng.normal(0, 0.15, 50)
  after = {
    'public': 4.5 - 0.4 + spread,
    'official': 4.5 - 0.19 + spread,
    'mature': 4.5 + spread,
  }
  found = list(persona.drop_checks(judged(after), names, 0.2))
  assert statuses(found) == ['refused', 'not evaluated', 'passed']
  assert 'public: scores dropped by 0.4' in found[0].reason
  assert 'show a drop of 0.0' in found[1].reason
  few = list(persona.drop_checks(judged({'public': [4.0]}), names, 0.2))
  assert statuses(few) == ['not evaluated'] * 3


def test_figures_are_plain_and_tables_have_each_tier():
  found = persona.figures(
    judged({tier: [4.0, 5.0, 3.5] for tier in golden.TIERS})
  )
  assert found['tiers']['public']['mean']['value'] == pytest.approx(
    statistics.fmean([4.0, 5.0, 3.5])
  )
  page = report.Report()
  persona.add_tables(page, 'Title', found)
  text = page.markdown()
  assert '| mature | 3 | 4.17 (' in text and '| 4.00 |' in text
