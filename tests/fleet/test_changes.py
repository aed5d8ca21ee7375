"""A change empties the cache for those who have it, as its plan lets them."""

import dataclasses
import math

import numpy as np
import pytest

from kaiju_jax.fleet import caches
from kaiju_jax.fleet import changes
from kaiju_jax.fleet import people
from kaiju_jax.fleet import replay
from kaiju_jax.gates import replay_gate
from kaiju_jax.reporting import decision
from kaiju_jax.serving.routing import rollout

SIZES = caches.CacheSizes(8, 40, {'local': 400, 'global': 100}, 1_000)
# 40 requests a minute, of 25 characters.
PEOPLE = people.People(
  seed=5,
  requests=1_600,
  live=2_000,
  characters=25,
  prefix=(80, 160),
  message=8,
  answer=16,
  longest=40,
  context=600,
  warm_up=2.0,
)
THIRDS = rollout.Plan(shares=(0.25, 0.6, 1.0), hold=240.0)


@pytest.fixture(scope='module')
def requests():
  return list(people.draw_texts(people.draw(PEOPLE)))


def serve(requests, kind='build', memory=4e6, **given):
  cache = caches.Points(SIZES, memory, local=0.5)
  return changes.replay_change(requests, cache, kind, **given)


def judge(found):
  return replay_gate.judge_changes({'trace': found}).exit_status


def test_at_once_all_that_was_cached_is_lost(requests):
  found = serve(requests)
  (step,) = found.steps
  assert found.before.rate > 0.9
  assert step.rate < 0.5 < found.after.rate
  assert step.changed == step.requests and found.before.changed == 0
  assert judge(found) == 3


@pytest.mark.parametrize('open_stay', [False, True])
def test_a_plan_keeps_the_hits(requests, open_stay):
  given = dict(plan=THIRDS, prefixes=25, open_stay=open_stay)
  found = serve(requests, **given)
  assert all(one.rate > 0.5 for one in found.steps)
  assert judge(found) == 0
  assert found.warmed > 15 * 80
  shares = [one.changed / one.requests for one in found.steps]
  if open_stay:
    # New conversations alone; what began before goes on as it was.
    assert shares[-1] < 0.3 and found.steps[0].rate > 0.9
    assert found.after.changed < found.after.requests
  else:
    np.testing.assert_allclose(shares, THIRDS.shares, atol=0.2)
    assert found.after.changed == found.after.requests


def test_a_warmed_prefix_is_there_for_the_first_who_comes(requests):
  cold = serve(requests, plan=THIRDS)
  warm = serve(requests, plan=THIRDS, prefixes=25)
  assert warm.steps[0].own_rate > cold.steps[0].own_rate + 0.05
  assert warm.before == cold.before and cold.warmed == 0


def test_a_time_in_the_prefix_is_refused_whatever_the_plan(requests):
  given = dict(plan=THIRDS, prefixes=25, open_stay=True)
  found = serve(requests, 'clock', **given)
  # The few who have it by then hide it; they themselves do not.
  assert all(one.rate > 0.5 for one in found.steps)
  assert found.after.own_rate < 0.05
  assert judge(found) == 3
  slower = serve(requests, 'clock', tick=600.0, **given)
  assert slower.after.own_rate > 0.5


def test_conversations_keep_their_side_and_new_ones_draw():
  sides = changes._Sessions(open_stay=True)
  before = [sides.have_change(n, 0.0) for n in range(400)]
  assert not any(before)
  assert not any(sides.have_change(n, 1.0) for n in range(400))
  new = [sides.have_change(n, 0.25) for n in range(400, 1_400)]
  assert 0.2 < np.mean(new) < 0.3
  # A larger share takes more; nobody goes back.
  moving = changes._Sessions(open_stay=False)
  some = [moving.have_change(n, 0.25) for n in range(400)]
  more = [moving.have_change(n, 0.6) for n in range(400)]
  assert all(b or not a for a, b in zip(some, more)) and sum(more) > sum(some)


def test_what_no_cache_of_the_trace_can_have_is_not_counted(requests):
  found = serve(requests)
  counted = found.before.requests + sum(x.requests for x in found.steps)
  counted += found.after.requests
  middle = (requests[0].seconds + requests[-1].seconds) / 2
  late = [
    cause
    for one, cause in zip(requests, replay.find_causes(requests))
    if one.seconds >= middle - 60
  ]
  assert 'first seen' in late
  assert counted == sum(cause != 'first seen' for cause in late)


def test_a_changed_text_is_another_from_its_first_token(requests):
  one = requests[0]
  changed = changes.change(one, 'build')
  assert changed.tokens()[0] != one.tokens()[0]
  np.testing.assert_array_equal(changed.tokens()[1:], one.tokens()[1:])
  assert changed.prompt[0].number != one.prompt[0].number
  assert changed.shared == one.shared and one.tokens()[0] >= 0
  ticks = [
    changes.change(one._replace(seconds=s), 'clock', 60.0).tokens()[0]
    for s in (0.0, 59.0, 60.0)
  ]
  assert ticks[0] == ticks[1] != ticks[2] and changed.tokens()[0] not in ticks


def test_a_step_without_requests_is_not_evaluated():
  step = changes.Step(1.0, 3, 3, 90, 80, 90, 80)
  empty = changes.Step(0.5)
  assert math.isnan(empty.rate) and math.isnan(empty.own_rate)
  assert judge(changes.Found(step, (step,), step, 0)) == 0
  assert judge(changes.Found(step, (empty, step), step, 0)) == 4
  assert judge(changes.Found(step, (step,), empty, 0)) == 4
  low = step._replace(hits=44)
  assert judge(changes.Found(step, (empty, low), step, 0)) == 3
  assert judge(changes.Found(low, (step,), low, 0)) == 0


def test_a_trace_that_ends_before_the_plan_is_refused(requests):
  with pytest.raises(ValueError, match=r'hold=1e\+06, 1 times: the trace ends'):
    serve(requests, plan=rollout.Plan(shares=(1.0,), hold=1e6))


def test_a_tree_below_the_least_rate_is_refused():
  small = dataclasses.replace(PEOPLE, requests=60, live=40)
  drawn = list(people.draw_texts(people.draw(small)))
  found = {
    't': replay.replay(drawn, SIZES, [0.9, 0.04], 0.5, chosen=['points'])
  }
  rates = [row.rates['points'] for row in found['t'].rows]
  assert replay_gate.judge_caches(found, min(rates)).status == decision.PASSED
  refused = replay_gate.judge_caches(found, max(rates) + 0.01)
  assert refused.exit_status == 3 and len(refused.reasons) == 2
  memory = 0.04 * replay.oracle_bytes(drawn, SIZES)
  tree = caches.Points(SIZES, memory, 0.5)
  rate = sum(map(tree.serve, drawn)) / sum(one.length for one in drawn)
  assert rate == pytest.approx(rates[1]) and rates[1] < rates[0] - 0.02
