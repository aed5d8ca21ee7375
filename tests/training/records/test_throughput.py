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
  assert measured.tokens_per_second(1000) is None
  assert measured.seconds_left(11) is None
  clock.time += 2
  measured.tick(2)
  assert measured.tokens_per_second(2000) == 500
  assert measured.seconds_left(11) == 18
  with measured.pause():
    clock.time += 30  # An evaluation.
  clock.time += 1
  measured.tick(3)
  assert measured.tokens_per_second(3000) == 1000
  clock.time += 3
  measured.tick(4)
  assert measured.seconds_left(11) == 14


def test_a_clock_that_stands_still_gives_no_rate():
  clock = Clock()
  measured = throughput.Throughput(clock)
  measured.tick(1)
  measured.tokens_per_second(1)
  measured.tick(2)
  assert measured.tokens_per_second(2) is None
