"""Simulates fleets of replicas and prints what each routing policy keeps.

The replicas' law is a chip's ceilings, slowed by a guessed factor, or a
measured engine's (`fleet_calibration.py`). A `Study` has three tables:

    times     times to the first token, hit rates and how busy replicas are
    replicas  the fewest replicas that keep an SLO: the load stays as it is, and
              replicas are added until p99 keeps it, by bisection, because
              another replica never makes p99 worse but by noise
    minutes   the part of a month's error budget that each drill spends

A request is bad if its first token comes after the SLO, or if no replica takes
it. What a drill spends are the bad requests that it adds to those of the same
sessions without it, in minutes: as many as a whole outage of that length would
add. A month of 30 days that promises 99.9 % may spend 43.2 minutes, and 9.0 of
them from 4 to 9 pm, if each hour has its share.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
import itertools
import math
import pathlib
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
from kaiju_jax.runs import flags
from kaiju_jax.serving.routing import policies
from kaiju_jax.storage import files
from kaiju_jax.tpu_gpu_configs.chips import h100

# Shapes of a chunk, as an engine of 256 tokens a chunk has them.
SHAPES = (1, 64), (1, 256), (4, 64)
# Entries that an eviction ranks, as `eviction.LeastWorth` has it.
_DRAWN = 16
# The memory of a chip that its runtime and activations take: a guess.
_FREE = 0.1
# Minutes of a month, and of its evenings, that 99.9 % leaves.
MONTH = 30 * 24 * 60 * 0.001
EVENINGS = MONTH * 5 / 24
# Beyond so many times the plan's replicas none are searched.
_MOST = 8
# A table's columns of an `Outcome`: its field, the unit, and the digits.
_TIMES = {
  'TTFT p50, s': ('p50', 1, '.3f'),
  'p99, s': ('p99', 1, '.2f'),
  'worst hour, s': ('worst_p99', 1, '.2f'),
  'hits: requests, %': ('hits', 100, '.1f'),
  'prefix tokens, %': ('prefix_hits', 100, '.1f'),
  'tokens, %': ('token_hits', 100, '.1f'),
  'tokens/s': ('tokens_per_second', 1, ',.0f'),
  'busy, %': ('utilization', 100, '.0f'),
}


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
  """
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
    ValueError: the compiler is missing, or a size is wrong.
  """
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


@dataclasses.dataclass(frozen=True)
class Study:
  """Simulations of each policy at each exponent with each seed."""

  plan: fleet_settings.Plan  # The fleet and its load.
  chosen: Sequence[str] = policies.NAMES  # Policies.
  zipf: Sequence[float] = (0.8, 1.0, 1.2)  # Of the characters' popularity.
  seeds: Sequence[int] = (0,)  # Of the sessions.
  # A measured engine; an H100's ceilings by default.
  engine: calibration.Engine | None = None
  note: Callable[[str], None] = lambda what: None  # Receives a line per run.

  def run(self) -> list[Run]:
    """Runs all, seed by seed."""
    found = []
    for seed, zipf, policy in itertools.product(
      self.seeds, self.zipf, self.chosen
    ):
      began = time.process_time()
      found.append(simulate(self.plan, policy, zipf, seed, self.engine))
      spent = time.process_time() - began
      memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
      one = found[-1].outcome
      self.note(
        f'Zipf {zipf:g}, {policy}, seed {seed}: p99 {one.p99:.2f} s, hits'
        f' {one.token_hits:.1%} of tokens; {one.requests:,} requests,'
        f' {one.events:,} events, {spent:.0f} s of processor,'
        f' {memory:.2f} GiB at most'
      )
    return found

  def show_times(self, runs: Sequence[Run]) -> Iterator[report.Table]:
    """Yields a table per exponent of what `run` returned."""
    outcomes = {run[:3]: run.outcome for run in runs}

    def find(*key: Any) -> list[float]:
      one = outcomes[key]
      found = [scale * getattr(one, name) for name, scale, _ in _TIMES.values()]
      return [*found, one.p99]

    columns = {
      name: functools.partial(_interval, form)
      for name, (_, _, form) in _TIMES.items()
    }
    slo = self.plan.slo
    columns['SLO'] = lambda p99s: 'kept' if max(p99s) <= slo else 'missed'
    title = f', SLO: p99 of the first token {slo:g} s'
    return self._tabulate(title, columns, find)

  def show_replicas(self, slos: Sequence[float]) -> Iterator[report.Table]:
    """Yields a table per exponent: replicas by SLO, in seconds of p99."""
    return self._tabulate(
      f': replicas for {self.plan.rate:g} sessions per second',
      {f'p99 {slo:g} s': _show_counts for slo in slos},
      functools.partial(self.find_replicas, slos),
    )

  def find_replicas(
    self, slos: Sequence[float], policy: str, zipf: float, seed: int
  ) -> list[int | None]:
    """Returns the fewest replicas per SLO; None where no fleet keeps it.

    All SLOs share the simulations.
    """

    @functools.cache
    def p99(replicas: int) -> float:
      plan = dataclasses.replace(self.plan, replicas=replicas)
      found = simulate(plan, policy, zipf, seed, self.engine).outcome.p99
      self.note(
        f'Zipf {zipf:g}, {policy}: {replicas} replicas, p99 {found:.2f} s'
      )
      return found

    return [_bisect(p99, slo, self.plan.replicas) for slo in slos]

  def show_minutes(self, drills: Sequence[str]) -> Iterator[report.Table]:
    """Yields a table per exponent: minutes by drill."""
    show = functools.partial(_interval, '.2f')
    return self._tabulate(
      f': minutes of an error budget of {MONTH:.1f} a month, and'
      f' {EVENINGS:.1f} from 4 to 9 pm; SLO {self.plan.slo:g} s',
      dict.fromkeys(('bad without, %', *drills), show),
      functools.partial(self.find_minutes, drills),
    )

  def find_minutes(
    self, drills: Sequence[str], policy: str, zipf: float, seed: int
  ) -> list[float]:
    """Returns the % of bad requests without a drill, and minutes per drill."""

    def count(drill: str) -> tuple[int, int]:
      plan = dataclasses.replace(self.plan, drill=drill)
      found = simulate(plan, policy, zipf, seed, self.engine).outcome
      self.note(
        f'Zipf {zipf:g}, {policy}, {drill}: {found.late:,} bad requests'
      )
      return found.late, found.requests

    late, requests = count('none')
    minutes = self.plan.sessions / self.plan.rate / 60
    spent = [(count(x)[0] - late) / (requests / minutes) for x in drills]
    return [100 * late / requests, *spent]

  def _tabulate(
    self,
    title: str,
    columns: Mapping[str, Callable[[Sequence[Any]], str]],
    find: Callable[[str, float, int], Sequence[Any]],
  ) -> Iterator[report.Table]:
    """Yields a table per exponent.

    Args:
      title: behind the exponent.
      columns: {name: shows the values of all seeds}.
      find: (policy, exponent, seed) → a value per column.
    """
    for zipf in self.zipf:
      rows = []
      for policy in self.chosen:
        found = zip(*(find(policy, zipf, seed) for seed in self.seeds))
        cells = (show(x) for show, x in zip(columns.values(), found))
        rows.append([policy, *cells])
      yield report.Table(rows, ('policy', *columns), f'Zipf {zipf:g}{title}')


def _interval(form: str, values: Sequence[float]) -> str:
  """Returns the mean of seeds and their range."""
  middle = format(float(np.mean(values)), form)
  if len(values) < 2:
    return middle
  return f'{middle} ({min(values):{form}}–{max(values):{form}})'


def _show_counts(counts: Sequence[int | None]) -> str:
  """Returns the mean of the seeds, and their range."""
  if None in counts:
    return 'none'
  low, high = min(counts), max(counts)
  mean = math.fsum(counts) / len(counts)
  return f'{low}' if low == high else f'{mean:.1f} ({low}–{high})'


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


def show_closed_forms(
  note: Callable[[str], None] = lambda what: None,
) -> report.Table:
  """Returns the table of simulations beside their closed forms."""
  found = []
  for servers, load in ((1, 0.7), (8, 0.6), (8, 0.8), (30, 0.9)):
    found += closed_forms.compare_waits(servers, load, 200_000)
    note(f'M/M/{servers}')
  for zipf in (0.8, 1.0, 1.2):
    found.append(closed_forms.compare_hits(1_000, 100, zipf))
    note(f'LRU, Zipf {zipf:g}')
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


def run(settings: fleet_settings.FleetSettings) -> None:
  """Prints what the command asks for, each table as soon as it is there.

  Raises:
    app.UsageError, ValueError: name a flag, and what would be right.
  """
  for name in ('json', 'out'):
    flags.refuse_address(name, getattr(settings, name))
  tables = _simulate(settings)
  if settings.calibrate or settings.wall_clock:
    # It imports jax, which simulations do without.
    from kaiju_jax.experiments.studies import fleet_calibration

    tables = fleet_calibration.measure(settings, _note)
  elif settings.closed_forms:
    tables = [show_closed_forms(_note)]
  for table in tables:
    report.Report().add(table).show(as_markdown=settings.markdown)


def _simulate(
  settings: fleet_settings.FleetSettings,
) -> Iterator[report.Table]:
  """Yields the tables of simulations; then writes them, where asked to."""
  engine = calibration.read(settings.engine) if settings.engine else None
  chosen = flags.choose('policies', settings.policies, policies.NAMES)
  study = Study(
    settings.plan, chosen, settings.zipf, settings.seeds, engine, _note
  )
  if settings.price_of_slo is not None:
    yield from study.show_replicas(settings.price_of_slo)
    return
  if settings.error_budget is not None:
    known = fleet_settings.DRILLS[1:]
    drills = flags.choose('error_budget', settings.error_budget, known)
    yield from study.show_minutes(drills)
    return
  runs = study.run()
  yield from study.show_times(runs)
  if settings.json:
    path = pathlib.Path(settings.json)
    files.write_json(path, as_json(settings.plan, runs))
    print(f'Written: {path}')


def _note(what: str) -> None:
  print(f'done: {what}', flush=True)
