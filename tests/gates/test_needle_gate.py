"""The gate's needle: exact bounds of a paired loss, and what they decide."""

import itertools
import types

import numpy as np
import pytest
from scipy import stats

from kaiju_jax.evaluation.gate import paired_loss
from kaiju_jax.gates import needle_gate
from kaiju_jax.gates import players
from kaiju_jax.tasks.recall import problems
from tests.evaluation.gate import small_models


def test_a_loss_counts_what_one_model_alone_has_right():
  ours = [True, True, True, False, False]
  theirs = [True, False, False, True, False]
  found = paired_loss.compare(ours, theirs)
  assert found == (5, 3, 2, 2, 1) and found.value == pytest.approx(0.2)
  turned = paired_loss.compare(theirs, ours)
  assert (turned.low, turned.high) == (-found.high, -found.low)
  for wrong in ([], []), (ours, theirs[:4]):
    with pytest.raises(ValueError, match='must be as many'):
      paired_loss.compare(*wrong)


def test_bounds_are_those_of_scipy():
  found = paired_loss.PairedLoss(300, 250, 240, 14, 4)

  def bound(hits, side):
    test = stats.binomtest(hits, 300, alternative=side)
    interval = test.proportion_ci(0.975, 'exact')
    return interval.low if side == 'greater' else interval.high

  low = bound(14, 'greater') - bound(4, 'less')
  high = bound(14, 'less') - bound(4, 'greater')
  assert (found.low, found.high) == pytest.approx((low, high))


def test_bounds_hold_the_loss_as_often_as_they_claim():
  """Exactly, by all outcomes of 30 questions of three classes."""
  count = 30
  for chances in (0.1, 0.02), (0.3, 0.3), (0.0, 0.5), (0.02, 0.0):
    true, below, above = chances[0] - chances[1], 0.0, 0.0
    for b, c in itertools.product(range(count + 1), repeat=2):
      if b + c > count:
        continue
      found = paired_loss.PairedLoss(count, b, c, b, c)
      weight = stats.multinomial.pmf(
        [b, c, count - b - c], count, [*chances, 1 - sum(chances)]
      )
      below += weight * (true < found.low)
      above += weight * (true > found.high)
    assert below <= 0.05 and above <= 0.05


def decide(loss, name='multi_key_8', guess=1 / 9):
  check = needle_gate.check(needle_gate.Needle(name, loss, guess))
  return check.status, check.reason


def test_two_points_may_be_lost_and_must_be_shown():
  assert decide(paired_loss.PairedLoss(400, 300, 300, 0, 0)) == ('passed', '')
  status, reason = decide(paired_loss.PairedLoss(400, 300, 250, 55, 5))
  assert status == 'refused' and 'multi_key_8: 12.5% of 400' in reason
  # As few as 100 questions cannot show 2 points, whatever they find.
  status, reason = decide(paired_loss.PairedLoss(100, 90, 90, 0, 0))
  assert status == 'not evaluated' and 'at most 3.6%; ask more' in reason
  # A gain is no loss.
  assert decide(paired_loss.PairedLoss(400, 200, 300, 0, 100))[0] == 'passed'


def test_a_baseline_that_recalls_nothing_has_nothing_to_lose():
  status, reason = decide(paired_loss.PairedLoss(400, 0, 0, 0, 0))
  assert status == 'not evaluated'
  assert 'has 0 of 400 right, no more than a guess' in reason
  # One in nine is what guesses among nine values have.
  assert decide(paired_loss.PairedLoss(400, 50, 50, 0, 0))[0] == 'not evaluated'
  assert (
    decide(paired_loss.PairedLoss(400, 50, 50, 0, 0), 'facts', 0.0)[0]
    == 'passed'
  )


class Planted:
  """A generator that answers with what its prompts define, or with nothing."""

  def __init__(self, format, knows):
    self._format = format
    self._knows = knows

  def forget(self):
    pass

  def generate(self, requests):
    for number, one in enumerate(requests):
      text = self._format.tokenizer.decode(np.asarray(one.tokens))
      numbers = [x for x in text.split() if x.rstrip('.').isdigit()]
      said = numbers[0] if numbers and self._knows(number) else 'No.'
      yield types.SimpleNamespace(text=said)


def planted(knows):
  generator = Planted(small_models.FORMAT, knows)
  return players.Opened(generator, None, small_models.FORMAT, '', 'planted')


def test_both_models_are_asked_the_same():
  def always(number):
    return True

  def half(number):
    return number % 2

  ours, theirs = planted(always), planted(half)
  found = needle_gate.measure(ours, theirs, 'multi_key_8', 40, 64)
  # The first number of the text is the asked one for some questions.
  assert 0 < found.loss.baseline < 20 and found.loss.gained == 0
  assert found.loss.lost == found.loss.baseline - found.loss.candidate > 0
  assert found.guess == pytest.approx(1 / 9)
  same = needle_gate.measure(ours, ours, 'multi_key_8', 40, 64)
  assert same.loss.lost == same.loss.gained == 0
  figures = needle_gate.figures(found)
  assert figures['lost'] == found.loss.lost
  assert figures['loss']['low'] < figures['loss']['value']
  assert f'{found.loss.baseline} → ' in needle_gate.describe(found)
  with pytest.raises(ValueError, match="needle='x': must be one of facts"):
    needle_gate.measure(ours, ours, 'x', 1, 64)
  assert set(problems.KINDS) < set(needle_gate.NAMES)
