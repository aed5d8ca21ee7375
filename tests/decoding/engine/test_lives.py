"""Lives of sequences in an engine, over a device that only counts.

What a sequence draws follows from its text alone (`fake_device.py`): however
sequences join, are parked, resume others' points, are cancelled or end badly,
nothing else may come out, and nothing may be left.
"""

import collections
import dataclasses
import functools

from hypothesis import stateful
from hypothesis import strategies
import pytest

from kaiju_jax.decoding.engine import pacing
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling
from tests.decoding import fake_device
from tests.decoding import fake_engine
from tests.decoding import machines
from tests.decoding import phase_table
from tests.decoding.engine import lives

LENGTH, BAD = 64, 199
PREFIXES = [fake_engine.make_request(n, 1, n).tokens for n in (9, 18, 33)]
PACES = None, None, pacing.Pace(8, 30), pacing.Pace(1, 2)


class Life(lives.Life):
  @stateful.initialize(
    ahead=lives.flags,
    is_judged=lives.flags,
    searches=strategies.sampled_from([True, True, False]),
    pace=strategies.sampled_from(PACES),
    counts=strategies.sampled_from([(40, 14), (48, 20), (80, 30)]),
    sinks=strategies.sampled_from([0, 0, 6]),
    patience=strategies.sampled_from([0.0, 0.5, 1e9]),
  )
  def start(self, ahead, is_judged, searches, pace, counts, sinks, patience):
    self.is_judged, self.searches, self.turns = is_judged, searches, {}
    engine = fake_engine.Engine(
      rows=4,
      counts=counts,
      sinks=sinks,
      bad=BAD,
      ahead=ahead,
      is_judged=is_judged,
      extra=9 if searches else 0,
      pace=pace,
      clock=fake_engine.Clock(0.001),
    )
    self.watch(engine, patience)

  def draw_request(self, rng):
    user = rng.randrange(6)
    prefix = PREFIXES[user % 3]
    text = self.turns.get(user, prefix)
    if rng.random() < 0.1 or len(text) > 44:
      text = prefix
    elif rng.random() < 0.2:  # An edit.
      text = text[: rng.randint(len(prefix), len(text))]
    added = [rng.randrange(251) for _ in range(rng.randint(1, 6))]
    tokens = [*text, *added]
    stops = rng.sample(range(251), 8) if rng.random() < 0.5 else ()
    is_guided = self.searches and rng.random() < 0.4
    request = request_lib.Request(
      tokens,
      rng.randint(1, min(9, LENGTH - len(tokens))),
      sampling.Sampling(seed=rng.randrange(3)),
      stop_tokens=stops,
      owner=rng.choice(['', f'user {user}']),
      shared=len(prefix),
      cache_salt=rng.choice(['', '', '', 'salt']),
      conversation=rng.choice([None, user]),
      priority=rng.choice([0, 0, 1, 2]),
      deadline=rng.choice([None, None, None, 1.0]),
      guided=request_lib.Guide(1) if is_guided else None,
    )
    drawn, reason = fake_device.expected(request, BAD)
    if reason == 'length' and not is_guided and rng.random() < 0.2:
      # Another engine began it.
      count = rng.randrange(len(drawn))
      request = dataclasses.replace(request, drawn=drawn[:count])
    return request

  def find_expected(self, one):
    return fake_engine.expected(one.request, BAD)

  def check_ended(self, one):
    if one.reason in ('length', 'stop_token'):
      self.turns[one.request.shared // 9 - 1] = one.text().tokens
    if self.is_judged:
      assert fake_engine.is_judged(one)
    else:
      assert one.result().prompt_scores is None
      assert all(event.scores is None for event in one.events)

  def teardown(self):
    super().teardown()
    # Six users had a conversation each, with and without a name.
    assert len(self.engine.recorder) <= 24
    charged_twice = self.parked or self.failures
    assert charged_twice or not len(self.engine.state.shares)
    assert fake_engine.nothing_is_left(self.engine)


@pytest.mark.parametrize(
  'count', [30, pytest.param(800, marks=pytest.mark.slow)]
)
def test_any_life_gives_each_text_and_leaves_nothing(moves, count):
  seen = collections.Counter()
  settings = machines.quick(Life, count, 20).settings
  stateful.run_state_machine_as_test(
    functools.partial(Life, seen), settings=settings
  )
  reasons = 'length', 'stop_token', 'error', 'late', 'cancelled', 'drained'
  # How many there are depends on hypothesis; none may be missing.
  assert min(seen[x] for x in reasons) > 0
  assert min(seen[f'failed {x}'] for x in lives.CALLS) > 0
  assert min(seen[x] for x in ('parked', 'evicted', 'sat out', 'guided')) > 9
  assert seen['reused'] > 5 * seen['ended'] > 500 * 5
  assert set(moves) == phase_table.LEGAL
