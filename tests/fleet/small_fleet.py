"""A fleet that plain Python simulates in milliseconds, and traces for it."""

import collections

import numpy as np

from kaiju_jax.fleet import events
from kaiju_jax.fleet import sessions
from kaiju_jax.fleet import simulator
from kaiju_jax.fleet import state

LAW = state.Law(0.01, 3e-4, 1e-6, 1e-4, 2e-7, 4e-3)
SIZES = state.Sizes(4, 16, 64, 5_000, 5_000, 16, 1)
SHAPES = ((1, 16), (1, 64), (4, 16))
SETUP = simulator.Setup(1, 'random', LAW, SIZES, SHAPES)
FLOW = sessions.Flow(
  *(0, 60, 1.0, 2.0, 18.0, 5.0, 0.2, 5.0, 1.0, 25.0, 40.0, 0.7),
  *(200, 4_000, 100.0, 800.0),
)
ENDS = sessions.make_law(20, 1.0)


def alone(count=80, gap=0.15, seed=0, prompts=300, answers=40):
  """Returns a trace of requests that share nothing."""
  rng = np.random.default_rng(seed)
  numbers = np.arange(count)
  prefix = rng.integers(1, 40, count)
  prompt = prefix + rng.integers(1, prompts, count)
  answer = rng.integers(1, answers, count)
  seconds = np.cumsum(rng.exponential(gap, count))
  zeros = np.zeros(count, int)
  return simulator.Trace(
    seconds, numbers, numbers, prefix, prompt, answer, zeros
  )


def run(setup, trace):
  return simulator.simulate_trace(setup, trace, loop=events)


def check_continuations(requests):
  """Asserts that each request goes on from its session's; returns kinds seen.

  A turn whose history lost its oldest half counts as 'dropped', too.
  """
  latest, seen = {}, collections.Counter()
  for one in requests:
    before = latest.get(one.session)
    latest[one.session] = one
    if before is None or one.kind == 'fork':
      continue
    seen[one.kind] += 1
    if one.kind == 'swipe':
      assert one.prompt == before.prompt and one.answer != before.answer
    elif one.kind == 'edit':
      assert one.prompt[:-1] == before.prompt[:-1]
      assert one.prompt[-1] != before.prompt[-1]
    else:
      history = one.prompt[1:-2]
      whole = (*before.prompt[1:], before.answer)
      assert history and history == whole[len(whole) - len(history) :]
      seen['dropped'] += len(history) < len(whole)
  assert min(seen[x] for x in ('turn', 'swipe', 'edit', 'dropped')) > 0
  assert seen['dropped'] < seen['turn']
