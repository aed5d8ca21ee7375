"""Queues and caches in closed form: Erlang's C, and Che's hit rate of LRU.

M/M/c: c servers share one queue, arrivals are Poisson, services exponential
with mean s. With load ρ = arrivals · s / c,

    P(wait > t) = C(c, ρ) · exp(−c (1 − ρ) t / s)

Che (2002): an LRU cache keeps what was asked for within the last T requests, T
such that the expected number of kept things is the cache's size.
"""

import functools
import math

import numpy as np


def wait_probability(servers: int, load: float) -> float:
  """Returns Erlang's C, the probability that a request has to wait.

  Args:
    load: ρ, the fraction of the time that a server is busy.

  Raises:
    ValueError: a load outside (0, 1), or no server.
  """
  if not 0 < load < 1:
    raise ValueError(
      f'load={load:g}: must be above 0 and below 1; a queue at 1 or more grows'
      ' without end.'
    )
  if servers < 1:
    raise ValueError(f'servers={servers}: must be at least 1.')
  offered, blocked = servers * load, 1.0
  for n in range(1, servers + 1):
    blocked = offered * blocked / (n + offered * blocked)
  return blocked / (1 - load * (1 - blocked))


def late(servers: int, load: float, wait: float) -> float:
  """Returns the fraction of requests that wait for longer.

  Args:
    wait: in mean service times.
  """
  probability = wait_probability(servers, load)
  return probability * math.exp(-servers * (1 - load) * wait)


def highest_load(servers: int, service: float, slo: float) -> float:
  """Returns the load at which 1 % of the requests miss the SLO.

  Args:
    service: mean seconds of a service.
    slo: seconds of waiting and one mean service.

  Raises:
    ValueError: a mean service alone takes the SLO's time.
  """
  if not 0 < service < slo:
    raise ValueError(
      f'slo={slo:g} s: must be above the mean service, {service:g} s.'
    )
  low, high = 0.0, 1.0
  for _ in range(60):
    middle = (low + high) / 2
    met = late(servers, middle, slo / service - 1) <= 0.01
    low, high = (middle, high) if met else (low, middle)
  return low


@functools.cache
def lru_hit_rate(things: int, kept: int, exponent: float) -> float:
  """Returns the hit rate of an LRU cache under Zipf's law, as Che has it.

  Args:
    things: how many different things are asked for.
    kept: how many of them the cache holds.
    exponent: Zipf's exponent.

  Raises:
    ValueError: a number below 1, or an exponent below 0.
  """
  for name, value in (('things', things), ('kept', kept)):
    if value < 1:
      raise ValueError(f'{name}={value}: must be at least 1.')
  if exponent < 0:
    raise ValueError(f'exponent={exponent:g}: must be at least 0.')
  if kept >= things:
    return 1.0
  # Ranks in bins: the first ones alone, then .3 % wide.
  edges = np.unique(np.geomspace(1, things + 1, 4096).round())
  count = np.diff(edges)
  share = ((edges[:-1] + edges[1:] - 1) / 2) ** -exponent
  share /= (share * count).sum()
  low, high = 0.0, math.log(kept) + 60
  for _ in range(50):
    middle = (low + high) / 2
    present = -np.expm1(-share * math.exp(middle))
    low, high = (
      (middle, high) if (count * present).sum() < kept else (low, middle)
    )
  return float((count * share * present).sum())
