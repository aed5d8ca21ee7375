"""A rollout's steps on a clock that stands still, and what ends it."""

import random

import pytest
import scipy.stats

from kaiju_jax.serving.routing import rollout as rollout_lib

Tally = rollout_lib.RequestCounts
NONE = Tally()
PLAN = rollout_lib.Plan(hold=60)


class Watched:
  """A rollout, a clock, and tallies that go on."""

  def __init__(self, plan=PLAN):
    self.now = 1000.0
    self.rollout = rollout_lib.Rollout(plan, self.now)
    self.own, self.others = Tally(), Tally(10_000, 10, 50)
    self.is_warm = self.is_alive = True

  def look(self, seconds=0.0, own=NONE, others=NONE):
    self.now += seconds
    self.own, self.others = self.own + own, self.others + others
    sight = rollout_lib.Observation(
      self.is_alive, self.is_warm, self.own, self.others
    )
    self.rollout.update(self.now, sight)
    return self.rollout.state, self.rollout.share

  def through(self, own=NONE, others=NONE):
    """Looks every second until it ends; returns the shares and their times."""
    shares, begun = [(0.0, 0)], self.now
    while not self.rollout.has_ended and self.now < begun + 20_000:
      _, share = self.look(1, own, others)
      if share != shares[-1][0]:
        shares.append((share, self.now - begun))
    return shares


def test_it_warms_and_opens_by_steps():
  one = Watched()
  one.is_warm = False
  assert one.look(299) == ('warming', 0.0)
  one.is_warm = True
  assert one.look() == ('opening', 0.1)
  assert one.look(59) == ('opening', 0.1)
  assert one.look(1) == ('opening', 0.5)
  assert one.look(60) == ('opening', 1.0)
  assert one.look(59) == ('opening', 1.0)
  assert one.look(1) == ('done', 1.0)
  one.is_alive = False  # No longer a rollout's matter.
  assert one.look(1) == ('done', 1.0)


def test_what_does_not_warm_is_given_up():
  one = Watched()
  one.is_warm = False
  assert one.look(300) == ('stopped', 0.0)
  assert one.rollout.reason == 'not warm within 300 s'
  one.is_warm = True
  assert one.look(1) == ('stopped', 0.0)


@pytest.mark.parametrize('steps', range(4))
def test_a_replica_that_is_gone_has_no_share(steps):
  one = Watched()
  one.is_warm = steps > 0
  one.look()
  for _ in range(steps - 1):
    one.look(60)
  one.is_alive = False
  assert one.look(1) == ('stopped', 0.0)
  assert one.rollout.reason == 'the replica is gone'


@pytest.mark.parametrize('field', ['failures', 'refusals'])
def test_what_is_worse_is_taken_back(field):
  """10 % where others have .1 %: within the first step, long before its end."""
  one = Watched()
  worse = Tally(10)._replace(**{field: 1})
  others = Tally(1000)._replace(**{field: 1})
  shares = one.through(worse, others)
  assert one.rollout.state == 'stopped' and field in one.rollout.reason
  assert [share for share, _ in shares] == [0.0, 0.1, 0.0]
  assert shares[-1][1] < 20


def test_a_little_worse_is_seen_at_the_end_of_a_step():
  one = Watched()
  one.look()
  one.look(30, Tally(1000, 8), Tally(10_000, 20))
  assert one.rollout.share == 0.1
  assert one.look(30) == ('stopped', 0.0)
  assert '8 failures in 1000 requests; others: 20' in one.rollout.reason


def test_a_step_counts_its_own_requests_alone():
  """Faults of the time before are not held against it, nor for it."""
  one = Watched()
  one.own = Tally(100, 100, 100)
  one.others = Tally(10**6)
  assert [x for x, _ in one.through(Tally(10), Tally(300))] == [
    0.0,
    0.1,
    0.5,
    1.0,
  ]
  assert one.rollout.state == 'done'
  one = Watched()
  one.own = Tally(10**6)
  one.through(Tally(10, 2), Tally(300))
  assert one.rollout.state == 'stopped'


def test_another_build_is_judged_by_enough_requests():
  plan = rollout_lib.Plan(hold=60, requests=50, patience=600)
  one = Watched(plan)
  one.look()
  assert one.look(599, Tally(49)) == ('opening', 0.1)
  assert one.look(0, Tally(1)) == ('opening', 0.5)
  assert one.look(599, Tally(49)) == ('opening', 0.5)
  assert one.look(1) == ('stopped', 0.0)
  assert 'too few' in one.rollout.reason


def test_a_night_without_requests_does_not_hold_up_an_equal_build():
  shares = Watched().through()
  assert shares == [(0.0, 0), (0.1, 1), (0.5, 61), (1.0, 121)]


def test_alone_it_must_not_fail_most_requests():
  one = Watched()
  one.others = Tally()
  one.look()
  assert one.look(1, Tally(6, 4)) == ('opening', 0.1)
  assert one.look(1, Tally(2, 2)) == ('stopped', 0.0)


def test_an_operator_stops_it_at_any_time():
  one = Watched()
  one.look()
  one.rollout.stop('rolled back')
  assert (one.rollout.share, one.rollout.reason) == (0.0, 'rolled back')
  assert one.look(60) == ('stopped', 0.0)


@pytest.mark.parametrize('rate', [0.0, 0.001, 0.05, 0.3])
def test_what_is_no_worse_is_rarely_stopped(rate):
  """At the plan's chance, over three steps and all looks between them."""
  draws = random.Random(0)

  def draw(count):
    return Tally(
      count,
      sum(draws.random() < rate for _ in range(count)),
      sum(draws.random() < rate for _ in range(count)),
    )

  stopped = 0
  for _ in range(60):
    one = Watched(rollout_lib.Plan(hold=12))
    while not one.rollout.has_ended:
      one.look(1, draw(4), draw(20))
    stopped += one.rollout.state == 'stopped'
  # Three ends of steps of two kinds: .06 each; 11 of 60 have chance 1e-3.
  assert stopped <= 11


@pytest.mark.parametrize(
  'own, others',
  [((100, 5), (1000, 10)), ((10, 1), (10, 0)), ((50, 3), (80, 3))],
)
def test_the_test_is_no_sharper_than_fishers(own, others):
  own, others = Tally(*own), Tally(*others)
  table = [
    [own.failures, own.requests - own.failures],
    [others.failures, others.requests - others.failures],
  ]
  exact = scipy.stats.fisher_exact(table, 'greater').pvalue
  found = rollout_lib.chance_of(own, others, 'failures')
  assert exact <= found < 3 * exact + 0.01
  assert rollout_lib.chance_of(own, Tally(), 'failures') == 1
  assert rollout_lib.chance_of(Tally(10), others, 'failures') == 1


@pytest.mark.parametrize(
  'options',
  [
    {'shares': (0.5, 0.1, 1.0)},
    {'shares': (0.0, 1.0)},
    {'shares': (0.1, 0.5)},
    {'shares': ()},
    {'hold': -1},
    {'hold': float('nan')},
    {'requests': -1},
  ],
)
def test_a_plan_that_is_none_is_refused(options):
  (name,) = options
  with pytest.raises(ValueError, match=f'^{name}='):
    rollout_lib.Plan(**options)
