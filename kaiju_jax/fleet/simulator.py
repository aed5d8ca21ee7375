"""Simulates a fleet: traffic, replicas and a routing policy in, an outcome out.

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
from kaiju_jax.fleet import rounds
from kaiju_jax.fleet import sessions as sessions_lib
from kaiju_jax.fleet import state
from kaiju_jax.serving.routing import policies

_MODULES = policies, entries, sessions_lib, rounds, events
# No sessions: the requests are a trace.
NO_FLOW = sessions_lib.Flow(0, 0, *[1.0] * 10, 1, 1, 1.0, 1.0)


@dataclasses.dataclass(frozen=True)
class Setup:
  """A fleet.

  Raises:
    ValueError: a fleet that cannot be; names the field, its value and what
      would be right.
  """

  replicas: int  # How many there are, those that are added later included.
  policy: str  # One of `policies.NAMES`.
  law: state.Law  # Seconds of a round.
  sizes: state.Sizes  # Of a replica.
  shapes: Sequence[tuple[int, int]] = ((1, 256),)  # (rows, tokens) of a chunk.
  # (second, kind, replica, value), kinds as in `events`.
  faults: Sequence[tuple[float, int, int, float]] = ()
  table: int = 2**20  # Sessions that the router's table holds.
  # Seconds to the first token after which a request counts as late.
  slo: float = np.inf

  def __post_init__(self) -> None:
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
  """The result of a run."""

  requests: int  # How many came.
  sessions: int
  p50: float  # Seconds to the first token, to half a percent.
  p99: float
  worst_p99: float  # The highest p99 of a window.
  mean_ttft: float  # Seconds to the first token.
  mean_stay: float  # Seconds to the last token.
  hits: float  # Fraction of the requests that resumed anything.
  prefix_hits: float  # Fraction of the prefixes' tokens that were resumed.
  token_hits: float  # The same of all prompts' tokens.
  tokens_per_second: float  # Tokens of answers, while sessions begin.
  utilization: float  # Fraction of that time in which replicas ran rounds.
  seconds: float  # Of the simulation.
  present: float  # Mean requests present.
  most_sessions: int  # Most sessions that were live at a time.
  moved: int  # Requests that went to another replica.
  lost: int  # Requests that no replica took.
  late: int  # Requests whose first token came after the SLO, or never.
  evictions: int  # Of all caches.
  events: int  # Of the loop.


class Trace(NamedTuple):
  """Requests in the order in which they come, arrays [n]."""

  seconds: np.ndarray  # When each comes.
  session: np.ndarray  # Numbers from 0 on, as the characters'.
  character: np.ndarray
  prefix: np.ndarray  # Tokens, as those of prompts and answers.
  prompt: np.ndarray
  answer: np.ndarray
  # The prompt's first tokens that its session may have cached.
  reusable: np.ndarray


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
  loop: types.ModuleType | None = None,
) -> Outcome:
  """Runs a fleet on drawn sessions.

  Args:
    ends: `sessions.make_law`.
    live: the most sessions that are live at a time; more are lost.
    begin: the second from which times to the first token count.
    loop: the module whose `run` it calls; the compiled one by default.
  """
  setup.check_text(int(flow.high), flow.context)
  sessions = sessions_lib.make_sessions(live, np.asarray(ends, np.float64))
  requests = state.make_requests(live)
  cache = state.make_cache(
    setup.replicas, count_entries(setup.sizes), len(ends), live
  )
  return _run(setup, flow, sessions, requests, cache, begin, loop)


def simulate_trace(
  setup: Setup,
  trace: Trace,
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
  outcome = _run(setup, NO_FLOW, sessions, requests, cache, 0.0, loop)
  return outcome, requests


def _run(setup, flow, sessions, requests, cache, begin, loop):
  world = state.World(
    state.Law(*map(float, setup.law)),
    np.array(setup.shapes, np.int64),
    setup.sizes,
    state.make_replicas(setup.replicas, setup.sizes, cache.entry.shape[1]),
    requests,
    cache,
  )
  totals = events.Totals(
    np.zeros((48, events.BINS), np.int64), np.zeros(10, np.int64), np.zeros(8)
  )
  loop = loop or compile_loop()
  count = loop.run(
    events.Fleet(
      state.view_world(world) if loop is events else world,
      flow,
      sessions,
      totals,
      policies.NAMES.index(setup.policy),
      policies.make_table(setup.table),
      np.array(sorted(setup.faults), np.float64).reshape(-1, 4),
      np.zeros(setup.sizes.rows, np.int64),
      float(begin),
    )
  )
  return _outcome(totals, world.replicas, sessions.counts, setup, count)


def quantile(counts: np.ndarray, part: float) -> float:
  """Returns the seconds below which `part` of the counted requests are."""
  total = counts.sum()
  if not total:
    return float('nan')
  return float(_seconds(np.searchsorted(np.cumsum(counts), part * total)))


def _seconds(place: Any) -> Any:
  """Returns the seconds that requests of a bin are counted with."""
  return events.LEAST * np.exp(events.WIDTH * (place + 0.5))


def _outcome(totals, replicas, sessions, setup: Setup, count: int) -> Outcome:
  counts, sums, late = totals.counts, totals.sums, totals.late.sum(0)
  seconds = max(float(sums[events.SINCE]), 1e-9)
  counted, ended = max(int(late.sum()), 1), max(int(counts[events.ENDED]), 1)
  is_late = _seconds(np.arange(events.BINS)) > setup.slo
  windows = [quantile(row, 0.99) for row in totals.late if row.sum() >= 1000]
  loaded, busy, answered = map(float, sums[events.LAST :])
  if not loaded:
    loaded, busy = seconds, float(replicas['busy_seconds'].sum())
    answered = float(counts[events.ANSWER])
  return Outcome(
    requests=int(counts[events.REQUESTS]),
    sessions=int(sessions[0]),
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
    most_sessions=int(sessions[2]),
    moved=int(counts[events.MOVED]),
    lost=int(counts[events.LOST]),
    late=int(late[is_late].sum() + counts[events.LOST]),
    evictions=int(replicas['evictions'].sum()),
    events=int(count),
  )
