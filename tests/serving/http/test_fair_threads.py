"""Threads in turns: who runs, who waits, and what is left afterwards."""

import asyncio
import collections
import random
import threading

import pytest

from kaiju_jax.serving.http import fair_threads


async def until(is_true):
  for _ in range(2000):
    if is_true():
      return
    await asyncio.sleep(0.002)
  raise AssertionError('It never came true.')


class World:
  """Calls of owners, each of which runs until it is let go."""

  def __init__(self, count, each):
    self.threads = fair_threads.FairThreads('test', count, each)
    self.lock = threading.Lock()
    self.started, self.gates = [], {}

  def call(self, owner, name, error=None):
    """Returns the task of a call."""
    gate = self.gates[name] = threading.Event()

    def work():
      with self.lock:
        self.started.append((owner, name))
      assert gate.wait(30)
      if error:
        raise error
      return name

    async def run():
      fair_threads.OWNER.set(owner)
      return await self.threads.run(work)

    return asyncio.ensure_future(run())

  def open_all(self):
    for gate in self.gates.values():
      gate.set()


class Oracle:
  """Who waits and who runs, and that each start was somebody's turn."""

  def __init__(self, world, count, each):
    self.world, self.count, self.each = world, count, each
    self.waiting = collections.defaultdict(list)  # Calls by owner.
    self.running, self.ended = {}, []
    self.passed = collections.defaultdict(collections.Counter)

  def is_busy(self, owner):
    return list(self.running.values()).count(owner) >= self.each

  def expects(self):
    free = [x for x, calls in self.waiting.items() if calls]
    free = [x for x in free if not self.is_busy(x)]
    return bool(free) and len(self.running) < self.count

  def end(self, one):
    del self.running[one]
    self.ended.append(one)
    self.world.gates[one].set()

  async def note(self):
    """Reads what has started, and checks that it was somebody's turn."""
    started = self.world.started
    while self.expects():
      known = len(self.running) + len(self.ended)
      await until(lambda known=known: len(started) > known)
      for owner, one in started[known:]:
        # An owner's calls keep their order.
        assert self.waiting[owner].pop(0) == one
        self.running[one] = owner
        for other, calls in self.waiting.items():
          if not calls or other == owner:
            self.passed[other].clear()
          elif not self.is_busy(other):
            self.passed[other][owner] += 1
            # Nobody has two turns while another waits for one.
            assert self.passed[other][owner] == 1, (owner, other)
    await asyncio.sleep(0.002)
    assert len(started) == len(self.running) + len(self.ended)
    assert len(self.running) <= self.count
    by_owner = collections.Counter(self.running.values())
    assert all(x <= self.each for x in by_owner.values())


@pytest.mark.parametrize('seed', range(12))
async def test_owners_have_turns_whatever_comes_and_ends(seed):
  """Random calls of random owners, in random order of their ends."""
  rng = random.Random(seed)
  count, each = rng.randint(1, 4), rng.randint(1, 2)
  world = World(count, each)
  oracle, tasks = Oracle(world, count, each), {}
  for name in range(60):
    action = rng.random()
    if action < 0.6:
      owner = rng.choice('aaaabc')
      oracle.waiting[owner].append(name)
      failure = ValueError(name) if rng.random() < 0.2 else None
      tasks[name] = world.call(owner, name, failure), failure
      await asyncio.sleep(0)
    elif action < 0.7 and any(oracle.waiting.values()):
      calls = rng.choice([x for x in oracle.waiting.values() if x])
      one = calls.pop(rng.randrange(len(calls)))
      tasks.pop(one)[0].cancel()
      await asyncio.sleep(0)
    elif oracle.running:
      one = rng.choice(list(oracle.running))
      oracle.end(one)
      task, failure = tasks[one]
      if failure:
        with pytest.raises(ValueError, match=f'^{one}$'):
          await task
      else:
        assert await task == one
    await oracle.note()
  world.open_all()
  await asyncio.gather(*(x for x, _ in tasks.values()), return_exceptions=True)
  assert world.threads._free == count
  assert not world.threads._running and not world.threads._waiting
  world.threads.close()


async def test_a_call_runs_beside_any_number_of_another_owner():
  world = World(2, 1)
  theirs = [world.call('ann', f'ann {n}') for n in range(50)]
  await until(lambda: world.started)
  mine = world.call('ben', 'ben')
  await until(lambda: len(world.started) == 2)
  assert world.started == [('ann', 'ann 0'), ('ben', 'ben')]
  world.gates['ben'].set()
  assert await mine == 'ben'
  world.open_all()
  assert await asyncio.gather(*theirs) == [f'ann {n}' for n in range(50)]
  world.threads.close()


async def test_a_caller_who_leaves_frees_the_thread_only_when_it_ends():
  world = World(1, 1)
  gone, next_one = world.call('ann', 0), world.call('ben', 1)
  await until(lambda: world.started)
  gone.cancel()
  await asyncio.sleep(0.05)
  assert world.started == [('ann', 0)]
  world.open_all()
  assert await next_one == 1 and gone.cancelled()
  world.threads.close()


def test_closing_waits_for_what_runs_after_the_loop_has_ended(caplog):
  world = World(1, 1)

  async def run():
    world.call('ann', 0)
    await until(lambda: world.started)

  asyncio.run(run())
  threading.Timer(0.05, world.gates[0].set).start()
  world.threads.close()
  assert world.gates[0].is_set() and not caplog.records
