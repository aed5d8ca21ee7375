"""Finds how many replicas each router needs for a time to the first token.

The load stays as it is, and replicas are added until p99 keeps the SLO: by
bisection, because another replica never makes p99 worse but by noise. All SLOs
share the simulations.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import math

from kaiju_jax.experiments.studies import fleet
from kaiju_jax.experiments.studies import fleet_settings
from kaiju_jax.fleet import calibration
from kaiju_jax.reporting import report

# Beyond so many times the plan's replicas nothing is searched.
_MOST = 8


def find(
  plan: fleet_settings.Plan,
  policy: str,
  zipf: float,
  seed: int,
  slos: Sequence[float],
  engine: calibration.Engine | None = None,
  noted: Callable[[str], None] = lambda what: None,
) -> list[int | None]:
  """Returns the fewest replicas per SLO; None where no fleet keeps it.

  Args:
    plan: the load; its replicas are those that the search begins with.
    policy: one of `policies.NAMES`.
    zipf: exponent of the characters' popularity.
    seed: of the sessions.
    slos: seconds of p99.
    engine: a measured engine; an H100's ceilings by default.
    noted: receives a line per simulation.
  """
  known: dict[int, float] = {}

  def p99(replicas: int) -> float:
    if replicas not in known:
      larger = dataclasses.replace(plan, replicas=replicas)
      run = fleet.simulate(larger, policy, zipf, seed, engine)
      known[replicas] = run.outcome.p99
      noted(
        f'Zipf {zipf:g}, {policy}: {replicas} replicas, p99'
        f' {run.outcome.p99:.2f} s'
      )
    return known[replicas]

  return [_bisect(p99, slo, plan.replicas) for slo in slos]


def _bisect(p99: Callable[[int], float], slo: float, begin: int) -> int | None:
  """Returns the fewest replicas with at most `slo` seconds."""
  low, high = 0, begin
  while not p99(high) <= slo:
    low, high = high, 2 * high
    if low >= _MOST * begin:
      return None
  while high - low > 1:
    middle = (low + high) // 2
    if p99(middle) <= slo:
      high = middle
    else:
      low = middle
  return high


def show(
  plan: fleet_settings.Plan,
  chosen: Sequence[str],
  exponents: Sequence[float],
  seeds: Sequence[int],
  slos: Sequence[float],
  engine: calibration.Engine | None = None,
  noted: Callable[[str], None] = lambda what: None,
) -> Iterator[report.Table]:
  """Yields a table per exponent."""

  def count(policy: str, zipf: float, seed: int) -> list[int | None]:
    return find(plan, policy, zipf, seed, slos, engine, noted)

  for zipf, found in fleet.by_policy(chosen, exponents, seeds, count):
    rows = [[name, *map(_tell, zip(*counts))] for name, counts in found.items()]
    title = f'Zipf {zipf:g}: replicas for {plan.rate:g} sessions per second'
    columns = 'policy', *(f'p99 {slo:g} s' for slo in slos)
    yield report.Table(rows, columns, title)


def _tell(counts: Sequence[int | None]) -> str:
  """Returns the mean of the seeds, and their range."""
  if None in counts:
    return 'none'
  low, high = min(counts), max(counts)
  mean = math.fsum(counts) / len(counts)
  return f'{low}' if low == high else f'{mean:.1f} ({low}–{high})'
