"""Finds which part of a month's error budget each drill spends.

A request is bad if its first token comes after the SLO, or if no replica takes
it. What a drill spends are the bad requests that it adds to those of the same
sessions without it, in minutes: as many as a whole outage of that length would
add. A month of 30 days that promises 99.9 % may spend 43.2 minutes, and 9.0 of
them from 4 to 9 pm, if each hour has its share.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses

from kaiju_jax.experiments.studies import fleet
from kaiju_jax.experiments.studies import fleet_settings
from kaiju_jax.fleet import calibration
from kaiju_jax.reporting import report

# Minutes of a month, and of its evenings, that 99.9 % leaves.
MONTH = 30 * 24 * 60 * 0.001
EVENINGS = MONTH * 5 / 24


def find(
  plan: fleet_settings.Plan,
  policy: str,
  zipf: float,
  seed: int,
  drills: Sequence[str],
  engine: calibration.Engine | None = None,
  noted: Callable[[str], None] = lambda what: None,
) -> tuple[float, list[float]]:
  """Returns the share of bad requests without a drill, and minutes per drill.

  Args:
    plan: the fleet and its load; its own drill is not used.
    policy: one of `policies.NAMES`.
    zipf: exponent of the characters' popularity.
    seed: of the sessions.
    drills: of `fleet_settings.DRILLS`.
    engine: a measured engine; an H100's ceilings by default.
    noted: receives a line per simulation.

  Raises:
    ValueError: see `fleet.simulate`.
  """

  def count(drill: str) -> tuple[int, int]:
    plan_ = dataclasses.replace(plan, drill=drill)
    found = fleet.simulate(plan_, policy, zipf, seed, engine).outcome
    noted(f'Zipf {zipf:g}, {policy}, {drill}: {found.late:,} bad requests')
    return found.late, found.requests

  late, requests = count('none')
  minutes = plan.sessions / plan.rate / 60
  spent = [(count(x)[0] - late) / (requests / minutes) for x in drills]
  return late / requests, spent


def show(
  plan: fleet_settings.Plan,
  chosen: Sequence[str],
  exponents: Sequence[float],
  seeds: Sequence[int],
  drills: Sequence[str],
  engine: calibration.Engine | None = None,
  noted: Callable[[str], None] = lambda what: None,
) -> Iterator[report.Table]:
  """Yields a table per exponent."""

  def spend(policy: str, zipf: float, seed: int) -> list[float]:
    bad, minutes = find(plan, policy, zipf, seed, drills, engine, noted)
    return [100 * bad, *minutes]

  for zipf, found in fleet.by_policy(chosen, exponents, seeds, spend):
    rows = [
      [name, *(fleet.interval(x, '.2f') for x in zip(*spent))]
      for name, spent in found.items()
    ]
    title = (
      f'Zipf {zipf:g}: minutes of an error budget of {MONTH:.1f} a month, and'
      f' {EVENINGS:.1f} from 4 to 9 pm; SLO {plan.slo:g} s'
    )
    columns = 'policy', 'bad without, %', *drills
    yield report.Table(rows, columns, title)
