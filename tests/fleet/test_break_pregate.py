"""Without the gate in front: what is refused costs a forward pass.

Source 003 says .5 to 1 % of the fleet, and a refusal after 2,500 instead of 10
ms, from which testers read the verdict.
"""

import dataclasses

import numpy as np
import pytest

from kaiju_jax.experiments.studies import economics as runs_economics
from kaiju_jax.fleet import book as book_lib
from kaiju_jax.fleet import economics

GIVEN = book_lib.inputs(runs_economics.load('source'))


@pytest.mark.parametrize('blocked, wasted', [(0.005, 250), (0.01, 500)])
def test_refused_messages_are_a_hundredth_of_the_fleet(blocked, wasted):
  rate = 50_000
  gpus = [
    economics.cost(dataclasses.replace(GIVEN, message_rate=served)).gpus
    for served in (rate, rate * (1 - blocked))
  ]
  assert rate * blocked == pytest.approx(wasted)
  assert gpus[0] / gpus[1] - 1 == pytest.approx(blocked / (1 - blocked))
  # At the rate that 20 B tokens a day give, it is not 500 but 4.5 or 9.
  assert GIVEN.message_rate * GIVEN.peak_to_mean * blocked < 10


def told_apart(refused_ms, answered_ms):
  """Returns how often the faster of a pair is the refused one (AUC)."""
  faster = refused_ms[:, None] < answered_ms[None, :]
  even = refused_ms[:, None] == answered_ms[None, :]
  return float((faster + even / 2).mean())


def test_latency_tells_a_refusal_with_the_gate_not_without():
  """The other way round than source 003 has it: the gate's haste tells."""
  rng = np.random.default_rng(0)

  def seconds():  # A median of 800 ms and a p99 of 2.5 s, as the SLO.
    return 800 * np.exp(rng.normal(size=2_000) * np.log(2500 / 800) / 2.326)

  answered = seconds()
  assert told_apart(rng.uniform(5, 10, 2_000), answered) > 0.99
  assert told_apart(seconds(), answered) == pytest.approx(0.5, abs=0.03)
  # A refusal that is held as long as an answer takes costs no GPU.
  held = np.maximum(rng.uniform(5, 10, 2_000), seconds())
  assert told_apart(held, answered) == pytest.approx(0.5, abs=0.03)
