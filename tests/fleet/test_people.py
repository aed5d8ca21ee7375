"""Traffic follows the laws that its parameters name, and stays as frozen."""

import collections
import dataclasses
import hashlib

import numpy as np
import pytest
from scipy import special

from kaiju_jax.fleet import people as people_lib
from tests.fleet import small_fleet

DAY = people_lib.DAY
MANY = people_lib.People(seed=7, live=300, requests=60_000, warm_up=10.0)
SMALL = people_lib.People(
  seed=3,
  requests=1_500,
  live=12,
  characters=8,
  prefix=(60, 200),
  message=12,
  answer=24,
  longest=60,
  context=1_000,
  swipes=0.2,
  edits=0.1,
  forks=0.05,
  warm_up=3.0,
)
# The traces of experiments/results/replay.md, before anything was tuned on
# them: (live, swipes) and the beginning of a digest.
FROZEN = {
  (40, 0.15): '4c5a9921cf1a3bc6',
  (40, 0.45): 'bce0a1b47d1f8799',
  (80, 0.15): '0034af47baf7f82b',
  (80, 0.45): '520936362f32cd69',
}


@pytest.fixture(scope='module')
def many():
  return people_lib.draw(MANY)


def digest(trace):
  found = hashlib.sha256()
  for name, column in trace._asdict().items():
    if name not in ('people', 'begin'):
      # Seconds are rounded: their last bits may differ between processors.
      rounded = np.round(np.asarray(column, float))
      found.update(rounded.astype(np.int64).tobytes())
  return found.hexdigest()[:16]


@pytest.mark.parametrize('live, swipes', FROZEN)
def test_the_traces_are_as_they_were_frozen(live, swipes):
  trace = people_lib.draw(people_lib.People(live=live, swipes=swipes))
  assert digest(trace) == FROZEN[live, swipes]


def test_another_seed_is_another_trace():
  again = people_lib.draw(dataclasses.replace(SMALL))
  other = people_lib.draw(dataclasses.replace(SMALL, seed=4))
  assert digest(people_lib.draw(SMALL)) == digest(again) != digest(other)


def near(count, expected, total):
  """Whether a count of `total` draws is within five standard deviations."""
  share = expected / total
  return abs(count - expected) <= 5 * (total * share * (1 - share)) ** 0.5 + 1


def visits(trace):
  """Returns the first and the last request of each visit, person by person."""
  order = np.lexsort((trace.seconds, trace.person))
  keys = trace.person[order].astype(np.int64) << 20 | trace.visit[order]
  first = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
  last = np.r_[first[1:], keys.size] - 1
  return order[first], order[last]


def test_visits_follow_the_day(many):
  first, _ = visits(many)
  hours = many.seconds[first] % DAY / 3600
  # From the first whole day on: a trace begins and ends within a day.
  whole = many.seconds[first] < many.seconds[-1] // DAY * DAY
  counts, edges = np.histogram(hours[whole], 8, (0, 24))
  turn = 2 * np.pi / 24
  share = np.diff(edges + np.sin(turn * (edges - 18)) / turn) / 24
  assert counts.sum() > 3_000 and share.max() / share.min() > 15
  for count, expected in zip(counts, counts.sum() * share):
    assert near(count, expected, counts.sum())


def test_requests_come_at_the_named_rate(many):
  days = many.seconds[-1] / DAY
  # Some 2,000 visits with a geometric number of requests.
  assert MANY.requests / days == pytest.approx(DAY * MANY.rate, rel=0.2)
  assert (np.diff(many.seconds) >= 0).all()
  assert many.seconds[many.begin - 1] < 0 <= many.seconds[many.begin]


def test_as_many_people_are_live_as_named():
  """Little's law, where lives are short beside the trace."""
  people = people_lib.People(
    live=300, away=(0.05, 0.5), requests=20_000, warm_up=1.0
  )
  trace = people_lib.draw(people)
  count = int(trace.person.max()) + 1
  first, last = np.full(count, np.inf), np.full(count, -np.inf)
  np.minimum.at(first, trace.person, trace.seconds)
  np.maximum.at(last, trace.person, trace.seconds)
  moments = np.linspace(0, trace.seconds[-1] - DAY / 4, 40)
  live = [((first <= now) & (now <= last)).sum() for now in moments]
  assert np.mean(live) == pytest.approx(300, rel=0.25)


def test_visits_are_geometric_and_pauses_log_normal(many):
  first, last = visits(many)
  order = np.lexsort((many.seconds, many.person))
  gaps = np.diff(many.seconds[order])
  same = (np.diff(many.person[order]) == 0) & (np.diff(many.visit[order]) == 0)
  thinks = gaps[same]
  for share in 0.1, 0.5, 0.9:
    below = (thinks < 60 * np.exp(special.ndtri(share))).sum()
    assert near(below, share * thinks.size, thinks.size)
  # Visits that were cut neither at the beginning nor at the end.
  whole = many.seconds[last] < many.seconds[-1] - DAY
  assert near(
    (first[whole] == last[whole]).sum(), whole.sum() / 30, whole.sum()
  )
  assert near(same.sum(), same.size * 29 / 30, same.size)


def test_people_return_after_log_normal_days_or_never(many):
  first, last = visits(many)
  person = many.person[first]
  clock = MANY.clock(many.seconds)
  # The next visit of the same person, on the day clock.
  away = np.full(first.size, np.inf)
  is_next = person[1:] == person[:-1]
  away[:-1][is_next] = (clock[first[1:]] - clock[last[:-1]])[is_next]
  for days in 0.25, 1.0, 4.0, 8.0:
    seen = clock[last] < clock[-1] - DAY * days
    returned = (away[seen] <= DAY * days).sum()
    share = 0.65 * special.ndtr(np.log(days))
    assert near(returned, share * seen.sum(), seen.sum())


def test_kinds_have_their_shares(many):
  order = np.lexsort((many.seconds, many.person))
  person, chat, kind = (
    column[order] for column in (many.person, many.chat, many.kind)
  )
  is_first = np.r_[True, person[1:] != person[:-1]]
  opens = np.zeros(chat.size, bool)
  opens[np.unique(chat, return_index=True)[1]] = True
  is_fork = kind == people_lib.FORK
  others = (~is_first).sum()
  assert opens[is_first].all() and opens[is_fork].all()
  assert near(is_fork.sum(), 0.01 * others, others)
  assert near((opens & ~is_first).sum(), 0.03 * others, others)
  # Chats that are left and taken up again.
  back = np.flatnonzero(np.diff(chat) < 0)
  back = back[person[back] == person[back + 1]]
  assert back.size > 0.005 * others
  within = (~opens).sum()
  for name, share in (('swipe', 0.15), ('edit', 0.01)):
    count = (kind[~opens] == people_lib.KINDS.index(name)).sum()
    assert near(count, share * within, within)
  assert near(many.is_cancelled.sum(), 0.05 * chat.size, chat.size)
  kept = many.answer[~many.is_cancelled]
  assert np.median(kept) == pytest.approx(120, rel=0.05)
  assert np.median(many.answer[many.is_cancelled]) < 60


def openings(trace):
  """Returns the first requests of the chats that are no forks."""
  first = np.unique(trace.chat, return_index=True)[1]
  return np.sort(first[trace.kind[first] != people_lib.FORK])


def test_characters_follow_zipf_and_drift():
  steady = people_lib.draw(dataclasses.replace(MANY, drift=0.0))
  drawn = steady.character[openings(steady)]
  law = 1 / np.arange(1, 301)
  law /= law.sum()
  for low, high in (0, 1), (1, 4), (4, 30), (30, 300):
    count = ((drawn >= low) & (drawn < high)).sum()
    assert near(count, law[low:high].sum() * drawn.size, drawn.size)
  # All ranks are replaced as by a clock of Poisson's.
  one = dataclasses.replace(MANY, characters=1, drift=6.0)
  drifting = people_lib.draw(one)
  at = openings(drifting)
  assert (np.diff(drifting.character[at]) >= 0).all()
  days = (drifting.seconds[-1] - drifting.seconds[0]) / DAY
  count = int(drifting.character[at[-1]] - drifting.character[at[0]])
  assert abs(count - 6 * days) < 5 * (6 * days) ** 0.5 + 6


def test_texts_are_those_of_the_columns():
  trace = people_lib.draw(SMALL)
  found = list(people_lib.draw_texts(trace))
  assert len(found) == SMALL.requests
  for at, one in enumerate(found, trace.begin):
    tokens = one.tokens()
    assert len(tokens) == trace.prompt[at]
    assert len(tokens) + len(one.answer.tokens) <= SMALL.context
    assert one.shared == trace.prefix[one.character]
    assert 60 <= one.shared <= 200 and one.person == trace.person[at]
  small_fleet.check_continuations(found)
  # A fork repeats an earlier turn in a chat of its own.
  known, forks = collections.defaultdict(list), 0
  for one in found:
    own = known[one.person]
    if one.kind == 'fork':
      assert one.session not in {other.session for other in own}
      repeated = [x for x in own if x.prompt[:-2] == one.prompt[:-2]]
      # Turns of the warm-up are not among the texts.
      forks += bool(repeated)
      assert all(x.prompt[-2:] != one.prompt[-2:] for x in repeated)
    own.append(one)
  assert forks > 10


def test_forks_go_back_by_a_geometric_number_of_turns(many):
  order = np.lexsort((many.seconds, many.person))
  at = np.flatnonzero(many.kind[order] == people_lib.FORK)
  # A fork comes from the chat that its person was in.
  before, turns = many.turns[order[at - 1]], many.turns[order[at]]
  back = (before - turns)[before >= 12] + 1
  for least in 1, 2, 4:
    count = (back > least).sum()
    assert near(count, back.size * (2 / 3) ** least, back.size)
