"""Without affinity: what random routing keeps, and when the SLO is broken.

Source 003 says a hit rate of 1/N ≈ 0 %, 2.5 times the load, and five minutes.
"""

import dataclasses
import math

import pytest

from kaiju_jax.experiments.studies import economics as runs_economics
from kaiju_jax.fleet import book as book_lib
from kaiju_jax.fleet import claims
from kaiju_jax.fleet import economics
from kaiju_jax.fleet import incident
from kaiju_jax.fleet import queueing

SOURCE = runs_economics.load('source')
SAID = book_lib.values(SOURCE)
OURS = book_lib.inputs(runs_economics.load('ours'))


@pytest.mark.parametrize(
  'exponent, rate', [(0.8, 0.16), (1.0, 0.50), (1.2, 0.83)]
)
def test_random_routing_still_finds_prefixes(exponent, rate):
  """A shard keeps 3,600 prefixes of 7.6 MiB, whoever sends the request."""
  kept = int(29e9 / (7.6 * 2**20))
  found = queueing.lru_hit_rate(1_000_000, kept, exponent)
  assert found == pytest.approx(rate, abs=0.01)
  assert found > 1 / 100 + 0.1  # 1/N of 100 shards.


def test_the_load_grows_by_less_than_prefill_alone():
  prefill = 1 / (1 - SAID.hit_rate)
  assert prefill == pytest.approx(2.5)
  assert 2.0 < claims.work(SAID, 0.0) < prefill
  # From 98 % it is more than from 60 %, and half the prefixes help.
  worst = economics.work_ratio(OURS, 0.0)
  share = OURS.prefix / OURS.prompt
  random = economics.work_ratio(OURS, SAID.random_hit_rate * share)
  assert worst > random > 5 > prefill


def test_the_slo_is_broken_in_seconds_and_holds_again_when_rebuilt():
  lost = incident.lost_load(OURS)
  assert lost > 10
  # A fleet that is full breaks in less than a second, not in five minutes.
  assert queueing.seconds_to_breach(lost, OURS.slo) < 1
  # Five minutes would want a fleet that is at most 1 % overloaded.
  assert queueing.seconds_to_breach(1 + 2.5 / 300, 2.5) == pytest.approx(300)
  # With the table rebuilt, the load is what it was.
  cold = dataclasses.replace(OURS, hit_rate=0.0)
  rebuilt = dataclasses.replace(cold, hit_rate=OURS.hit_rate)
  load = economics.cost(rebuilt).load
  assert load < 1 and queueing.seconds_to_breach(load, 2.5) == math.inf
  assert economics.cost(rebuilt) == economics.cost(OURS)
