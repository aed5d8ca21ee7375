"""Tokens a second by a clock that the test winds."""

from kaiju_jax.training.records import throughput


class Clock:
  def __init__(self):
    self.time = 100.0

  def __call__(self):
    return self.time


def test_compilation_and_pauses_are_left_out():
  clock = Clock()
  measured = throughput.Throughput(clock)
  clock.time += 60  # The first step compiles.
  measured.tick(1)
  assert measured.lap(1, 1000) is None
  assert measured.seconds_left(11) is None
  clock.time += 2
  measured.tick(2)
  assert measured.lap(2, 2000) == (500, 2)
  assert measured.seconds_left(11) == 18
  with measured.pause():
    clock.time += 30  # An evaluation.
  clock.time += 1
  measured.tick(3)
  assert measured.lap(3, 3000) == (1000, 1)
  clock.time += 3
  measured.tick(4)
  assert measured.seconds_left(11) == 14
  clock.time += 5
  measured.tick(5)
  assert measured.lap(5, 4600) == (200, 4), 'the steps between two records'


def test_a_clock_that_stands_still_gives_no_rate():
  clock = Clock()
  measured = throughput.Throughput(clock)
  measured.tick(1)
  measured.lap(1, 1)
  measured.tick(2)
  assert measured.lap(2, 2) is None
