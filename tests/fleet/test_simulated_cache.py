"""The simulated cache beside the engine's prefix tree, on people's traffic."""

import numpy as np
import pytest

from kaiju_jax.decoding.pages import prefix_tree
from kaiju_jax.fleet import caches
from kaiju_jax.fleet import entries
from kaiju_jax.fleet import events
from kaiju_jax.fleet import people as people_lib
from kaiju_jax.fleet import simulator
from kaiju_jax.fleet import state

PEOPLE = people_lib.People(
  seed=3,
  requests=800,
  live=30,
  characters=40,
  prefix=(256, 1024),
  message=25,
  answer=60,
  longest=128,
  context=4096,
  swipes=0.2,
  edits=0.03,
  forks=0.02,
  warm_up=3.0,
)
PAGE, WINDOW = 16, 64


@pytest.fixture(scope='module')
def drawn():
  people = people_lib.draw(PEOPLE)
  return list(people_lib.draw_texts(people)), trace_of(people)


def trace_of(people):
  """Returns the requests of a people's trace from second 0 on.

  A fork begins a session; what it repeats is found again in its prefix alone.
  """
  message = people.halves[people.opening, 0] + people.halves[people.closing, 1]
  prompt, prefix = people.prompt, people.prefix[people.character]
  before = people.previous
  whole = people.history[before] + message[before] + people.answer[before]
  is_whole = (before >= 0) & (people.history == whole)
  reusable = np.where(is_whole, prefix + people.history, prefix)
  reusable = np.where(people.kind == people_lib.SWIPE, prompt, reusable)
  # The first turn's edit has no history: its prefix is all that it repeats.
  columns = people.seconds, people.chat, people.character
  columns = *columns, prefix, prompt, people.answer, reusable
  return simulator.Trace(*(column[people.begin :] for column in columns))


def run(trace, sizes):
  law = state.Law(1e-6, 0.0, 0.0, 0.0, 0.0)
  setup = simulator.Setup(1, 'random', law, sizes, ((1, 2**20),))
  return simulator.simulate_trace(setup, trace, loop=events)[1]


def simulate(trace, pages, local):
  """Returns the tokens that each request resumes, one after another."""
  sizes = state.Sizes(1, PAGE, WINDOW, pages, local, 16, 1)
  return run(trace, sizes)['resumed']


def world_of(sizes, cache):
  none = np.zeros(0)
  replicas, requests = state.make_replicas(1, sizes, 2), state.make_requests(1)
  law = state.Law(*[0.0] * 6)
  return state.view_world(
    state.World(law, none, sizes, replicas, requests, cache)
  )


@pytest.mark.parametrize('pages, local', [(3_000, 1_200), (800, 300)])
def test_hits_are_the_trees_within_two_points(drawn, pages, local):
  """Nearly all requests resume the very tokens; forks resume less."""
  requests, trace = drawn
  sizes = caches.CacheSizes(
    PAGE, WINDOW, {prefix_tree.GLOBAL: 1.0, prefix_tree.LOCAL: 1.0}, 4096
  )
  tree = caches.Points(sizes, pages + local, local=local / (pages + local))
  expected = np.array([tree.serve(request) for request in requests])
  found = simulate(trace, pages, local)
  # The tree's points hold the last token of an answer, too.
  assert (np.abs(found - expected) <= 1).mean() > 0.93
  total = trace.prompt.sum()
  assert abs(found.sum() - expected.sum()) / total < 0.02
  assert (found > 0).mean() == pytest.approx((expected > 0).mean(), abs=0.02)


def test_less_memory_of_either_kind_has_fewer_hits(drawn):
  _, trace = drawn
  rates = [
    simulate(trace, *pools).sum()
    for pools in ((3_000, 3_000), (550, 3_000), (3_000, 280))
  ]
  assert rates[1] < rates[0] and rates[2] < rates[0]


def caught(monkeypatch, name):
  """Returns a list that gets what `state.name` makes."""
  made, make = [], getattr(state, name)
  monkeypatch.setattr(state, name, lambda *x: made.append(make(*x)) or made[-1])
  return made


def test_pages_are_given_back(drawn, monkeypatch):
  """After a trace, what is not listed is free."""
  made = [caught(monkeypatch, f'make_{x}') for x in ('replicas', 'cache')]
  simulate(drawn[1], 800, 300)
  (replicas,), (cache,) = made
  used = np.ones(cache.entry.shape[1], bool)
  used[cache.entry['spare'][0, : replicas['spare_count'][0]]] = False
  held = cache.entry['pages'][0][used].sum()
  assert replicas['free_pages'][0] + held == 800
  listed = cache.entry['listed'][0, : replicas['listed_count'][0]]
  assert (
    replicas['free_local_pages'][0]
    + cache.entry['local_pages'][0][listed].sum()
    == 300
  )
  assert (cache.entry['list_index'][0][listed] == np.arange(len(listed))).all()
  # Ghosts have sessions behind them; sessions stand on prefixes.
  ghosts = used & (cache.entry['list_index'][0] < 0)
  assert (cache.entry['dependents'][0][ghosts] > 0).all()
  sessions = used & (cache.entry['is_prefix'][0] == 0)
  above = cache.entry['prefix_entry'][0][sessions]
  counts = np.bincount(above, minlength=len(used))
  prefixes = used & (cache.entry['is_prefix'][0] == 1)
  assert (cache.entry['dependents'][0][prefixes] == counts[prefixes]).all()


def test_a_prefix_is_worth_what_the_trees_policy_says(drawn, monkeypatch):
  """Where prefixes alone are kept, so that no pages are shared."""
  _, trace = drawn
  rows = np.flatnonzero(trace.character == trace.character[0])[:7]
  trace = simulator.Trace(*(column[rows] for column in trace))
  requests = [drawn[0][row] for row in rows]
  sizes = caches.CacheSizes(
    PAGE, WINDOW, {prefix_tree.GLOBAL: 1.0, prefix_tree.LOCAL: 1.0}, 4096
  )
  tree = caches.Points(sizes, 2_000, local=0.4, between_turns=False)
  for request in requests:
    tree.serve(request)
  (point,) = tree.tree.points()
  kept = caught(monkeypatch, 'make_cache')
  pools = state.Sizes(1, PAGE, WINDOW, 1_200, 800, 16, 0)
  run(trace, pools)
  (cache,) = kept
  entry = cache.prefix_at[0, trace.character[0]]
  now = trace.seconds[-1]
  found = entries.worth(world_of(pools, cache), 0, entry, now)
  assert cache.entry['sessions_begun'][0, entry] == 7
  assert found == pytest.approx(tree.tree.policy.worth(point), rel=1e-3)


def test_a_session_is_worth_the_tokens_behind_its_prefix():
  sizes = state.Sizes(1, PAGE, WINDOW, 100, 100, 16, 1)
  cache = state.make_cache(1, 2, 1, 1)
  world = world_of(sizes, cache)
  cache.entry['length'][0] = 640, 1_000
  cache.entry['pages'][0], cache.entry['local_pages'][0] = (40, 24), (5, 8)
  cache.entry['is_prefix'][0], cache.entry['dependents'][0] = (1, 0), (1, 0)
  cache.entry['prefix_entry'][0, 1], cache.entry['list_index'][0] = 0, (0, 1)
  cost = 24 / 100 + 40 / 3 / 100 + 8 / 100
  worth = entries.worth(world, 0, 1, 100.0)
  assert worth == pytest.approx(0.5 / 100 * 360 / cost)
  # Its prefix can no longer be resumed without it.
  cache.entry['list_index'][0, 0] = -1
  alone = entries.worth(world, 0, 1, 100.0)
  assert alone == pytest.approx(0.5 / 100 * 1_000 / cost)
