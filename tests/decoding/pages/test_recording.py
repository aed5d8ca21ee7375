"""Which points a conversation leaves, and that none is left by mistake."""

import itertools
import random

import numpy as np
import pytest

from kaiju_jax.decoding.pages import eviction
from kaiju_jax.decoding.pages import pages as pages_lib
from kaiju_jax.decoding.pages import prefix_tree
from kaiju_jax.decoding.pages import recording

S, WINDOW, EVERY = 4, 10, 16
PREFIX = list(range(100, 110))


class Engine:
  """Serves requests by tokens that nobody computes."""

  def __init__(self):
    self.pages = pages_lib.Pages({'global': 900, 'local': 900})
    policy = eviction.LeastWorth(self.pages)
    rings = {'local': prefix_tree.Ring(WINDOW)}
    self.tree = prefix_tree.PrefixTree(self.pages, S, rings, policy)
    self.recorder = recording.Recorder(self.tree, EVERY)

  def begin(self, prompt, conversation='one'):
    text = self.text(prompt)
    match = self.tree.match(text)
    if match is not None:
      self.tree.touch(match, text.owner)
    points = self.recorder.open_request(text, match, conversation)
    return points, 0 if match is None else match.length

  def text(self, tokens):
    return prefix_tree.Text(np.array(tokens, np.int32), len(PREFIX), b'me')

  def record(self, points, tokens):
    count = -(-len(tokens) // S)
    taken = {kind: self.pages.take(kind, count) for kind in self.pages.kinds}
    lowest = max(0, len(tokens) - (WINDOW - 1)) // S
    held = {
      'global': dict(enumerate(taken['global'])),
      'local': dict(list(enumerate(taken['local']))[lowest:]),
    }
    point = points.record(self.text(tokens), held)
    for kind, pages in taken.items():
      self.pages.release(kind, pages)
    return point

  def serve(self, prompt, answer, conversation='one', stopped=None):
    """Returns how many tokens were there; stops before a length, if given."""
    points, hits = self.begin(prompt, conversation)
    for length in (*points.lengths, len(prompt) + len(answer)):
      if stopped is None or length < stopped:
        self.record(points, [*prompt, *answer][:length])
    points.end()
    return hits

  def lengths(self):
    return sorted(point.length for point in self.tree.points())


def test_stops_rise_to_the_prompt_and_none_is_far_from_the_next():
  for resumed, prompt, shared in itertools.product(
    range(0, 60, 7), range(1, 70, 3), range(0, 70, 9)
  ):
    if resumed >= prompt:
      continue
    found = recording.choose_lengths(resumed, prompt, shared, EVERY)
    assert found == sorted(set(found)) and found[-1] == prompt
    assert (shared in found) >= (resumed < shared < prompt)
    gaps = np.diff([resumed, *found])
    assert gaps.min() > 0 and gaps.max() <= EVERY


def test_nobody_waits_for_what_is_anothers_own():
  """Of another owner's prompt that runs, what both say is shared will serve."""

  def text(shared, owner, salt=b''):
    return prefix_tree.Text(np.arange(20, dtype=np.int32), shared, owner, salt)

  stops, other = [6, 12, 20], text(12, b'b')
  found = [
    recording.count_resumable(text(shared, owner, salt), stops, other)
    for shared, owner, salt in (
      (12, b'b', b''),
      (12, b'a', b''),
      (6, b'a', b''),
      (20, b'a', b''),
      (0, b'a', b''),
      (12, b'a', b'salt'),
    )
  ]
  assert found == [19, 12, 6, 12, 0, 0]


def test_a_turn_replaces_the_one_before_it_but_for_where_it_resumed():
  engine, history = Engine(), list(PREFIX)
  lengths = []
  for turn in range(4):
    prompt, answer = [*history, turn, turn], [50 + turn] * 5
    assert engine.serve(prompt, answer) == (len(history) if turn else 0)
    history = [*prompt, *answer]
    lengths.append(engine.lengths())
  assert lengths == [
    [10, 12, 17],
    [10, 17, 19, 24],
    [10, 24, 26, 31],
    [10, 31, 33, 38],
  ]


def test_answers_to_one_prompt_stay_until_the_next_prompt_chooses():
  engine, prompt = Engine(), [*PREFIX, 1, 1]
  for answer in (2, 3, 4):
    hits = engine.serve(prompt, [answer] * 5)
  assert hits == len(prompt) - 1  # A swipe.
  assert engine.lengths() == [10, 12, 17, 17, 17]
  assert engine.serve([*prompt, *[3] * 5, 6], [7]) == 17
  assert engine.lengths() == [10, 17, 18, 19]


def test_swipes_without_end_pile_nothing_up():
  engine, prompt = Engine(), [*PREFIX, 1, 1]
  for answer in range(50):
    engine.serve(prompt, [answer])
    while len(engine.tree) > 4:
      engine.tree.evict()
  assert len(engine.recorder._latest['one'].points) <= 6


def test_a_prompt_that_is_what_was_there_keeps_its_point():
  engine, prompt = Engine(), [*PREFIX, 1, 1]
  engine.serve(prompt, [2] * 5)
  # The point at 17 lacks the window of 16 tokens, and is recorded once more.
  assert engine.serve([*prompt, *[2] * 5], [3]) == 12
  assert engine.lengths() == [10, 12, 17, 18]


def test_an_edit_goes_back_behind_the_turn_before():
  engine = Engine()
  first = [*PREFIX, 1, 1, *[2] * 5]
  engine.serve(first[:12], first[12:])
  engine.serve([*first, *[3] * 12], [4] * 5)
  for edited in (5, 6):
    assert engine.serve([*first, *[edited] * 12], [4] * 5) == len(first)
  assert engine.lengths() == [10, 17, 29, 34]


def test_points_of_a_prefills_middle_give_way():
  engine, prompt = Engine(), [*PREFIX, *range(60)]
  points, _ = engine.begin(prompt)
  seen = []
  for length in points.lengths:
    engine.record(points, prompt[:length])
    seen.append(engine.lengths())
  points.end()
  assert points.lengths == [10, 16, 32, 48, 64, 70]
  assert seen[1:] == [[10, 16], [10, 32], [10, 48], [10, 64], [10, 70]]


def test_a_cancelled_prefill_goes_on_and_costs_nothing_that_was_there():
  engine, prompt = Engine(), [*PREFIX, 1, 1]
  engine.serve(prompt, [2] * 5)
  before = engine.lengths()
  longer = [*prompt, *[2] * 5, *range(40)]
  assert engine.serve(longer, [3], stopped=len(longer)) == 17
  # The swipe is still possible, and the prefill goes on.
  assert engine.lengths() == sorted([*before, 49])
  assert engine.serve(longer, [3]) == 49
  assert engine.lengths() == [10, 49, 57, 58]


def test_prompts_that_are_cancelled_again_and_again_pile_nothing_up():
  engine, prompt = Engine(), [*PREFIX, 1, 1]
  engine.serve(prompt, [2] * 5)
  for number in range(9):
    longer = [*prompt, number, *range(40)]
    engine.serve(longer, [3], stopped=len(longer))
    assert engine.recorder._latest['one'].previous.previous is None
  assert engine.serve([*prompt, 2, 2], [3]) == 12
  # The resumed one stays for a turn.
  assert engine.lengths() == [10, 12, 14, 15]


def test_a_prefix_without_an_answer_is_everybodys_and_stays():
  engine = Engine()
  engine.serve(PREFIX, [])
  for turn in range(3):
    assert engine.serve([*PREFIX, turn], [9]) == 10
  assert engine.lengths()[0] == 10


def test_a_point_that_another_made_does_not_give_way():
  engine, prompt = Engine(), [*PREFIX, *range(40)]
  engine.serve(prompt[:16], [], 'other')
  points, hits = engine.begin([*prompt[:9], *range(9)], None)
  assert hits == 9
  points, _ = engine.begin(prompt)
  for length in (16, 32, 50):
    engine.record(points, prompt[:length])
  points.end()
  assert engine.lengths() == [10, 16, 50]


def test_conversations_leave_each_other_alone_and_none_has_none_to_leave():
  engine = Engine()
  for conversation in ('one', 'two', None, None):
    number = len(engine.lengths())
    engine.serve([*PREFIX, number, 1], [2], conversation)
  assert engine.lengths() == [10, *[12] * 4, *[13] * 4]
  engine.serve([*PREFIX, 90, 1], [2], 'two')
  assert engine.lengths() == [10, *[12] * 4, *[13] * 4]


@pytest.mark.parametrize('order', list(itertools.permutations(range(3))))
def test_requests_that_overlap_end_in_any_order(order):
  engine, prompt = Engine(), [*PREFIX, 1, 1]
  whole = [*prompt, *[2] * 5]
  engine.serve(prompt, [2] * 5)
  running = []
  for answer, tokens in ((3, prompt), (4, prompt), (5, [*whole, 6])):
    points, _ = engine.begin(tokens)
    engine.record(points, tokens)
    engine.record(points, [*tokens, answer])
    running.append((points, [*tokens, answer]))
  for place in order:
    running[place][0].end()
  # The latest prompt and its answer are there, whoever ended last.
  latest = running[-1][1]
  assert engine.begin([*latest, 9])[1] == len(latest)
  assert engine.begin(latest[:-1])[1] == len(latest) - 2


def test_conversations_whose_points_are_gone_are_forgotten():
  engine = Engine()
  for number in range(500):
    engine.serve([*PREFIX, number], [1], number)
    while len(engine.tree) > 9:
      engine.tree.evict()
    assert len(engine.recorder) <= 64 + 2 * 9 + 1
  # Of its answer, a single token, the point may be gone.
  assert engine.serve([*PREFIX, 499, 1, 2], [3], 499) >= 11


def test_conversations_whose_logits_were_bad_are_forgotten():
  engine = Engine()
  for number in range(500):
    points, _ = engine.begin([*PREFIX, number], number)
    engine.record(points, [*PREFIX, number])
    points.discard()
  assert not engine.lengths() and len(engine.recorder) <= 64 + 1


def test_conversations_are_known_while_they_have_no_points_yet():
  engine = Engine()
  running = [engine.begin([*PREFIX, n], n)[0] for n in range(200)]
  for number, points in enumerate(running):
    engine.record(points, [*PREFIX, number])
    points.end()
  engine.serve([*PREFIX, 0, 300], [1], 0)
  engine.serve([*PREFIX, 0, 300, 1, 2], [3], 0)
  assert engine.lengths().count(11) == 199


@pytest.mark.parametrize('seed', range(5))
def test_whatever_happens_few_points_stay_and_no_page_leaks(seed):
  rng, engine = random.Random(seed), Engine()
  running, histories = [], {}
  for _ in range(400):
    choice, who = rng.random(), rng.randrange(4)
    if choice < 0.4:
      history = histories.get(who, PREFIX)
      if rng.random() < 0.7 or who not in histories:
        history = [*history[:90], *rng.choices(range(9), k=rng.randrange(20))]
      points, _ = engine.begin(history, who)
      running.append((points, who, history))
      histories[who] = history
    elif choice < 0.9 and running:
      place = rng.randrange(len(running))
      points, who, history = running.pop(place)
      for length in points.lengths:
        engine.record(points, history[:length])
        if rng.random() < 0.1:
          break
      else:
        histories[who] = [*history, *rng.choices(range(9), k=3)]
        engine.record(points, histories[who])
      points.end()
    elif len(engine.tree):
      engine.tree.evict()
  for points, _, _ in running:
    points.end()
  for who, history in histories.items():  # A turn of each, after all.
    for turn in range(2):
      history = [*history, 11 + turn]
      engine.serve(history, [20], who)
      history = [*history, 20]
  lengths = {len(history) + 4 for history in histories.values()}
  assert lengths <= set(engine.lengths())
  while engine.tree.evict():
    pass
  assert all(engine.pages.count_held(kind) == 0 for kind in engine.pages.kinds)


@pytest.mark.parametrize('context', [4_096, 32_768])
@pytest.mark.parametrize('local_layers', [2, 12, 40])
def test_both_kinds_of_pages_are_used_up_at_once(context, local_layers):
  page_bytes = {'local': 1_000 * local_layers, 'global': 3_000}
  share = recording.compute_local_fraction(page_bytes, 64, 1_024, context)
  memory = 1e9
  windows = memory * share / page_bytes['local'] / 21
  histories = memory * (1 - share) / page_bytes['global'] / (context / 4 / 64)
  assert windows == pytest.approx(histories)
