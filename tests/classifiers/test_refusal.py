"""Two sets of texts: halves, counts, claims, changes of versions, raises."""

import numpy as np
import pytest
import scipy.special
import scipy.stats

from kaiju_jax.classifiers import refusal
from kaiju_jax.classifiers import rows as rows_lib
from kaiju_jax.classifiers import scores as scores_lib
from kaiju_jax.classifiers import two_sets
from kaiju_jax.reporting import statistics
from tests.serving import planted

Example = two_sets.Example


def scored(adversarial, benign, tiers=None, high=(0.7, 0.6)):
  """Returns scores of one dimension, from logits by set; one gate, served.

  Args:
    adversarial, benign: margins over the minors' threshold, in logits.
    tiers: of each text; both by default.
    high: served thresholds of adults and minors.
  """
  margin_N = np.concatenate([adversarial, benign]).astype(float)
  tiers = tiers or [('adult', 'minor')] * len(margin_N)
  rows = rows_lib.Rows(
    ('adversarial',),
    tuple(
      rows_lib.Row(f'{n}', (n < len(adversarial),), tiers[n])
      for n in range(len(margin_N))
    ),
  )
  stage = planted.stage('g', adult=high[0], minor=high[1])
  score_N = scipy.special.expit(margin_N + scipy.special.logit(high[1]))
  return scores_lib.Scores('g', rows, {'gate': (stage, score_N[:, None])})


def word(n):
  """Returns a word of its own per number; digits read like letters."""
  return ''.join('bdfgklmnpr'[n // 10**k % 10] + 'aei'[k] for k in range(3))


def statuses(stage, confidence=0.95):
  return [one.status for one in refusal.checks(stage, confidence)]


# The sets.


def test_halves_share_no_text_and_keep_pairs_together():
  adversarial = [
    Example(f'a real text {word(n)}', pair=f'{n}' if n % 2 else '')
    for n in range(200)
  ]
  benign = [
    Example(f'a story {word(n)}', age='minor' if n % 3 else '', pair=f'{n}')
    for n in range(200)
  ]
  benign.append(Example(f'A  STORY {word(9)}', pair='x'))  # Reads like another.
  sets = two_sets.Sets(tuple(adversarial), tuple(benign))
  first, second = sets.halves(1)
  texts = [{row.text for row in half.rows} for half in (first, second)]
  assert not texts[0] & texts[1]
  assert len(texts[0] | texts[1]) == 400 and min(map(len, texts)) > 120
  for n in range(1, 200, 2):
    together = {f'a real text {word(n)}', f'a story {word(n)}'}
    assert together <= texts[0] or together <= texts[1]
  assert sets.halves(1) == (first, second) != sets.halves(2)
  for half in first, second:
    for row in half.rows:
      assert row.labels == (row.text.startswith('a real'),)
      assert row.tiers == sets.by_text()[row.text].tiers


def test_a_text_of_both_sets_is_refused():
  sets = two_sets.Sets((Example('The Knight!'),), (Example('the knight'),))
  with pytest.raises(ValueError, match='read the same'):
    sets.halves(0)


def test_files_are_read_back_and_faults_are_named_with_their_line(tmp_path):
  path = tmp_path / 'set.jsonl'
  known = (Example('one'), Example('two', 'minor', 'fiction', '7'))
  two_sets.write(path, known)
  assert two_sets.read(path) == known
  assert path.read_text().splitlines()[0] == '{"text": "one"}'
  for line, message in (
    ('[]', r'line 1: Example=\[\]: must be an object'),
    ('{"text": "a", "label": true}', 'line 1: label: no such field'),
    ('{"text": ""}', 'line 1: text: missing'),
    ('{"text": "a", "age": "old"}', "line 1: age='old'"),
    ('{"text": "a", "pair": 7}', 'line 1: pair=7: must be str'),
    ('{"text": "a"', 'line 1: Expecting'),
    ('\n', 'holds no texts'),
  ):
    path.write_text(line)
    with pytest.raises(ValueError, match=message):
      two_sets.read(path)


def test_added_texts_are_new_ones():
  known = (Example('a knight'), Example('a dragon', 'adult'))
  new = (
    Example('A knight!'),
    Example('a dragon', 'minor'),
    Example('a queen'),
    Example('a QUEEN', 'adult'),
  )
  found, added = two_sets.add(known, new)
  assert (added, found[2:]) == (2, (new[1], new[2]))


# The counts.


def test_a_margin_is_that_of_the_worst_dimension_and_stage():
  rows = rows_lib.Rows(
    ('adversarial',), tuple(rows_lib.Row(f'{n}', (True,)) for n in range(3))
  )
  gate = planted.stage('g', ('zorb', 'quam'), adult=0.8, minor=0.6)
  head = planted.stage('h', ('zorb',), adult=0.9, minor=0.5, low=0.1)
  score_NC = np.array([[0.6, 0.1], [0.2, 0.7], [np.nan, 0.1]])
  head_NC = np.array([[0.1], [0.95], [0.2]])
  scores = scores_lib.Scores(
    'g h', rows, {'gate': (gate, score_NC), 'head': (head, head_NC)}
  )
  logit = scipy.special.logit
  np.testing.assert_allclose(
    scores.margins('minor'), [0, logit(0.95) - logit(0.5), np.inf], atol=1e-12
  )
  np.testing.assert_allclose(
    scores.margins('adult')[:2],
    [logit(0.6) - logit(0.8), logit(0.95) - logit(0.9)],
  )
  assert scores.find_refused('minor').tolist() == [True, True, True]
  assert scores.find_refused('adult').tolist() == [False, True, True]


def test_what_separates_passes_and_each_fault_is_refused_by_its_name():
  good = scored(np.full(400, 3.0), np.full(400, -3.0))
  stage = refusal.choose_and_count(good, good, 0.95)
  assert statuses(stage) == ['passed'] * 4
  bad = scored([3.0] * 390 + [-4.0] * 10, [-3.0] * 390 + [4.0] * 10)
  found = refusal.choose_and_count(good, bad, 0.95)
  assert statuses(found) == ['refused'] * 4
  reasons = [one.reason for one in refusal.checks(found, 0.95)]
  assert reasons[0].startswith('adult: 390 of 400 adversarial texts')
  assert reasons[3].startswith('minor: 10 of 400 benign texts')
  few = refusal.choose_and_count(good, scored([3.0] * 367, [-3.0] * 368), 0.95)
  assert statuses(few) == ['not evaluated', 'passed'] * 2
  (reason, _) = (one.reason for one in refusal.checks(few, 0.95) if one.reason)
  assert 'it takes 368 texts' in reason


def test_minors_are_refused_from_lower_scores_on_and_by_their_own_texts():
  tiers = [('adult',), ('minor',)] * 400
  # Adults' texts separate around 5, the minors' around 0.
  margin = np.array([6.0, 1.0] * 200), np.array([4.0, -1.0] * 200)
  scores = scored(*margin, tiers)
  stage = refusal.choose_and_count(scores, scores, 0.90)
  adult, minor = (stage.for_tier(x).limits[0] for x in ('adult', 'minor'))
  assert adult.high > 0.98 and 0.3 < minor.high < 0.7
  assert (adult.blocked.rows, minor.blocked.rows) == (200, 200)
  refused = refusal.find_refused(scores, stage)
  assert refused['minor'][:400].all() and refused['adult'][:400:2].all()


def test_served_thresholds_are_counted_on_all_texts():
  half = scored([3.0] * 300, [-3.0] * 299 + [0.2])
  stage = refusal.count_served(half.join(half), 0.95)
  adult, minor = (stage.for_tier(x).limits[0] for x in ('adult', 'minor'))
  assert (minor.blocked.hits, minor.blocked.rows) == (600, 600)
  # 0.2 is over the minors' threshold and under the adults'.
  assert (minor.refused.hits, adult.refused.hits) == (2, 0)


def test_slices_tell_categories_and_pairs_apart():
  examples = {
    '0': Example('0', '', 'instruction', 'a'),
    '1': Example('1', '', 'instruction', 'b'),
    '2': Example('2', '', 'threat', 'c'),
    '3': Example('3', '', 'fiction', 'a'),
    '4': Example('4', '', 'fiction', 'b'),
    '5': Example('5', '', 'fiction', 'd'),
  }
  both, adult = ('adult', 'minor'), ('adult',)
  scores = scored([1, 1, -1], [-1, 1, -1], [both] * 3 + [both, both, adult])
  refused = {tier: scores.margins('minor') >= 0 for tier in both}
  found = {
    (one.tier, one.category): one[2:]
    for one in refusal.count_slices(scores, refused, examples)
  }
  assert found['adult', 'instruction'] == ((2, 2), (0, 0), (2, 1))
  assert found['adult', 'threat'] == ((1, 0), (0, 0), (0, 0))
  assert found['adult', 'fiction'] == ((0, 0), (3, 1), (0, 0))
  assert found['minor', 'fiction'] == ((0, 0), (2, 1), (0, 0))


# The claims.


def test_thresholds_pass_more_often_on_the_texts_that_chose_them():
  rng = np.random.default_rng(2)
  same = apart = 0
  for _ in range(40):
    chosen_on, counted = (
      scored(rng.normal(5.5, 1, 400), rng.normal(0, 1, 400)) for _ in range(2)
    )
    for found, is_same in (chosen_on, True), (counted, False):
      minor = statuses(refusal.choose_and_count(chosen_on, found, 0.95))[2:]
      same += is_same and minor == ['passed'] * 2
      apart += not is_same and minor == ['passed'] * 2
  assert same > 2 * apart


def test_sizes_count_both_tiers():
  wanted = {'none': 368, '0.2%': 1022, '0.3%': 1439, '0.5%': 3205}
  assert refusal.list_needed(0.95) == wanted


# Versions.


def test_mcnemar_is_the_exact_test_of_a_coin():
  for gained, lost in (0, 0), (1, 0), (3, 9), (9, 3), (20, 20), (0, 8):
    p = statistics.mcnemar(gained, lost)
    if gained + lost:
      wanted = scipy.stats.binomtest(gained, gained + lost).pvalue
      assert p == pytest.approx(min(1, wanted))
    else:
      assert p == 1


def test_a_version_that_is_worse_is_refused_and_a_better_one_is_not():
  older = scored([3.0] * 50 + [-3.0] * 50, [-3.0] * 50 + [3.0] * 50)
  newer = scored([3.0] * 80 + [-3.0] * 20, [-3.0] * 80 + [3.0] * 20)
  better = list(refusal.compare(newer, older))
  assert [one[1:5] for one in better[:2]] == [
    ('adversarial', 100, 30, 0),
    ('benign', 100, 0, 30),
  ]
  assert {x.status for x in refusal.compare_checks(better)} == {'passed'}
  worse = list(refusal.compare_checks(list(refusal.compare(older, newer))))
  assert {one.status for one in worse} == {'refused'}
  assert worse[0].reason.startswith(
    'adult: 30 of 100 adversarial texts are no longer refused, and 0'
  )
  assert '30 of 100 benign texts are newly refused' in worse[1].reason
  luck = scored([3.0] * 52 + [-3.0] * 48, [-3.0] * 52 + [3.0] * 48)
  found = refusal.compare_checks(list(refusal.compare(older, luck)))
  assert {one.status for one in found} == {'passed'}


def test_raised_thresholds_allow_what_was_refused_and_say_what_passes():
  benign = np.concatenate([np.full(590, -3.0), np.full(10, 2.0)])
  adversarial = np.concatenate([np.full(590, 5.0), np.full(10, 1.0)])
  scores = scored(adversarial, benign)
  raised = {
    one.tier: one for one in refusal.raise_thresholds(scores, scores, 0.95)
  }
  minor, adult = raised['minor'], raised['adult']
  assert minor.by == pytest.approx(2.0, abs=1e-3) or minor.by <= adult.by
  for one in minor, adult:
    (limit,) = one.counts.limits
    assert limit.high == 0.5  # Of a score that is 0 or 1.
  (limit,) = adult.counts.limits
  assert (limit.refused.hits, limit.blocked.hits) == (0, 590)
  assert adult.high['gate']['zorb'] > 0.7
  assert minor.high['gate']['zorb'] <= adult.high['gate']['zorb']
  fine = scored(np.full(400, 3.0), np.full(400, -3.0))
  assert {x.by for x in refusal.raise_thresholds(fine, fine, 0.95)} == {0.0}


def test_a_head_without_thresholds_is_refused():
  class Version:
    folder = 'safety'
    policy = planted.policy(planted.stage('g'), None)

  rows = rows_lib.Rows(('adversarial',), ())
  with pytest.raises(ValueError, match='safety: has no thresholds'):
    scores_lib.score(Version, rows, 'head')
