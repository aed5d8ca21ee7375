"""Who joins next and whose prompt runs next, without a model."""

import collections
import random

import numpy as np
import pytest

from kaiju_jax.decoding import pages
from kaiju_jax.decoding import request
from kaiju_jax.decoding import schedule as schedule_lib
from kaiju_jax.decoding import sequence as sequence_lib


def sequence(prompt, max_tokens=1):
  asked = request.Request([1] * prompt, max_tokens)
  return sequence_lib.Sequence(0, asked, np.ones(prompt, np.int32), None)


class Rows:
  """Pages of one token each, for as many rows as there are."""

  def __init__(self, rows, tokens):
    self.free_rows = list(range(rows))
    self.free = tokens

  def join(self, one):
    if not self.free_rows:
      raise pages.Full('no row')
    if one.length > self.free:
      raise pages.Full(f'no room for {one.length}')
    self.free -= one.length
    one.row = self.free_rows.pop()

  def close(self, one):
    self.free += one.length
    self.free_rows.append(one.row)


def joined(schedule, rows):
  """Returns the waiting sequences that join now."""
  before = list(schedule._waiting)
  schedule.admit(rows.join)
  return [one for one in before if one not in schedule._waiting]


def test_sequences_join_in_their_order_until_rows_are_full():
  schedule, rows = schedule_lib.Schedule(), Rows(2, 100)
  several = [sequence(3) for _ in range(4)]
  for one in several:
    schedule.wait(one)
  assert joined(schedule, rows) == several[:2]
  assert str(schedule.admit(rows.join)) == 'no row'
  schedule.remove(several[0])
  rows.close(several[0])
  assert joined(schedule, rows) == [several[2]]
  assert several[2].row == several[0].row


def test_a_small_sequence_does_not_wait_for_pages_that_it_does_not_need():
  schedule, rows = schedule_lib.Schedule(), Rows(4, 20)
  first, large, small = sequence(14), sequence(9), sequence(3)
  for one in first, large, small:
    schedule.wait(one)
  assert joined(schedule, rows) == [first, small]
  assert str(schedule.admit(rows.join)) == 'no room for 10'


def test_a_large_sequence_is_overtaken_a_bounded_number_of_times():
  """Small ones that come forever, two at a time, always leave too little."""
  schedule, rows = schedule_lib.Schedule(overtakes=5), Rows(4, 20)
  running = collections.deque([sequence(9), sequence(9)])
  for one in running:
    schedule.wait(one)
  assert joined(schedule, rows) == list(running)
  large = sequence(14)
  schedule.wait(large)
  overtook = 0
  for _ in range(20):
    schedule.wait(sequence(9))
    gone = running.popleft()
    schedule.remove(gone)
    rows.close(gone)
    new = joined(schedule, rows)
    if large in new:
      break
    overtook += len(new)
    running.extend(new)
  assert large in new
  assert overtook == 5
  # Those that waited behind it have kept their order and their turn.
  assert len(schedule._waiting) > 0


def test_waiting_helps_nobody_while_nothing_runs():
  """A conversation holds the pages that the large one needs."""
  schedule, rows = schedule_lib.Schedule(overtakes=1), Rows(4, 20)
  rows.free -= 10
  large, several = sequence(14), [sequence(4) for _ in range(4)]
  schedule.wait(large)
  for one in several:
    schedule.wait(one)
  # The bound holds while another runs, which could leave room.
  assert joined(schedule, rows) == several[:1]
  assert joined(schedule, rows) == []
  schedule.remove(several[0])
  rows.close(several[0])
  assert joined(schedule, rows) == several[1:2]


def test_a_short_prompt_runs_before_a_long_one():
  schedule = schedule_lib.Schedule()
  long, short, other = sequence(200), sequence(5), sequence(5)
  for one in long, short, other:
    schedule.enter(one)
  assert schedule.next_prompt() is short
  schedule.go(short)
  assert schedule.next_prompt() is other


@pytest.mark.parametrize('count', [1, 4, 9])
def test_every_prompt_runs_a_chunk_within_a_bound(count):
  """Short prompts that come forever, beside `count` long ones."""
  rng = random.Random(count)
  schedule = schedule_lib.Schedule(passes=3)
  waited = {}
  for _ in range(count):
    one = sequence(1000)
    schedule.enter(one)
    waited[one] = 0
  most = 0
  for _ in range(300):
    if len(waited) < count + 2:
      one = sequence(rng.randint(1, 8))
      schedule.enter(one)
      waited[one] = 0
    chosen = schedule.next_prompt()
    waited = {one: rounds + 1 for one, rounds in waited.items()}
    most = max(most, waited[chosen])
    waited[chosen] = 0
    chosen.left_L = chosen.left_L[8:]
    if not len(chosen.left_L):
      chosen.row = object()
      schedule.go(chosen)
      schedule.remove(chosen)
      del waited[chosen]
  # k prompts at once are those and two short ones.
  assert 3 < most <= (count + 2) + 3
  assert max(waited.values()) <= (count + 2) + 3


def test_one_long_prompt_gets_every_fourth_chunk():
  schedule = schedule_lib.Schedule()
  long = sequence(1000)
  schedule.enter(long)
  turns = []
  for turn in range(12):
    short = sequence(4)
    short.row = turn
    schedule.enter(short)
    chosen = schedule.next_prompt()
    turns.append(chosen is long)
    if chosen is not long:
      schedule.go(chosen)
  assert sum(turns) == 3


def test_a_sequence_can_be_removed_in_any_state():
  schedule = schedule_lib.Schedule()
  waits, prompts, draws = sequence(1), sequence(2), sequence(3)
  schedule.wait(waits)
  for row, one in enumerate((prompts, draws)):
    one.row = row
    schedule.enter(one)
  schedule.go(draws)
  # A turn that has ended is not the turn that now draws in its row.
  ended = sequence(3)
  ended.row = draws.row
  schedule.remove(ended)
  assert schedule.going == {1: draws}
  for one in waits, prompts, draws:
    schedule.remove(one)
  assert not schedule.is_running and not schedule._waiting
