"""Drawn sessions follow their laws, and what is counted is given back."""

import dataclasses
import itertools

import numpy as np
import pytest

from kaiju_jax.fleet import events
from kaiju_jax.fleet import sessions
from kaiju_jax.fleet import simulator
from kaiju_jax.fleet import state
from tests.fleet import small_fleet

FLOW = small_fleet.FLOW
DAY = 86_400


def test_sessions_begin_as_the_day_has_it():
  flow = FLOW._replace(sessions=4_000, rate=4_000 / (4 * DAY))
  drawn = sessions.make_sessions(4, small_fleet.ENDS)
  moments = []
  for _ in range(flow.sessions):
    sessions.plan_session(flow, drawn)
    moments.append(drawn.start[0])
    drawn.counts[0] += 1
  sessions.plan_session(flow, drawn)
  assert drawn.start[0] == np.inf and (np.diff(moments) > 0).all()
  hours = np.array(moments)[np.array(moments) < 3 * DAY] % DAY / 3600
  assert hours.size == pytest.approx(3_000, rel=0.05)
  # Half a day around the peak has 1/2 + 1/π of them.
  assert (hours > 12).mean() == pytest.approx(0.818, abs=0.03)


def draw(flow, turns):
  """Returns a session's (prompt, answer, reusable), and its prefix."""
  drawn = sessions.make_sessions(4, small_fleet.ENDS)
  records = state.make_requests(4)
  requests = state.view_fields(records)
  slot = sessions.begin_session(flow, drawn, requests)
  found = []
  for _ in range(turns):
    sessions.draw_request(flow, drawn, requests, slot, 0.0)
    one = records[slot]
    found.append((int(one['prompt']), int(one['answer']), int(one['reusable'])))
  return found, int(records[slot]['prefix'])


def test_a_swipe_repeats_its_prompt():
  (first, *swipes), _ = draw(FLOW._replace(swipes=0.9999), 5)
  assert all(prompt == reusable == first[0] for prompt, _, reusable in swipes)


def test_a_turn_goes_on_from_the_answer_until_its_history_is_cut():
  found, prefix = draw(FLOW._replace(swipes=0.0, context=1_500), 60)
  cuts = 0
  for (prompt, answer, _), (after, _, reusable) in itertools.pairwise(found):
    if after < prompt + answer:
      cuts += 1
      assert reusable == prefix
    else:
      assert reusable == prompt + answer < after
  assert cuts > 1
  assert max(prompt + answer for prompt, answer, _ in found) <= 1_500


@pytest.mark.parametrize('seconds', [0.002, 0.5, 30.0])
def test_quantiles_are_within_half_a_percent(seconds):
  counts = np.zeros(events.BINS, np.int64)
  place = int(np.log(seconds / events.LEAST) / events.WIDTH)
  counts[place] = 7
  assert simulator.quantile(counts, 0.5) == pytest.approx(seconds, rel=0.005)


def test_loads_are_none_once_all_have_ended(monkeypatch):
  """A replica that was lost, too."""
  made, make = [], state.make_replicas
  monkeypatch.setattr(
    state, 'make_replicas', lambda *x: made.append(make(*x)) or made[-1]
  )
  faults = [(20.0, events.LOSE, 0, 0.0), (40.0, events.SHARE, 0, 1.0)]
  setup = dataclasses.replace(small_fleet.SETUP, replicas=3, faults=faults)
  outcome, _ = small_fleet.run(
    setup, small_fleet.alone(count=300, gap=0.1, answers=60)
  )
  assert outcome.moved > 0
  assert (made[0]['load'] == 0).all() and (made[0]['context_tokens'] == 0).all()
