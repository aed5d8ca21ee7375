"""Traces whose outcome is known in closed form, for the fleet simulator.

M/M/c: requests of one token each, served for a geometric number of rounds by c
rows of one replica, approach exponential services as rounds get short. Che:
requests for characters' prefixes of one size, one at a time.
"""

import types
from typing import NamedTuple

import numpy as np

from kaiju_jax.fleet import laws
from kaiju_jax.fleet import queueing
from kaiju_jax.fleet import sessions
from kaiju_jax.fleet import simulator
from kaiju_jax.fleet import state

# Rounds of a mean service.
_ROUNDS = 400
_BATCHES = 20


class Compared(NamedTuple):
  """A simulated figure beside its closed form."""

  name: str
  found: float  # As simulated.
  expected: float  # The closed form's.
  sigma: float  # Standard deviation of `found`, by batch means; 0: not known.
  most: float  # How far the two may be apart.

  @property
  def is_met(self) -> bool:
    return abs(self.found - self.expected) <= self.most


def compare_waits(
  servers: int,
  load: float,
  count: int = 100_000,
  seed: int = 0,
  loop: types.ModuleType | None = None,
) -> list[Compared]:
  """Compares P(wait) and the p99 of waits with Erlang's C.

  Services take a second on average. A free row is given with the next round, so
  that waits count from 1.5 rounds on, in the closed form as well. Returns
  Little's law, too, with .1 %.
  """
  rng = np.random.default_rng((seed, 11))
  gaps = -np.log1p(-rng.random(count)) / (servers * load)
  services = laws.geometric(rng, _ROUNDS, count)
  numbers, ones = np.arange(count), np.ones(count, np.int64)
  # A prompt of one token and no prefix takes a round, which ends with the first
  # token; each other token takes one.
  trace = simulator.Trace(
    np.cumsum(gaps), numbers, 0 * ones, 0 * ones, ones, services, 0 * ones
  )
  sizes = state.Sizes(servers, 64, 0, 10_000, 0, 0, 0)
  outcome, found = _simulate(1 / _ROUNDS, sizes, (servers, 1), trace, loop)
  waits = found['first_token'] - found['seconds'] - 1 / _ROUNDS
  waits = waits[count // 10 :]
  closed = queueing.wait_probability(servers, load)
  expected = np.log(closed / 0.01) / (servers * (1 - load))
  least = 1.5 / _ROUNDS
  is_late = queueing.late(servers, load, least)
  title = f'M/M/{servers}, load {load:g}'
  compared = []
  for name, measure, value in (
    ('P(wait)', lambda x: float((x > least).mean()), is_late),
    ('p99 of waits', lambda x: float(np.quantile(x, 0.99)), expected),
  ):
    parts = [measure(part) for part in np.array_split(waits, _BATCHES)]
    sigma = float(np.std(parts, ddof=1) / _BATCHES**0.5)
    compared.append(
      Compared(f'{title}: {name}', measure(waits), value, sigma, 3 * sigma)
    )
  present = outcome.requests * outcome.mean_stay / outcome.seconds
  name = f"{title}: Little's law"
  return [
    *compared,
    Compared(name, outcome.present, present, 0.0, 1e-3 * present),
  ]


def compare_hits(
  things: int, kept: int, exponent: float, count: int = 200_000
) -> Compared:
  """Compares the hit rate of prefixes alone with Che's, within half a point."""
  rng = np.random.default_rng((0, 12))
  drawn = np.searchsorted(
    sessions.make_law(things, exponent), rng.random(count)
  )
  ones = np.ones(count, np.int64)
  trace = simulator.Trace(
    10.0 * np.arange(count),
    np.arange(count) % 50,
    np.minimum(drawn, things - 1),
    640 * ones,
    641 * ones,
    ones,
    0 * ones,
  )
  # A row has a page of its own, and local pages are plenty.
  sizes = state.Sizes(1, 64, 64, 10 * kept + 1, 4 * kept + 100, 0, 0)
  _, found = _simulate(1e-3, sizes, (1, 1024), trace, None)
  rate = float((found['resumed'][count // 4 :] > 0).mean())
  return Compared(
    f'LRU of {kept} of {things:,}, Zipf {exponent:g}: hit rate',
    rate,
    queueing.lru_hit_rate(things, kept, exponent),
    0.0,
    0.005,
  )


def _simulate(round_seconds, sizes, chunk, trace, loop):
  """Runs one replica whose rounds all take the same time."""
  law = state.Law(round_seconds, 0.0, 0.0, 0.0, 0.0)
  setup = simulator.Setup(1, 'random', law, sizes, (chunk,), table=8)
  return simulator.simulate_trace(setup, trace, loop=loop)
