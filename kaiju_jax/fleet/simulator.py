"""The fleet simulator: traffic, replicas and a policy in, an outcome out.

    setup = Setup(64, 'sticky', law, sizes)
    outcome = simulate(setup, flow, ends)        # drawn sessions (`sessions`)
    outcome, requests = simulate_trace(setup, trace)

The loop (`events.py`) is compiled by numba where it is installed, and is plain
Python under NUMBA_DISABLE_JIT=1. The same arguments give the same bits.
"""

from collections.abc import Sequence
import dataclasses
import functools
import types
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.fleet import compiling
from kaiju_jax.fleet import entries
from kaiju_jax.fleet import events
from kaiju_jax.fleet import people as people_lib
from kaiju_jax.fleet import rounds
from kaiju_jax.fleet import sessions as sessions_lib
from kaiju_jax.fleet import state
from kaiju_jax.serving.routing import policies

_MODULES = policies, entries, sessions_lib, rounds, events
# No sessions: the requests are a trace.
NO_FLOW = sessions_lib.Flow(0, 0, *[1.0] * 10, 1, 1, 1.0, 1.0)
WEIGHTS = 'fixed', 'row', 'context', 'token', 'attended', 'chunk'


@dataclasses.dataclass(frozen=True)
class Setup:
  """A fleet.

  Attributes:
    replicas: how many there are, those that are added later included.
    policy: one of `policies.NAMES`.
    law: seconds of a round.
    sizes: of a replica.
    shapes: (rows, tokens) of a chunk.
    faults: (second, kind, replica, value), kinds as in `events`.
    table: sessions that the router's table holds.
    slo: seconds to the first token after which a request counts as late.
  """

  replicas: int
  policy: str
  law: state.Law
  sizes: state.Sizes
  shapes: Sequence[tuple[int, int]] = ((1, 256),)
  faults: Sequence[tuple[float, int, int, float]] = ()
  table: int = 2**20
  slo: float = np.inf

  def __post_init__(self):
    """Refuses a fleet that cannot be.

    Raises:
      ValueError: names the field, its value and what would be right.
    """
    if not 1 <= self.replicas < 2**15:
      raise ValueError(f'replicas={self.replicas}: must be 1 to 32,767.')
    if self.policy not in policies.NAMES:
      raise ValueError(
        f'policy={self.policy!r}: must be one of {", ".join(policies.NAMES)}.'
      )
    for name, value in self.law._asdict().items():
      if not 0 <= value < np.inf:
        raise ValueError(f'law.{name}={value}: must be seconds of 0 or more.')
    if self.law.fixed <= 0:
      raise ValueError('law.fixed=0: a round takes time; it must be above 0.')
    for name in ('rows', 'page', 'pages'):
      if getattr(self.sizes, name) < 1:
        raise ValueError(
          f'sizes.{name}={getattr(self.sizes, name)}: must be at least 1.'
        )
    if self.sizes.rows > state.MOST_ROWS:
      raise ValueError(
        f'sizes.rows={self.sizes.rows}: must be at most {state.MOST_ROWS}.'
      )
    for fault in self.faults:
      if not 0 <= fault[2] < self.replicas:
        raise ValueError(
          f'faults: {fault} names replica {fault[2]}, of {self.replicas}.'
        )

  def check_text(self, prefix: int, context: int) -> None:
    """Refuses pools in which the longest text alone has no room.

    Raises:
      ValueError: names the pool, its pages and how many are needed.
    """
    sizes = self.sizes
    needs = {
      'pages': entries.count_pages(sizes, context)
      + entries.count_pages(sizes, prefix),
      'local_pages': entries.count_local(sizes, 0, context)
      + entries.count_local(sizes, prefix, prefix),
    }
    for name, count in needs.items():
      if getattr(sizes, name) < count:
        raise ValueError(
          f'sizes.{name}={getattr(sizes, name)}: a text of {context} tokens'
          f' needs {count}.'
        )


class Outcome(NamedTuple):
  """What came of a run.

  Attributes:
    requests, sessions: how many came.
    p50, p99: seconds to the first token, to half a percent.
    worst_p99: the highest p99 of a window.
    mean_ttft, mean_stay: seconds to the first token and to the last.
    hits: fraction of the requests that resumed anything.
    prefix_hits, token_hits: fraction of the tokens of prefixes, and of all
      prompts, that were resumed.
    tokens_per_second: tokens of answers, while sessions begin.
    utilization: fraction of that time in which replicas ran rounds.
    seconds: of the simulation.
    present: mean requests present.
    most_sessions: most sessions that were live at a time.
    moved, lost: requests that went to another replica, and that none took.
    late: requests whose first token came after the SLO; those that none took
      are among them.
    evictions: of all caches.
    events: events of the loop.
  """

  requests: int
  sessions: int
  p50: float
  p99: float
  worst_p99: float
  mean_ttft: float
  mean_stay: float
  hits: float
  prefix_hits: float
  token_hits: float
  tokens_per_second: float
  utilization: float
  seconds: float
  present: float
  most_sessions: int
  moved: int
  lost: int
  late: int
  evictions: int
  events: int


class Trace(NamedTuple):
  """Requests in the order in which they come, arrays [n].

  Attributes:
    seconds: when each comes.
    session, character: numbers from 0 on.
    prefix, prompt, answer: tokens.
    reach: the prompt's first tokens that its session may have cached.
  """

  seconds: np.ndarray
  session: np.ndarray
  character: np.ndarray
  prefix: np.ndarray
  prompt: np.ndarray
  answer: np.ndarray
  reach: np.ndarray


def trace_of(people: people_lib.Trace) -> Trace:
  """Returns the requests of a people's trace from second 0 on.

  A fork begins a session; what it repeats is found again in its prefix alone.
  """
  message = people.halves[people.opening, 0] + people.halves[people.closing, 1]
  prompt, prefix = people.prompt, people.prefix[people.character]
  before = people.previous
  whole = people.history[before] + message[before] + people.answer[before]
  is_whole = (before >= 0) & (people.history == whole)
  reach = np.where(is_whole, prefix + people.history, prefix)
  reach = np.where(people.kind == people_lib.SWIPE, prompt, reach)
  # The first turn's edit has no history: its prefix is all that it repeats.
  rows = slice(people.begin, None)
  return Trace(
    people.seconds[rows],
    people.chat[rows],
    people.character[rows],
    prefix[rows],
    prompt[rows],
    people.answer[rows],
    reach[rows],
  )


@functools.cache
def compile_loop() -> types.ModuleType:
  """Returns the module of the compiled loop; its `run` compiles once.

  Raises:
    compiling.MissingExtra: numba is not installed.
  """
  return compiling.compile_modules(_MODULES)[-1]


def count_entries(sizes: state.Sizes) -> int:
  """Returns the entries for which a replica's pools have room."""
  per_entry = max(1, entries.count_local(sizes, sizes.window, sizes.window))
  fit = sizes.local_pages // per_entry if sizes.window else sizes.pages // 8
  return 2 * fit + 4 * sizes.rows + 16


def simulate(
  setup: Setup,
  flow: sessions_lib.Flow,
  ends: np.ndarray,
  live: int = 2**18,
  begin: float = 0.0,
  window: float = 3600.0,
  loop: types.ModuleType | None = None,
) -> Outcome:
  """Runs a fleet on drawn sessions.

  Args:
    setup: the fleet.
    flow: the sessions.
    ends: `sessions.make_law`.
    live: the most sessions that are live at a time; more are lost.
    begin: the second from which times to the first token count.
    window: seconds of a window.
    loop: the module whose `run` it calls; the compiled one by default.
  """
  setup.check_text(int(flow.high), flow.context)
  sessions = sessions_lib.make_sessions(live, np.asarray(ends, np.float64))
  requests = state.make_requests(live)
  cache = state.make_cache(
    setup.replicas, count_entries(setup.sizes), len(ends), live
  )
  return _run(setup, flow, sessions, requests, cache, begin, window, loop)


def simulate_trace(
  setup: Setup,
  trace: Trace,
  begin: float = 0.0,
  window: float = 3600.0,
  loop: types.ModuleType | None = None,
) -> tuple[Outcome, np.ndarray]:
  """Runs a fleet on a trace; also returns the requests' records (`state`).

  Raises:
    ValueError: pools without room for a text, or a prompt that is all prefix.
  """
  is_short = trace.prefix >= trace.prompt
  if is_short.any():
    place = int(np.argmax(is_short))
    raise ValueError(
      f'prompt={trace.prompt[place]} of request {place}: must be longer than'
      f' its prefix, {trace.prefix[place]}.'
    )
  longest = int(np.max(trace.prompt + trace.answer))
  setup.check_text(int(trace.prefix.max()), longest)
  requests = state.make_requests(len(trace.seconds))
  for name, column in trace._asdict().items():
    requests[name] = column
  sizes = 1 + int(trace.character.max()), 1 + int(trace.session.max())
  cache = state.make_cache(setup.replicas, count_entries(setup.sizes), *sizes)
  sessions = sessions_lib.make_sessions(1, np.ones(1))
  outcome = _run(setup, NO_FLOW, sessions, requests, cache, begin, window, loop)
  return outcome, requests


def _run(setup, flow, sessions, requests, cache, begin, window, loop):
  replicas = state.make_replicas(
    setup.replicas, setup.sizes, cache.entry.shape[1]
  )
  totals = events.Totals(
    np.zeros((48, events.BINS), np.int64), np.zeros(10, np.int64), np.zeros(8)
  )
  faults = sorted(setup.faults)
  fleet = events.Fleet(
    replicas,
    requests,
    cache,
    sessions,
    totals,
    policies.make_table(setup.table),
    np.array(faults, np.float64).reshape(-1, 4),
    np.zeros(setup.sizes.rows, np.int64),
  )
  loop = loop or compile_loop()
  given = fleet
  if loop is events:
    given = fleet._replace(
      replicas=state.view_fields(replicas),
      requests=state.view_fields(requests),
      cache=cache._replace(entry=state.view_fields(cache.entry)),
    )
  count = loop.run(
    state.Law(*map(float, setup.law)),
    np.array(setup.shapes, np.int64),
    setup.sizes,
    flow,
    policies.NAMES.index(setup.policy),
    given,
    float(begin),
    float(window),
  )
  return _outcome(fleet, setup, count)


def quantile(counts: np.ndarray, part: float) -> float:
  """Returns the seconds below which `part` of the counted requests are."""
  total = counts.sum()
  if not total:
    return float('nan')
  return float(_seconds(np.searchsorted(np.cumsum(counts), part * total)))


def _seconds(place: Any) -> Any:
  """Returns the seconds that requests of a bin are counted with."""
  return events.LEAST * np.exp(events.WIDTH * (place + 0.5))


def _outcome(fleet: events.Fleet, setup: Setup, count: int) -> Outcome:
  totals, replicas = fleet.totals, fleet.replicas
  counts, sums, late = totals.counts, totals.sums, totals.late.sum(0)
  seconds = max(float(sums[events.SINCE]), 1e-9)
  counted, ended = max(int(late.sum()), 1), max(int(counts[9]), 1)
  is_late = _seconds(np.arange(events.BINS)) > setup.slo
  windows = [quantile(row, 0.99) for row in totals.late if row.sum() >= 1000]
  loaded, busy, answered = map(float, sums[events.LAST :])
  if not loaded:
    loaded, busy = seconds, float(replicas['busy'].sum())
    answered = float(counts[events.ANSWER])
  return Outcome(
    requests=int(counts[events.REQUESTS]),
    sessions=int(fleet.sessions.counts[0]),
    p50=quantile(late, 0.5),
    p99=quantile(late, 0.99),
    worst_p99=max(windows, default=quantile(late, 0.99)),
    mean_ttft=float(sums[events.FIRST] / counted),
    mean_stay=float(sums[events.STAY] / ended),
    hits=float(counts[events.HITS] / ended),
    prefix_hits=float(
      counts[events.PREFIX_RESUMED] / max(int(counts[events.PREFIX]), 1)
    ),
    token_hits=float(
      counts[events.RESUMED] / max(int(counts[events.PROMPT]), 1)
    ),
    tokens_per_second=answered / loaded,
    utilization=busy / (loaded * setup.replicas),
    seconds=seconds,
    present=float(sums[events.AREA] / seconds),
    most_sessions=int(fleet.sessions.counts[2]),
    moved=int(counts[events.MOVED]),
    lost=int(counts[events.LOST]),
    late=int(late[is_late].sum() + counts[events.LOST]),
    evictions=int(replicas['evictions'].sum()),
    events=int(count),
  )
