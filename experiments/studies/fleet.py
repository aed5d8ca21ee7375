"""Simulates fleets of replicas and prints what each routing policy keeps.

The replicas' law is a chip's ceilings, slowed by a guessed factor, or a
measured engine's (`fleet_calibration.py`).
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import itertools
import resource
import time
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.decoding.pages import prefix_tree
from kaiju_jax.experiments.studies import fleet_settings
from kaiju_jax.fleet import calibration
from kaiju_jax.fleet import ceilings
from kaiju_jax.fleet import closed_forms
from kaiju_jax.fleet import events
from kaiju_jax.fleet import replay
from kaiju_jax.fleet import sessions
from kaiju_jax.fleet import simulator
from kaiju_jax.fleet import state
from kaiju_jax.model import presets
from kaiju_jax.reporting import report
from kaiju_jax.serving.routing import policies
from kaiju_jax.tpu_gpu_configs.chips import h100

# Shapes of a chunk, as an engine of 256 tokens a chunk has them.
SHAPES = (1, 64), (1, 256), (4, 64)
# Entries that an eviction ranks, as `eviction.LeastWorth` has it.
_DRAWN = 16
# The memory of a chip that its runtime and activations take: a guess.
_FREE = 0.1


class Run(NamedTuple):
  """One simulation: its policy, Zipf's exponent, the seed, and the outcome."""

  policy: str
  zipf: float
  seed: int
  outcome: simulator.Outcome


def make_flow(plan: fleet_settings.Plan, seed: int) -> sessions.Flow:
  """Returns the sessions of a plan, with the sizes of `people.People`."""
  return sessions.Flow(
    seed=seed,
    sessions=plan.sessions,
    rate=plan.rate,
    peak=plan.peak,
    hour=18.0,
    messages=plan.messages,
    swipes=0.15,
    think=60.0,
    think_spread=1.0,
    message=25.0,
    answer=120.0,
    spread=0.7,
    longest=512,
    context=32_768,
    low=4_096.0,
    high=16_384.0,
  )


def make_setup(
  plan: fleet_settings.Plan,
  policy: str,
  engine: calibration.Engine | None = None,
) -> simulator.Setup:
  """Returns a fleet of H100s, or of a measured engine's replicas."""
  slo = plan.slo - plan.gate
  if engine is not None:
    return simulator.Setup(
      plan.replicas, policy, engine.law, engine.sizes, engine.shapes, slo=slo
    )
  config = presets.preset(plan.preset)
  law, _ = calibration.fit_chip(config, h100.CHIP, slower=plan.slower)
  memory = (1 - _FREE) * h100.CHIP.hbm_bytes - ceilings.weight_bytes(config)
  pages = replay.sizes_of(config)
  local = pages.local_fraction
  sizes = state.Sizes(
    plan.rows,
    pages.page,
    pages.window,
    int(memory * (1 - local) / pages.page_bytes[prefix_tree.GLOBAL]),
    int(memory * local / pages.page_bytes[prefix_tree.LOCAL]),
    _DRAWN,
    1,
  )
  faults = make_faults(plan)
  return simulator.Setup(
    plan.replicas, policy, law, sizes, SHAPES, faults, slo=slo
  )


def make_faults(
  plan: fleet_settings.Plan,
) -> list[tuple[float, int, int, float]]:
  """Returns a drill's faults, which begin once half of the sessions have.

    lost     replica 0 is lost, and comes back empty after five minutes
    drained  replica 0 takes nothing new for five minutes
    cold     replica 0 joins, empty, at its full share
    warm     replica 0 joins with popular prefixes: 10, 50 and 100 %
    table    the router forgets which sessions are where

  Raises:
    ValueError: no such drill, or one that needs a second replica.
  """
  if plan.drill not in fleet_settings.DRILLS:
    raise ValueError(
      f'drill={plan.drill!r}: must be one of'
      f' {", ".join(fleet_settings.DRILLS)}.'
    )
  if plan.drill != 'none' and plan.replicas < 2:
    raise ValueError(f'replicas=1: the drill {plan.drill!r} needs 2 or more.')
  middle = plan.sessions / plan.rate / 2
  share, lose = events.SHARE, events.LOSE
  steps = {
    'none': (),
    'lost': ((0, lose, 0), (300, share, 1)),
    'drained': ((0, share, 0), (300, share, 1)),
    'cold': ((-1e9, share, 0), (0, share, 1)),
    'warm': (
      (-1e9, share, 0),
      (-1, events.WARM, plan.characters),
      (0, share, 0.1),
      (60, share, 0.5),
      (120, share, 1),
    ),
    'table': ((0, events.FORGET, 0),),
  }[plan.drill]
  return [
    (max(0.0, middle + after), kind, 0, float(value))
    for after, kind, value in steps
  ]


def simulate(
  plan: fleet_settings.Plan,
  policy: str,
  zipf: float,
  seed: int,
  engine: calibration.Engine | None = None,
) -> Run:
  """Runs one simulation.

  Raises:
    ValueError: names the field that is wrong; or the compiler is missing.
  """
  for name in ('rate', 'messages', 'characters', 'sessions'):
    if not getattr(plan, name) >= 1e-9:
      raise ValueError(f'{name}={getattr(plan, name)}: must be above 0.')
  if not 1 <= plan.peak <= 2:
    raise ValueError(f'peak={plan.peak}: must be 1 to 2 times the mean.')
  if not 0 <= plan.gate < plan.slo:
    raise ValueError(
      f'gate={plan.gate:g}: must be 0 or more, and below the SLO, {plan.slo:g}.'
    )
  flow = make_flow(plan, seed)
  setup = make_setup(plan, policy, engine)
  # Little's law, three times over: thinking and waiting.
  live = plan.rate * plan.peak * plan.messages * 110 * 3
  outcome = simulator.simulate(
    setup,
    flow,
    sessions.make_law(plan.characters, zipf),
    live=int(min(plan.sessions, live + 4_096)),
    begin=plan.warm_up,
  )
  return Run(policy, zipf, seed, _behind_gates(outcome, plan.gate))


def _behind_gates(
  outcome: simulator.Outcome, seconds: float
) -> simulator.Outcome:
  """Adds the seconds that the gates read each message; they are no engine's."""
  names = 'p50', 'p99', 'worst_p99', 'mean_ttft', 'mean_stay'
  return outcome._replace(
    **{name: getattr(outcome, name) + seconds for name in names}
  )


def study(
  plan: fleet_settings.Plan,
  chosen: Sequence[str] = policies.NAMES,
  exponents: Sequence[float] = (0.8, 1.0, 1.2),
  seeds: Sequence[int] = (0,),
  engine: calibration.Engine | None = None,
  noted: Callable[[str], None] = lambda what: None,
) -> list[Run]:
  """Runs each policy at each exponent with each seed, seed by seed."""
  found = []
  for seed, zipf, policy in itertools.product(seeds, exponents, chosen):
    began = time.process_time()
    found.append(simulate(plan, policy, zipf, seed, engine))
    spent = time.process_time() - began
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    one = found[-1].outcome
    noted(
      f'Zipf {zipf:g}, {policy}, seed {seed}: p99 {one.p99:.2f} s, hits'
      f' {one.token_hits:.1%} of tokens; {one.requests:,} requests,'
      f' {one.events:,} events, {spent:.0f} s of processor,'
      f' {memory:.2f} GiB at most'
    )
  return found


def by_policy(
  chosen: Sequence[str],
  exponents: Sequence[float],
  seeds: Sequence[int],
  find: Callable[[str, float, int], Any],
) -> Iterator[tuple[float, dict[str, list[Any]]]]:
  """Yields each exponent with the values of `find` per seed, by policy.

  Args:
    chosen: policies.
    exponents: of the characters' popularity.
    seeds: of the sessions.
    find: (policy, exponent, seed) → a value.
  """
  for zipf in exponents:
    yield zipf, {x: [find(x, zipf, seed) for seed in seeds] for x in chosen}


def interval(values: Sequence[float], form: str) -> str:
  """Returns the mean of seeds and their range."""
  middle = format(float(np.mean(values)), form)
  if len(values) < 2:
    return middle
  return f'{middle} ({min(values):{form}}–{max(values):{form}})'


COLUMNS = (
  'policy',
  'TTFT p50, s',
  'p99, s',
  'worst hour, s',
  'hits: requests, %',
  'prefix tokens, %',
  'tokens, %',
  'tokens/s',
  'busy, %',
  'SLO',
)


def show(runs: Sequence[Run], slo: float) -> Iterator[report.Table]:
  """Yields a table per exponent."""
  for zipf in dict.fromkeys(run.zipf for run in runs):
    rows = []
    here = [run for run in runs if run.zipf == zipf]
    for policy in dict.fromkeys(run.policy for run in here):
      found = [run.outcome for run in here if run.policy == policy]
      row = [policy]
      for name, scale, form in (
        ('p50', 1, '.3f'),
        ('p99', 1, '.2f'),
        ('worst_p99', 1, '.2f'),
        ('hits', 100, '.1f'),
        ('prefix_hits', 100, '.1f'),
        ('token_hits', 100, '.1f'),
        ('tokens_per_second', 1, ',.0f'),
        ('utilization', 100, '.0f'),
      ):
        values = [scale * getattr(one, name) for one in found]
        row.append(interval(values, form))
      row.append('kept' if all(one.p99 <= slo for one in found) else 'missed')
      rows.append(row)
    title = f'Zipf {zipf:g}, SLO: p99 of the first token {slo:g} s'
    yield report.Table(rows, COLUMNS, title)


def show_closed_forms(
  noted: Callable[[str], None] = lambda what: None,
) -> report.Table:
  """Returns the table of simulations beside their closed forms."""
  found = []
  for servers, load in ((1, 0.7), (8, 0.6), (8, 0.8), (30, 0.9)):
    found += closed_forms.compare_waits(servers, load, 200_000)
    noted(f'M/M/{servers}')
  for zipf in (0.8, 1.0, 1.2):
    found.append(closed_forms.compare_hits(1_000, 100, zipf))
    noted(f'LRU, Zipf {zipf:g}')
  rows = [
    [
      one.name,
      f'{one.found:.4f}',
      f'{one.expected:.4f}',
      f'{abs(one.found - one.expected):.4f}',
      f'{one.most:.4f}',
      'met' if one.is_met else 'MISSED',
    ]
    for one in found
  ]
  columns = 'figure', 'simulated', 'closed form', 'apart', 'most', ''
  return report.Table(rows, columns, 'Closed forms')


def as_json(plan: fleet_settings.Plan, runs: Sequence[Run]) -> dict[str, Any]:
  """Returns what --json writes."""
  return {
    'plan': dataclasses.asdict(plan),
    'runs': [
      {**report.plain(run._replace(outcome=None)), **report.plain(run.outcome)}
      for run in runs
    ],
  }
