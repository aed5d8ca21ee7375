"""The simulator against simpy, closed forms, Che, and its own accounts.

Plain Python here; `test_simulator_compiled.py` compiles what is long.
"""

import collections
import dataclasses

import numpy as np
import pytest
import simpy

from kaiju_jax.decoding.engine import schedule
from kaiju_jax.fleet import closed_forms
from kaiju_jax.fleet import events
from kaiju_jax.fleet import laws
from kaiju_jax.fleet import rounds
from kaiju_jax.fleet import sessions
from kaiju_jax.fleet import simulator
from kaiju_jax.fleet import state
from kaiju_jax.serving.routing import policies
from tests.fleet import small_fleet

LAW, SIZES, SHAPES, SETUP = (
  *(small_fleet.LAW, small_fleet.SIZES),
  *(small_fleet.SHAPES, small_fleet.SETUP),
)
FLOW, ENDS = small_fleet.FLOW, small_fleet.ENDS
alone, run = small_fleet.alone, small_fleet.run


class Oracle:
  """A replica as a process of simpy: each round is a timeout."""

  def __init__(self, trace):
    self.env, self.trace = simpy.Environment(), trace
    self.waiting, self.prompts, self.draws = [], [], []
    count = len(trace.seconds)
    self.first, self.done = np.zeros(count), np.zeros(count)
    self.arrival = self.env.event()
    self.env.process(self.arrivals())
    self.env.process(self.rounds())
    self.env.run()

  def arrivals(self):
    for number, seconds in enumerate(self.trace.seconds):
      # The clock is set, as sums of gaps would round.
      yield self.env.timeout(seconds - self.env.now)
      self.waiting.append(number)
      if not self.arrival.triggered:
        self.arrival.succeed()

  def rounds(self):
    left = len(self.trace.seconds)
    while left:
      while self.waiting and len(self.prompts) + len(self.draws) < SIZES.rows:
        self.prompts.append([self.waiting.pop(0), 0, 0])
      if not (self.prompts or self.draws):
        self.arrival = self.env.event()
        yield self.arrival
        continue
      seconds = LAW.fixed + LAW.row * len(self.draws)
      seconds += LAW.context * sum(length for _, length, _ in self.draws)
      described = [
        schedule.Running(number, 0.0, self.trace.prompt[number] - held, 0, late)
        for number, held, late in self.prompts
      ]
      chosen, (rows, size) = schedule.batch(described, SHAPES)
      seconds += LAW.token * rows * size
      seconds += LAW.chunk * bool(chosen)
      parts = {}
      for number, held, _ in self.prompts:
        if number in chosen:
          prefix, prompt = self.trace.prefix[number], self.trace.prompt[number]
          stop = prefix if held < prefix else prompt
          parts[number] = min(size, stop - held)
          seconds += LAW.attended * parts[number] * held
      yield self.env.timeout(seconds)
      left -= self.end_round(parts)

  def end_round(self, parts):
    """Ends a round; returns how many requests are complete."""
    now, ended = self.env.now, 0
    self.draws = [[n, length + 1, left - 1] for n, length, left in self.draws]
    for one in self.prompts:
      one[2] = 0 if one[0] in parts else one[2] + 1
      one[1] += parts.get(one[0], 0)
    for number, held, _ in list(self.prompts):
      if held == self.trace.prompt[number]:
        self.first[number] = now
        self.draws.append([number, held, self.trace.answer[number] - 1])
    self.prompts = [
      one for one in self.prompts if one[1] < self.trace.prompt[one[0]]
    ]
    for number, _, left in self.draws:
      if not left:
        self.done[number] = now
        ended += 1
    self.draws = [one for one in self.draws if one[2]]
    return ended


@pytest.mark.parametrize('gap, seed', [(0.5, 1), (0.1, 2)])
def test_every_token_comes_when_simpy_says(gap, seed):
  trace = alone(gap=gap, seed=seed)
  outcome, found = run(SETUP, trace)
  oracle = Oracle(trace)
  assert np.abs(found['first_token'] - oracle.first).max() < 1e-9
  assert np.abs(found['last_token'] - oracle.done).max() < 1e-9
  assert outcome.p99 > 0.7 or gap == 0.5


def test_one_row_serves_as_a_queue_of_one_server_does():
  """Each wait follows from the one before (Lindley), to the last round."""
  count, load, seed = 4_000, 0.7, 5
  found = closed_forms.compare_waits(1, load, count, seed, loop=events)
  rng = np.random.default_rng((seed, 11))
  gaps = -np.log1p(-rng.random(count)) / load
  services = laws.geometric(rng, closed_forms._ROUNDS, count)
  services = services / closed_forms._ROUNDS
  waits = np.zeros(count)
  for n in range(1, count):
    waits[n] = max(0, waits[n - 1] + services[n - 1] - gaps[n])
  waits = waits[count // 10 :]
  late, longest, little = found
  assert late.found == (waits > 1.5 / closed_forms._ROUNDS).mean()
  assert longest.found == pytest.approx(np.quantile(waits, 0.99), abs=1e-9)
  assert late.is_met and little.is_met
  assert late.expected == pytest.approx(load, rel=2e-3)


def test_rounds_that_are_counted_take_as_long_as_those_that_are_stepped(
  monkeypatch,
):
  trace = alone(count=60, gap=0.3, prompts=700)
  counted, fast = run(SETUP, trace)
  begin = rounds.begin_stretch

  def step(world, replica, now):
    begin(world, replica, now)
    replicas = world.replicas
    if replicas.stretch_end[replica] < np.inf:
      seconds = replicas.first_round_seconds[replica]
      replicas.stretch_rounds[replica] = 1
      replicas.stretch_end[replica] = now + seconds

  monkeypatch.setattr(rounds, 'begin_stretch', step)
  stepped, slow = run(SETUP, trace)
  assert stepped.events > 2 * counted.events
  for name in 'first_token', 'last_token':
    assert np.abs(fast[name] - slow[name]).max() < 1e-9


def test_present_requests_follow_littles_law():
  """Both sides are counted apart: an integral over time, a sum of stays."""
  outcome = simulator.simulate(
    dataclasses.replace(SETUP, replicas=3), FLOW, ENDS, 256, loop=events
  )
  expected = outcome.requests * outcome.mean_stay / outcome.seconds
  assert outcome.present == pytest.approx(expected, rel=1e-3)
  assert outcome.requests > 200 and outcome.sessions == FLOW.sessions


def test_the_same_arguments_give_the_same_bits():
  setup = dataclasses.replace(SETUP, replicas=3, policy='sticky')
  one, other = (
    simulator.simulate(setup, FLOW, ENDS, 256, loop=events) for _ in range(2)
  )
  assert one == other
  another = FLOW._replace(seed=1)
  assert simulator.simulate(setup, another, ENDS, 256, loop=events) != one


def test_prefixes_alone_are_kept_as_by_a_plain_lru_cache():
  """Which has Che's hit rate (`test_queueing.py`)."""
  kept, count, ones = 60, 3_000, np.ones(3_000, int)
  drawn = np.random.default_rng(0).random(count)
  characters = np.searchsorted(sessions.make_law(600, 1.0), drawn)
  columns = 10.0 * np.arange(count), np.arange(count) % 50, characters
  trace = simulator.Trace(*columns, 640 * ones, 641 * ones, ones, 0 * ones)
  # A row has a page of its own, and local pages are plenty.
  sizes = state.Sizes(1, 64, 64, 10 * kept + 1, 10_000, 0, 0)
  setup = simulator.Setup(1, 'random', LAW, sizes, ((1, 256),))
  _, found = run(setup, trace)
  cache, expected = collections.OrderedDict(), []
  for character in characters.tolist():
    expected.append(character in cache)
    cache[character] = None
    cache.move_to_end(character)
    if len(cache) > kept:
      cache.popitem(last=False)
  assert (found['resumed'] > 0).tolist() == expected


@pytest.mark.parametrize('policy', policies.NAMES)
def test_a_lost_replica_loses_no_request(policy):
  faults = [(20.0, events.LOSE, 0, 0.0), (40.0, events.SHARE, 0, 1.0)]
  setup = dataclasses.replace(
    SETUP, replicas=3, policy=policy, faults=[*faults, (50.0, 3, 0, 0.0)]
  )
  trace = alone(count=300, gap=0.2, answers=60)
  outcome, found = run(setup, trace)
  assert outcome.moved > 0 and outcome.lost == 0
  assert not np.isnan(found['last_token']).any()
  assert outcome.requests == len(trace.seconds)
  # Answers are as long as before, however often they moved.
  total = found['prompt'] + found['answer']
  assert (total == trace.prompt + trace.answer).all()
  assert (found['first_token'] <= found['last_token']).all()
  there = found['replica'] == 0
  away = (trace.seconds > 20) & (trace.seconds < 40)
  assert there.any() and not (there & away).any()
  assert outcome.present == pytest.approx(
    outcome.requests * outcome.mean_stay / outcome.seconds, rel=1e-3
  )


def test_without_any_replica_requests_are_counted_as_lost():
  setup = dataclasses.replace(SETUP, faults=[(2.0, events.LOSE, 0, 0.0)])
  outcome, found = run(setup, alone())
  unanswered = int(np.isnan(found['last_token']).sum())
  assert outcome.lost == outcome.late == unanswered > 0
  assert outcome.requests + outcome.lost - outcome.moved == 80


def test_a_warm_replica_has_the_prefixes_of_popular_characters():
  faults = [(0.0, events.SHARE, 1, 0.0), (20.0, events.SHARE, 1, 1.0)]
  warm = [*faults, (19.0, events.WARM, 1, 10)]
  found = [
    simulator.simulate(
      simulator.Setup(2, 'random', LAW, SIZES, SHAPES, each),
      FLOW._replace(messages=1.0, sessions=200),
      ENDS,
      256,
      loop=events,
    )
    for each in (faults, warm)
  ]
  assert found[0].prefix_hits < found[1].prefix_hits
