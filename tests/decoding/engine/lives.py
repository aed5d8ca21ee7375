"""A state machine of an engine: each text is that of its request alone.

Users submit, read, cancel and come back at random; calls fail; points are
evicted. What each request gives is known beforehand, or found by running it
alone, and in the end all rows and pages are free.
"""

import collections
import random

from hypothesis import stateful
from hypothesis import strategies
import pytest

from kaiju_jax.decoding.engine import phases
from kaiju_jax.decoding.engine import schedule
from kaiju_jax.decoding.requests import request as request_lib
from tests.decoding import phase_table

seeds, flags = strategies.integers(0, 2**32 - 1), strategies.booleans()
# Of the device, which may fail.
CALLS = 'join', 'prefill', 'begin'


class PlantedError(MemoryError):
  """An error that a test planted in a call."""


class Life(stateful.RuleBasedStateMachine):
  """Sequences in one engine; a subclass makes it, requests, and the oracle."""

  def __init__(self, seen: collections.Counter):
    super().__init__()
    # Counts what happened in all lives.
    self.seen, self.fault = seen, None
    # (Sequence, when it was submitted); all texts that ever were.
    self.open, self.texts, self.parked = [], [], 0
    self.failures = 0  # What failed joins again, and is charged again.

  def draw_request(self, rng: random.Random) -> request_lib.Request:
    raise NotImplementedError

  def find_expected(self, one) -> tuple[list[int], str]:
    """Returns the tokens of a sequence alone, and why it ends."""
    raise NotImplementedError

  def check_ended(self, one) -> None:
    """Checks more of one that has ended, whole or not."""

  def watch(self, engine, patience: float) -> None:
    """Checks what the engine does; it drains within `patience` in the end."""
    self.engine, self.clock, self.patience = engine, engine._clock, patience
    self._plan, park = engine.state.plan, engine._park
    engine.state.plan = self.check_plan

    def counted(one):
      self.parked += 1
      park(one)

    engine._park = counted
    self._restored = []
    for name in CALLS:
      holder = engine._searches if name == 'begin' else engine.rounds
      self._restored.append((holder, name, getattr(holder, name)))
      setattr(holder, name, self._failing(name, getattr(holder, name)))

  def _failing(self, name, call):
    def called(*arguments):
      at, is_before = self.fault or (None, None)
      if at != name:
        return call(*arguments)
      self.fault = None
      if not is_before and at != 'begin':
        call(*arguments)
      self.seen[f'failed {name}'] += 1
      self.failures += 1
      raise PlantedError

    return called

  @stateful.rule(seed=seeds)
  def submit(self, seed):
    """Submits a request, or candidates of one prompt together."""
    if len(self.open) < 9:
      rng = random.Random(seed)
      request = self.draw_request(rng)
      for _ in range(rng.choice([1, 1, 1, 3])):
        self.open.append((self.engine.submit(request), self.clock.now))

  @stateful.rule(seed=seeds)
  def cancel(self, seed):
    if not self.open:
      return
    one, _ = self.open[seed % len(self.open)]
    free, had_row = self.engine.decoder.account.free, one.row is not None
    self.engine.cancel(one)
    # What was read meanwhile may have ended it, and others.
    assert one.reason is not None and one.row is None
    assert self.engine.decoder.account.free >= free + had_row

  @stateful.rule()
  def evict(self):
    self.seen['evicted'] += self.engine.decoder.account.tree.evict()

  @stateful.rule(at=strategies.sampled_from(CALLS), is_before=flags)
  def plant_fault(self, at, is_before):
    self.fault = at, is_before

  @stateful.rule(seconds=strategies.floats(0, 0.3))
  def advance(self, seconds):
    self.clock.now += seconds
    try:
      self.engine.advance()
    except PlantedError:
      assert self.fault is None
    self.check()

  @stateful.rule(seed=seeds, steps=strategies.integers(10, 60))
  def live(self, seed, steps):
    """Does many of these, as rules alone make short lives."""
    rng = random.Random(seed)
    for _ in range(steps):
      if rng.random() < 0.5:
        self.submit(rng.random())
      if rng.random() < 0.06:
        self.cancel(rng.randrange(99))
      if rng.random() < 0.1:
        self.evict()
      if rng.random() < 0.05:
        self.plant_fault(rng.choice(CALLS), rng.random() < 0.5)
      self.advance(rng.uniform(0, 0.2))

  def check_plan(self, now, shapes):
    plan = self._plan(now, shapes)
    state, rows = self.engine.state, self.engine.decoder.rows
    # What a round reuses of earlier lookups is what fresh ones find.
    state._found_for = None
    assert self._plan(now, shapes) == plan
    assert not (plan.park and plan.join)
    waiting, running = state.waiting, state.running
    assert set(plan.late) == {
      x
      for x, one in waiting.items()
      if one.request.deadline
      and not one.is_begun
      and not len(one.request.drawn)
      and one.came + one.request.deadline < now
    }
    for number in plan.park:
      one = running[number]
      assert one.request.priority < max(
        x.request.priority for x in waiting.values()
      )
      assert one.phase is not phases.Phase.SEARCHING
      assert one.is_drawing or not one.request.scores_prompt
    going = [x for x in running.values() if x.number not in plan.park]
    prompts = [x for x in going if not x.is_drawing]
    assert bool(plan.prefill) == bool(prompts or plan.join)
    draws = {x.number for x in going if x.is_drawing and not x.is_whole}
    draws -= {x.number for x in going if x.request.guided}
    assert len(set(plan.draw)) == len(plan.draw)
    if state._pacing is None:
      assert set(plan.draw) == draws
    assert set(plan.draw) <= draws
    self.seen['sat out'] += len(draws) - len(plan.draw)
    assert all(x.passed <= rows + schedule.PASSES for x in prompts)
    assert all(x.overtaken <= schedule.OVERTAKES for x in waiting.values())
    return plan

  def check(self):
    engine, going = self.engine, []
    rows = engine.decoder.account.open_rows
    assert sorted(x.row for x in engine.state.running.values()) == list(rows)
    assert phase_table.is_consistent(engine, [one for one, _ in self.open])
    if engine.is_idle:
      assert not len(engine._inflight)
    for one, came in self.open:
      if one.reason is None:
        going.append((one, came))
        continue
      self.check_one(one, came)
    self.open = going

  def check_one(self, one, came):
    request, result = one.request, one.result()
    tokens, reason = self.find_expected(one)
    shown = result.tokens.tolist()
    is_late = isinstance(result.error, request_lib.Late)
    assert one.row is None and one.search is None
    assert [event.token for event in one.events] == shown
    assert result.text == ''.join(event.text for event in one.events)
    assert len(result.log_probabilities) == len(shown)
    if is_late:
      assert not one.is_begun and not shown
      assert self.clock.now >= came + request.deadline
    elif result.reason in ('cancelled', 'drained'):
      assert shown == tokens[: len(shown)]
      # A search shows all or nothing.
      assert request.guided is None or shown in ([], tokens)
    else:
      shows = request.guided is None or reason != 'error'
      assert (shown, result.reason) == (tokens if shows else [], reason)
    self.check_ended(one)
    self.check_reused(one)
    self.texts.append(one)
    self.seen['late' if is_late else result.reason] += 1
    self.seen['ended'] += 1
    self.seen['guided'] += request.guided is not None and len(shown) > 0
    self.seen['reused'] += one.reused

  def check_reused(self, one):
    """What was resumed had run: one's own text, or what all owners share."""
    mine, prefix = one.request, one.text(one.reused).tokens.tobytes()
    assert not one.reused or any(
      other.text().tokens.tobytes().startswith(prefix)
      for other in (*self.texts, *(x for x, _ in self.open))
      if other is not one
      and other.request.cache_salt == mine.cache_salt
      and (
        other.request.owner == mine.owner
        or one.reused <= min(mine.shared, other.request.shared)
      )
    )

  def teardown(self):
    """Lets all end, or drains the engine before they have."""
    engine, self.fault = self.engine, None
    going = [one for one, _ in self.open]
    rest = engine.drain(self.patience)
    assert engine.is_idle and (not rest or self.patience < 1e9)
    assert [x for x in going if x in rest] == [
      x for x in going if x.reason == 'drained'
    ]
    with pytest.raises(request_lib.Busy, match='being stopped') as busy:
      engine.submit(self.draw_request(random.Random(0)))
    assert busy.value.seconds is None
    self.check()
    assert not self.open
    self.seen['parked'] += self.parked
    for holder, name, call in self._restored:
      setattr(holder, name, call)
