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

  def __init__(self, threads):
    self.threads = threads
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


def simulate(seed):
  """Runs random calls of random owners, in random order of their ends."""

  async def run():
    rng = random.Random(seed)
    count, each = rng.randint(1, 4), rng.randint(1, 2)
    threads = fair_threads.FairThreads('test', count, each)
    world = World(threads)
    waiting = collections.defaultdict(list)  # Calls by owner.
    running, tasks = {}, {}
    passed = collections.defaultdict(collections.Counter)
    name = 0

    def expected():
      free = {
        owner
        for owner, calls in waiting.items()
        if calls and list(running.values()).count(owner) < each
      }
      return bool(free) and len(running) < count

    async def note():
      """Reads what has started, and checks that it was somebody's turn."""
      while expected():
        known = len(running) + len(ended)
        await until(lambda known=known: len(world.started) > known)
        for owner, one in world.started[known:]:
          assert waiting[owner][0] == one  # An owner's calls keep their order.
          waiting[owner].pop(0)
          running[one] = owner
          for other, calls in waiting.items():
            is_busy = list(running.values()).count(other) >= each
            if not calls or other == owner:
              passed[other].clear()
            elif not is_busy:
              passed[other][owner] += 1
              # Nobody has two turns while another waits for one.
              assert passed[other][owner] == 1, (owner, other)
      await asyncio.sleep(0.002)
      assert len(world.started) == len(running) + len(ended)
      assert len(running) <= count
      by_owner = collections.Counter(running.values())
      assert all(x <= each for x in by_owner.values())

    ended = []
    for _ in range(60):
      action = rng.random()
      if action < 0.6:
        owner = rng.choice('aaaabc')
        waiting[owner].append(name)
        failure = ValueError(name) if rng.random() < 0.2 else None
        tasks[name] = world.call(owner, name, failure), failure
        name += 1
        await asyncio.sleep(0)
      elif action < 0.7 and any(waiting.values()):
        owner = rng.choice([one for one in waiting if waiting[one]])
        one = waiting[owner].pop(rng.randrange(len(waiting[owner])))
        tasks.pop(one)[0].cancel()
        await asyncio.sleep(0)
      elif running:
        one = rng.choice(list(running))
        del running[one]
        ended.append(one)
        world.gates[one].set()
        task, failure = tasks[one]
        if failure:
          with pytest.raises(ValueError, match=f'^{one}$'):
            await task
        else:
          assert await task == one
      await note()
    for gate in world.gates.values():
      gate.set()
    await asyncio.gather(
      *(x for x, _ in tasks.values()), return_exceptions=True
    )
    assert threads._free == count
    assert not threads._running and not threads._waiting
    threads.close()

  asyncio.run(run())


@pytest.mark.parametrize('seed', range(12))
def test_owners_have_turns_whatever_comes_and_ends(seed):
  simulate(seed)


def test_a_call_runs_beside_any_number_of_another_owner():
  async def run():
    world = World(fair_threads.FairThreads('test', 2, 1))
    theirs = [world.call('ann', f'ann {n}') for n in range(50)]
    await until(lambda: world.started)
    mine = world.call('ben', 'ben')
    await until(lambda: len(world.started) == 2)
    assert world.started == [('ann', 'ann 0'), ('ben', 'ben')]
    world.gates['ben'].set()
    assert await mine == 'ben'
    for gate in world.gates.values():
      gate.set()
    assert await asyncio.gather(*theirs) == [f'ann {n}' for n in range(50)]
    world.threads.close()

  asyncio.run(run())


def test_a_caller_who_leaves_frees_the_thread_only_when_it_ends():
  async def run():
    world = World(fair_threads.FairThreads('test', 1, 1))
    gone, next_one = world.call('ann', 0), world.call('ben', 1)
    await until(lambda: world.started)
    gone.cancel()
    await asyncio.sleep(0.05)
    assert world.started == [('ann', 0)]
    world.gates[0].set()
    world.gates[1].set()
    assert await next_one == 1 and gone.cancelled()
    world.threads.close()

  asyncio.run(run())


def test_closing_waits_for_what_runs_after_the_loop_has_ended(caplog):
  world = World(fair_threads.FairThreads('test', 1, 1))

  async def run():
    world.call('ann', 0)
    await until(lambda: world.started)

  asyncio.run(run())
  threading.Timer(0.05, world.gates[0].set).start()
  world.threads.close()
  assert world.gates[0].is_set() and not caplog.records
