"""The compiled simulator: as plain Python, and as closed forms have it."""

import dataclasses

import pytest

from kaiju_jax.experiments.studies import fleet
from kaiju_jax.experiments.studies import fleet_settings
from kaiju_jax.fleet import closed_forms
from kaiju_jax.fleet import events
from kaiju_jax.fleet import simulator
from kaiju_jax.serving.routing import policies
from tests.fleet import small_fleet


def check_bits(policy):
  """The compiled loop gives the bits of plain Python, faults included."""
  faults = [(5.0, events.LOSE, 1, 0.0), (9.0, events.SHARE, 1, 0.5)]
  setup = dataclasses.replace(
    small_fleet.SETUP,
    replicas=4,
    policy=policy,
    faults=[*faults, (8.0, events.WARM, 1, 9), (12.0, events.FORGET, 0, 0.0)],
    sizes=small_fleet.SIZES._replace(pages=900, local_pages=700),
  )
  flow = small_fleet.FLOW._replace(rate=12.0, think=0.5, sessions=120)
  arguments = setup, flow, small_fleet.ENDS, 256
  plain = simulator.simulate(*arguments, loop=events)
  assert simulator.simulate(*arguments) == plain
  assert plain.moved > 0 and plain.evictions > 0


def check_waits():
  for one in closed_forms.compare_waits(1, 0.7):
    assert one.is_met, one
  waits = closed_forms.compare_waits(8, 0.8)
  assert all(one.is_met for one in waits), waits
  # Waits at another load are further off.
  other = closed_forms.compare_waits(8, 0.85)
  for one, than in zip(waits[:2], other[:2]):
    assert abs(one.expected - than.found) > one.most


def check_peak():
  """A day whose evening has twice the mean: its worst hour keeps the SLO.

  Without affinity it does not, though the mean is the same.
  """
  plan = fleet_settings.Plan(replicas=3, rows=16, rate=2.1, peak=2.0)
  plan = dataclasses.replace(plan, sessions=int(86_400 * plan.rate))
  worst = {
    policy: fleet.simulate(plan, policy, 1.0, 0).outcome.worst_p99
    for policy in ('sticky', 'random')
  }
  assert worst['sticky'] < 2.5 < worst['random']
  flat = fleet.simulate(
    dataclasses.replace(plan, peak=1.0), 'sticky', 1.0, 0
  ).outcome
  assert flat.worst_p99 < 0.5 * worst['sticky']


@pytest.mark.slow
def test_it_agrees_with_plain_python_and_with_closed_forms():
  """One test, because workers would each compile for half a minute."""
  pytest.importorskip('numba')
  simulator.compile_loop.cache_clear()
  for policy in policies.NAMES:
    check_bits(policy)
  check_waits()
  check_peak()
  for exponent in (0.8, 1.0, 1.2):
    one = closed_forms.compare_hits(1_000, 100, exponent, count=120_000)
    assert one.is_met, one
