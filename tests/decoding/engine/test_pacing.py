"""Reading pace: who sits out, what it may cost them, and that texts stay."""

import collections
import itertools

import pytest

from kaiju_jax.decoding.engine import pacing
from kaiju_jax.decoding.engine import schedule
from tests.decoding import fake_engine
from tests.decoding.engine import schedules

PACE = pacing.Pace(8, 30)
make_request = fake_engine.make_request


def running(number, left=0, **fields):
  return schedule.Running(number, 0.0, left, **fields)


def drawn(others, early, queue=(), rows=1):
  budget = schedule.Budget(rows, {'global': 9}, schedules.SHAPES)
  return schedule.plan(queue, others, budget, 0.0, frozenset(early)).draw


def test_one_that_is_ahead_sits_out_where_another_gains():
  both = [running(1), running(2)]
  assert drawn(both, [1]) == (2,)
  assert drawn([running(1), running(3, left=9)], [1]) == ()
  assert drawn([running(1), running(3, is_guided=True)], [1]) == ()
  joining = schedules.waiting(4)
  assert drawn(both, [1, 2], [joining]) == ()


def test_nobody_sits_out_where_nobody_gains():
  both = [running(1), running(2)]
  assert drawn(both, []) == (1, 2)
  assert drawn([running(1)], [1]) == (1,)
  assert drawn(both, [1, 2]) == (1, 2)


def test_nobody_sits_out_while_one_waits_for_a_row():
  others = [running(1), running(2), running(3, left=9)]
  queue = [schedules.waiting(4)]
  assert drawn(others, [1], queue, rows=0) == (1, 2)
  assert drawn(others, [1], queue, rows=1) == (2,)
  # One whose deadline has passed waits no longer.
  late = [queue[0]._replace(deadline=-1.0)]
  assert drawn(others, [1], late, rows=0) == (2,)


@pytest.mark.parametrize(
  'text',
  ['', '8', '8:', ':30', '30:8', '0:30', '-1:30', '8:inf', 'nan:30', 'a'],
)
def test_a_pace_is_two_numbers(text):
  with pytest.raises(ValueError, match=r'pace=.*such as 8:30'):
    pacing.parse(text)


def test_a_pace_is_read():
  assert pacing.parse('8:30') == PACE
  assert pacing.parse('2.5:2.5') == pacing.Pace(2.5, 2.5)


class Times:
  """Runs an engine of rounds that take time; notes when each token came.

  Args:
    engine: with a clock of `fake_engine`.
    seconds: of each round.
  """

  def __init__(self, engine, seconds):
    self.engine, self.seconds = engine, seconds
    self.came = collections.defaultdict(list)

  def advance(self, sequences):
    self.engine.advance()
    self.engine._clock.now += self.seconds
    for one in sequences:
      while one.events:
        one.events.popleft()
        self.came[one.number].append(self.engine._clock.now)


def window(times, seconds):
  """Returns the most events within any window of so many seconds."""
  most = begin = 0
  for end, now in enumerate(times):
    while times[begin] <= now - seconds:
      begin += 1
    most = max(most, end - begin + 1)
  return most


def run_beside_a_prompt(
  make, round_seconds, ahead, pace=PACE, free=0, stall=None
):
  """Runs two streams, of which one is `free` seconds older than a long prompt.

  Its rounds take `stall` seconds then, if that is given.

  Returns:
    The times of the tokens of both while the prompt ran, and its rounds.
  """
  engine = make(
    rows=3,
    length=4096,
    counts=(3200, 12),
    clock=fake_engine.Clock(),
    ahead=ahead,
    pace=pace,
  )
  old = engine.submit(make_request(5, 2000, 1))
  times = Times(engine, stall or round_seconds)
  while engine._clock.now < free:
    times.advance([old])
  times.seconds = round_seconds
  new = engine.submit(make_request(5, 2000, 2))
  while new.number not in times.came:
    times.advance([old, new])
  began = engine._clock.now
  prompt = engine.submit(make_request(3000, 4, 3))
  count = 0
  while not prompt.events and prompt.reason is None:
    times.advance([old, new])
    count += 1
  beside = [
    [x for x in times.came[one.number] if x > began] for one in (old, new)
  ]
  return beside, count * round_seconds


@pytest.mark.parametrize('ahead', [False, True])
@pytest.mark.parametrize('seconds', [0.003, 0.01, 0.02])
def test_beside_a_prompt_no_stream_is_above_its_pace(make, seconds, ahead):
  (old, new), took = run_beside_a_prompt(make, seconds, ahead)
  for times in old, new:
    for size in 0.5, 1.0, 1.7:
      assert window(times, size) <= PACE.high * (size + pacing.CREDIT) + 1
  # And little below, with rounds as short as these.
  assert len(new) > 0.8 * PACE.high * took > 10
  (old, new), took = run_beside_a_prompt(make, seconds, ahead, pace=None)
  assert len(old) == len(new) == pytest.approx(took / seconds, abs=2)


@pytest.mark.parametrize('ahead', [False, True])
def test_a_stream_far_ahead_of_its_reader_keeps_the_least(make, ahead):
  # In two seconds alone it draws what takes a reader twenty.
  (old, new), took = run_beside_a_prompt(make, 0.0033, ahead, free=2.0)
  assert 0.9 * PACE.low * took - 1 < len(old) < 1.1 * PACE.low * took + 2
  assert len(new) > 2 * len(old)
  gaps = [b - a for a, b in itertools.pairwise(old)]
  assert max(gaps) < 1.2 / PACE.low


@pytest.mark.parametrize('ahead', [False, True])
def test_after_a_stall_a_stream_makes_up_for_little(make, ahead):
  (old, _), _ = run_beside_a_prompt(make, 0.003, ahead, free=3.0, stall=0.5)
  # With three seconds to make up for, it would draw in each round.
  assert window(old, 0.3) <= PACE.high * (0.3 + pacing.CREDIT) + 1


@pytest.mark.parametrize('ahead', [False, True])
def test_a_stream_below_its_pace_never_sits_out(make, ahead):
  slow = 1.1 / PACE.high
  (old, new), took = run_beside_a_prompt(make, slow, ahead)
  assert len(old) == len(new) == pytest.approx(took / slow, abs=2)


@pytest.mark.parametrize('ahead', [False, True])
def test_alone_a_stream_is_as_fast_as_without_a_pace(make, ahead):
  counts = []
  for pace in PACE, None:
    clock = fake_engine.Clock()
    engine = make(clock=clock, ahead=ahead, pace=pace)
    one, rounds = engine.submit(make_request(5, 40)), 0
    while one.reason is None:
      engine.advance()
      clock.now += 0.001
      rounds += 1
    counts.append(rounds)
  assert counts[0] == counts[1]
