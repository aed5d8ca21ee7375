"""Who joins next, who is parked and whose prompt runs, without a model."""

import collections
import itertools
import random

import pytest

from kaiju_jax.decoding.engine import schedule
from tests.decoding.engine import schedules

OVERTAKES, PASSES = schedule.OVERTAKES, schedule.PASSES


def running(number, frees=None, **fields):
  frees = None if frees is None else {'global': frees}
  return schedule.Running(number, **{'came': 0.0, 'frees': frees, **fields})


def plan(queue, rows=4, pages=100, others=(), now=0.0):
  budget = schedule.Budget(rows, {'global': pages}, schedules.SHAPES)
  return schedule.plan(queue, others, budget, now)


def test_nothing_to_do_is_an_empty_round():
  assert plan([]) == schedule.Round((), (), (), (), (), (), (), (0, 0))


def test_sequences_join_in_their_order_until_rows_are_out():
  several = [schedules.waiting(number, tag=-number) for number in range(5)]
  assert plan(several, rows=3).join == (4, 3, 2)
  assert plan(several, rows=0, others=[running(9)]).join == ()


def test_sequences_join_until_pages_are_out():
  several = [schedules.waiting(number, pages=4) for number in range(5)]
  assert plan(several, pages=11).join == (0, 1)
  needs = {'global': 1, 'local': 3}
  several = [one._replace(needs=needs) for one in several]
  budget = schedule.Budget(4, {'global': 100, 'local': 8}, schedules.SHAPES)
  assert schedule.plan(several, (), budget, 0.0).join == (0, 1)


def test_a_small_sequence_does_not_wait_for_pages_that_it_does_not_need():
  first, large, small = (
    schedules.waiting(0, 14),
    schedules.waiting(1, 9),
    schedules.waiting(2, 3),
  )
  round_ = plan([first, large, small], pages=20)
  assert round_.join == (0, 2)
  assert round_.overtaken == (1,)


def test_each_overtaking_is_counted_for_each_that_was_overtaken():
  queue = [
    schedules.waiting(0, 50),
    schedules.waiting(1, 60),
    schedules.waiting(2),
    schedules.waiting(3),
  ]
  round_ = plan(queue, rows=9, pages=10, others=[running(9)])
  assert round_.join == (2, 3)
  assert round_.overtaken == (0, 1, 0, 1)


@pytest.mark.parametrize('before', range(OVERTAKES + 3))
def test_nobody_is_overtaken_beyond_the_bound(before):
  large = schedules.waiting(0, 50, overtaken=before)
  small = [schedules.waiting(number) for number in range(1, 30)]
  round_ = plan([large, *small], rows=40, pages=40, others=[running(99)])
  assert len(round_.join) == max(OVERTAKES - before, 0)
  # Where nothing runs, no row will leave pages.
  round_ = plan([large, *small], rows=40, pages=40)
  assert len(round_.join) == max(OVERTAKES - before, 1)


def test_large_ones_that_come_behind_each_other_wait_in_their_order():
  """Whoever waits longest is overtaken as often as all others together."""
  rng, counts = random.Random(0), collections.Counter()
  queue, numbers, held = {}, itertools.count(), collections.deque()
  served = set()
  for _ in range(400):
    while len(queue) < 12:
      number = next(numbers)
      pages = 15 if rng.random() < 0.2 else rng.randint(1, 5)
      queue[number] = schedules.waiting(number, pages, overtaken=0)
    if len(held) > 3 or (held and rng.random() < 0.5):
      held.popleft()
    free = 20 - sum(pages for _, pages in held)
    others = [running(number) for number, _ in held]
    round_ = plan(list(queue.values()), 6 - len(held), free, others)
    for number in round_.overtaken:
      counts[number] += 1
      queue[number] = queue[number]._replace(overtaken=counts[number])
    for number in round_.join:
      held.append((number, queue.pop(number).needs['global']))
      served.add(number)
  assert max(counts.values()) == OVERTAKES
  assert len(served) > 150
  # Nobody was left behind.
  assert min(queue) > max(served) - 2 * OVERTAKES - 12


def test_followers_wait_for_what_runs():
  queue = [schedules.waiting(0, follows=[9]), schedules.waiting(1)]
  round_ = plan(queue, others=[running(9, left=4)])
  assert round_.join == (1,)
  # It is not overtaken: it waits for what it will not have to run.
  assert round_.overtaken == ()
  assert plan(queue, others=[running(8)]).join == (0, 1)


def test_followers_wait_for_what_joins_with_them():
  candidates = [schedules.waiting(x, follows=range(x)) for x in range(4)]
  assert plan([*candidates, schedules.waiting(4)]).join == (0, 4)
  # The first does not fit, so that the second is the first to run.
  candidates[0] = schedules.waiting(0, pages=1000)
  assert plan(candidates).join == (1,)


def test_those_that_were_not_looked_up_wait():
  assert plan(
    [schedules.waiting(0), schedules.waiting(1, None), schedules.waiting(2)]
  ).join == (0,)


def test_higher_priorities_come_first():
  queue = [
    schedules.waiting(0),
    schedules.waiting(1, priority=2),
    schedules.waiting(2, priority=1),
  ]
  assert [x.number for x in schedule.sort_waiting(queue, 0.0)] == [1, 2, 0]
  assert plan(queue, rows=2).join == (1, 2)


def test_waiting_lifts_a_priority_to_the_highest_that_waits():
  old = schedules.waiting(0, tag=5.0, priority=0)
  new = schedules.waiting(1, tag=9.0, priority=2, came=20.0)

  def first(now):
    return schedule.sort_waiting([old, new], now)[0].number

  just = 2 * schedule.AGEING
  # As high as the new one, and before it in its share.
  assert first(just - 0.01) == 1
  assert first(just) == 0
  # Not higher: waiting takes nobody's share.
  assert (
    schedule.sort_waiting([old._replace(tag=10.0), new], 1e6)[0].number == 1
  )
  # A clock that ran back does no harm.
  assert (
    schedule.sort_waiting([new._replace(came=9e9), old], 0.0)[0].number == 1
  )


def test_an_old_flood_does_not_go_before_another_owner():
  """Many requests that have waited long, and one that has just come."""
  flood = [
    schedules.waiting(number, tag=100.0 * number) for number in range(50)
  ]
  one = schedules.waiting(50, tag=150.0, came=1000.0)
  order = [x.number for x in schedule.sort_waiting([*flood, one], 1000.0)]
  assert order.index(50) == 2


class Owners:
  """Owners whose sequences wait, and what each was served."""

  def __init__(self):
    self.shares, self.numbers = schedule.Shares(), itertools.count()
    self.queue, self.owner = {}, {}
    self.served = collections.Counter()
    self.now = 0.0

  def submit(self, owner, tokens, **fields):
    number = next(self.numbers)
    tag = self.shares.tag(owner, tokens)
    self.owner[number] = owner, tokens
    self.queue[number] = schedules.waiting(
      number, tag=tag, came=self.now, left=tokens, **fields
    )
    return number

  def join(self, rows):
    """Returns who joins."""
    join = plan(list(self.queue.values()), rows, now=self.now).join
    for number in join:
      owner, tokens = self.owner[number]
      self.shares.note_joined(self.queue.pop(number).tag, tokens)
      self.served[owner] += tokens
    return join


@pytest.mark.parametrize('seed', range(3))
def test_owners_with_much_to_do_are_served_as_many_tokens(seed):
  """One with many small sequences, one with a few large ones, for hours."""
  rng, owners = random.Random(seed), Owners()
  sizes = {b'many': (1, 60), b'few': (100, 1000)}
  submitted, most = collections.Counter(), 0
  for _ in range(700):
    owners.now += rng.uniform(0, 20)
    for owner, (least, largest) in sizes.items():
      while submitted[owner] - owners.served[owner] < 3000:
        tokens = rng.randint(least, largest)
        submitted[owner] += tokens
        owners.submit(owner, tokens)
    owners.join(rng.randint(0, 3))
    most = max(most, abs(owners.served[b'many'] - owners.served[b'few']))
  assert min(owners.served.values()) > 25_000
  assert 500 < most <= 1000 + 60


def test_one_that_asks_seldom_waits_for_nobody_s_flood():
  owners = Owners()
  for _ in range(300):
    owners.submit(b'flood', 500)
  waits = []
  for _ in range(40):
    for _ in range(5):
      owners.join(1)
    owners.now += 60.0
    number = owners.submit(b'seldom', 100)
    joined = [owners.join(1)[0] for _ in range(3)]
    waits.append(joined.index(number))
  assert max(waits) <= 1


def test_what_an_owner_asked_long_ago_is_forgotten():
  """Each owner asks once, and one asks again after all others."""
  owners = Owners()
  for number in range(500):
    owners.submit(b'%d' % number, 100)
    owners.submit(b'%da' % number, 40)
    owners.join(1 + number % 3)
    # As many as wait have not had their share, or fewer.
    assert len(owners.shares) <= len(owners.queue) + 1
  again = owners.submit(b'0', 100)
  new = owners.submit(b'new', 100)
  assert owners.queue[again].tag == owners.queue[new].tag
  while owners.queue:
    owners.join(2)
  assert len(owners.shares) == 0


def test_what_was_cancelled_does_not_count():
  shares = schedule.Shares()
  for _ in range(100):
    shares.tag(b'a', 1000)
  for _ in range(100):
    shares.note_unserved(b'a', 1000)
  assert len(shares) == 0
  assert shares.tag(b'a', 10) == shares.tag(b'b', 10) == 0.0
  shares.note_unserved(b'nobody', 5)


def test_a_sequence_of_lower_priority_gives_up_its_row():
  high = schedules.waiting(0, priority=1)
  others = [
    running(1, 3, priority=1),
    running(2, 3, came=1.0),
    running(3, 3, came=2.0),
    running(4, 3, priority=-1, came=0.0, left=9),
  ]
  round_ = plan([high], rows=0, pages=5, others=others)
  # The lowest, however early it came; then the latest.
  assert round_.park == (4,)
  assert round_.join == ()
  assert round_.draw == (1, 2, 3)
  assert round_.prefill == ()
  assert plan([high], 0, 5, others[:3]).park == (3,)


def test_a_row_that_is_free_parks_nobody():
  high = schedules.waiting(0, priority=1)
  assert plan([high], rows=1, others=[running(1, 3)]).park == ()


def test_only_as_many_are_parked_as_leave_enough_and_none_if_too_few_do():
  high = schedules.waiting(0, pages=10, priority=1)
  others = [running(number, 3, came=number) for number in range(1, 4)]
  others.append(running(4, 50, priority=1))
  for pages, parked in ((10, ()), (7, (3,)), (4, (3, 2)), (1, (3, 2, 1))):
    assert plan([high], 4, pages, others).park == parked
  assert plan([high], 4, 0, others).park == ()
  # In vain for pages, so in vain for rows.
  assert plan([high], 0, 0, others).park == ()


def test_nobody_takes_what_was_parked_for_another():
  high, low = schedules.waiting(0, pages=10, priority=1), schedules.waiting(1)
  others = [running(2, 8)]
  round_ = plan([high, low], rows=2, pages=5, others=others)
  assert round_.park == (2,)
  assert round_.join == () and round_.overtaken == ()


def test_one_that_would_take_its_row_back_at_once_keeps_it():
  """It had waited for long before it joined, and comes before in its share."""
  high = schedules.waiting(0, priority=1, came=50.0, tag=5.0)
  low = running(1, 3, tag=4.0, waited=schedule.AGEING)
  assert plan([high], rows=0, others=[low], now=50.0).park == ()
  for other in (
    low._replace(tag=6.0),
    low._replace(waited=schedule.AGEING - 1),
  ):
    assert plan([high], rows=0, others=[other], now=50.0).park == (1,)


def test_a_scored_prompt_is_parked_only_once_it_draws():
  """Its scores are not in the cache."""
  high = schedules.waiting(0, priority=1)
  prompt = running(1, 3, left=5, is_alone=True)
  assert plan([high], rows=0, others=[prompt]).park == ()
  assert plan([high], rows=0, others=[prompt._replace(left=0)]).park == (1,)
  assert plan([high], 0, others=[prompt._replace(is_alone=False)]).park == (1,)


def test_one_that_follows_parks_nobody():
  high = schedules.waiting(0, priority=1, follows=[1])
  assert plan([high], rows=0, others=[running(1, 3)]).park == ()
  assert plan([high], rows=0, others=[running(2, 3)]).park == (2,)


def test_what_was_parked_does_not_come_back_for_what_parked_it():
  """Pages are short; the first in the order needs those of all lower ones."""
  high = schedules.waiting(10, pages=12, priority=1, came=5.0)
  lower = {number: running(number, 6, came=number) for number in (1, 2)}
  queue, events = {10: high}, []
  for now in range(60):
    held = dict(lower)
    free = 12 - 6 * len([x for x in held if x < 10]) - 12 * (10 in held)
    round_ = plan(list(queue.values()), 3 - len(held), free, held.values(), now)
    for number in round_.park:
      events.append(('park', number))
      del lower[number]
      queue[number] = schedules.waiting(number, pages=6, came=number)
    for number in round_.join:
      events.append(('join', number))
      del queue[number]
      pages = 12 if number == 10 else 6
      priority = int(number == 10)
      lower[number] = running(number, pages, came=number, priority=priority)
    if now == 30:
      del lower[10]
  parked, joined = [('park', 2), ('park', 1)], [('join', 1), ('join', 2)]
  assert events == [*parked, ('join', 10), *joined]


def test_no_other_shape_runs_more_for_its_slots():
  rng, chosen = random.Random(1), collections.Counter()
  for _ in range(2000):
    prompts = [
      running(
        number,
        left=int(2 ** rng.uniform(0, 11)),
        passed=rng.choice([0, 0, 0, 1, 2, 3, 4]),
        is_alone=rng.random() < 0.1,
      )
      for number in range(rng.randint(1, 12))
    ]
    numbers, shape = schedule.batch(prompts, schedules.SHAPES)
    chosen[shape] += 1
    due = [x for x in prompts if x.passed >= PASSES]
    others = [x for x in prompts if x.passed < PASSES]
    due.sort(key=lambda one: -one.passed)
    others.sort(key=lambda one: one.left)
    queue = due + others
    # A scored prompt has the whole call, or no part in it.
    if queue[0].is_alone:
      queue = queue[:1]
    queue = [x for x in queue if len(queue) == 1 or not x.is_alone]
    rows, size = shape
    assert numbers == tuple(x.number for x in queue[:rows])

    def worth(rows, size, queue=queue):
      tokens = sum(min(x.left, size) for x in queue[:rows])
      return tokens / (rows * size + schedule._ROUND)

    for other in schedules.SHAPES:
      assert worth(*shape) >= worth(*other)
      if worth(*shape) == worth(*other):
        assert rows * size <= other[0] * other[1]
  # Each is the best at times.
  assert set(chosen) == set(schedules.SHAPES)


@pytest.mark.parametrize('shapes', [[(1, 8)], [(1, 8), (1, 32), (4, 8)]])
@pytest.mark.parametrize('count', [1, 4, 9])
def test_every_prompt_runs_a_chunk_within_a_bound(count, shapes):
  """Short prompts that come forever, beside `count` long ones."""
  rng, numbers = random.Random(count), itertools.count()
  left = {next(numbers): 100_000 for _ in range(count)}
  passed = collections.Counter()
  most = 0
  for _ in range(300):
    while len(left) < count + 2:
      left[next(numbers)] = rng.randint(1, 8)
    prompts = [
      running(number, left=tokens, passed=passed[number])
      for number, tokens in left.items()
    ]
    chosen, (_, size) = schedule.batch(prompts, shapes)
    passed.update(left.keys())
    for number in chosen:
      most = max(most, passed[number])
      passed[number] = 0
      left[number] -= size
      if left[number] <= 0:
        del left[number]
  # k prompts at once are the long ones and two short ones.
  assert most <= (count + 2) + PASSES
  assert len(shapes) > 1 or most > PASSES
  assert max(passed.values()) <= (count + 2) + PASSES


def test_the_expected_wait_is_that_of_rows_as_they_become_free():
  assert schedule.expected_wait([], [5, 9], 1) == 0
  assert schedule.expected_wait([], [5, 9], 0) == 5
  # The first takes the row that is free after 5, and has it until 8.
  assert schedule.expected_wait([3], [5, 9], 0) == 8
  assert schedule.expected_wait([3, 7], [5, 9], 0) == 9
  assert schedule.expected_wait([4, 4, 4], [], 2) == 4
  # Others hold all rows.
  assert schedule.expected_wait([4, 4], [], 0) == 8


def test_one_search_runs_in_a_round_the_one_that_waited_longest():
  others = [
    running(1, is_guided=True, passed=2),
    running(2),
    running(3, is_guided=True, passed=4),
    running(4, is_guided=True, left=9, passed=7),
    running(5, is_guided=True, passed=4),
  ]
  found = plan([], others=others)
  assert found.search == (3,)
  assert found.draw == (2,)
  assert found.prefill == (4,)


def test_a_search_that_may_not_be_parked_keeps_its_row():
  first = [schedules.waiting(9, priority=1)]
  search = running(1, is_guided=True)
  assert plan(first, rows=0, others=[search]).park == ()
  draws = running(2, frees=1)
  assert plan(first, rows=0, others=[search, draws]).park == (2,)
