"""Closed forms agree with others, and with an LRU cache that is run."""

import collections
import math

import numpy as np
import pytest

from kaiju_jax.fleet import queueing


@pytest.mark.parametrize('load', [0.1, 0.5, 0.9])
@pytest.mark.parametrize('servers', [1, 3, 8])
def test_erlang_c_is_its_own_sum(servers, load):
  offered = servers * load
  terms = [offered**n / math.factorial(n) for n in range(servers)]
  last = offered**servers / math.factorial(servers) / (1 - load)
  assert queueing.wait_probability(servers, load) == pytest.approx(
    last / (sum(terms) + last)
  )


def test_one_server_waits_with_probability_of_its_load():
  assert queueing.wait_probability(1, 0.7) == pytest.approx(0.7)
  assert queueing.late(1, 0.7, 2.0) == pytest.approx(0.7 * math.exp(-0.6))


@pytest.mark.parametrize('servers', [1, 8, 30])
def test_the_highest_load_is_where_one_in_a_hundred_is_late(servers):
  load = queueing.highest_load(servers, 0.2, 2.5)
  wait = 2.5 / 0.2 - 1
  assert queueing.late(servers, load, wait) == pytest.approx(0.01, rel=1e-6)
  assert queueing.late(servers, min(load + 0.01, 0.9999), wait) > 0.01


@pytest.mark.parametrize('exponent', [0.8, 1.0, 1.2])
def test_che_is_within_half_a_point_of_an_lru_cache(exponent):
  things, kept, requests = 2_000, 200, 40_000
  share = np.arange(1, things + 1) ** -exponent
  rng = np.random.default_rng(0)
  drawn = rng.choice(things, size=requests, p=share / share.sum())
  cache, hits = collections.OrderedDict(), 0
  for count, thing in enumerate(drawn.tolist()):
    hits += thing in cache and count >= requests // 4
    cache[thing] = None
    cache.move_to_end(thing)
    if len(cache) > kept:
      cache.popitem(last=False)
  rate = hits / (requests - requests // 4)
  assert queueing.lru_hit_rate(things, kept, exponent) == pytest.approx(
    rate, abs=0.005
  )


def test_bins_of_ranks_change_nothing_that_counts():
  things, kept = 20_000, 2_000
  share = np.arange(1, things + 1) ** -1.0
  share /= share.sum()
  low, high = 0.0, 40.0
  for _ in range(50):
    middle = (low + high) / 2
    present = -np.expm1(-share * math.exp(middle))
    low, high = (middle, high) if present.sum() < kept else (low, middle)
  found = queueing.lru_hit_rate(things, kept, 1.0)
  assert found == pytest.approx((share * present).sum(), abs=1e-4)
  assert queueing.lru_hit_rate(10, 10, 1.0) == 1
