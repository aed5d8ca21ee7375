"""Counts one server's events for Prometheus; all names begin with kaiju_.

    measured = Metrics(worker.read_engine)
    measured.prompt_tokens.inc(900)

Events are counted where they happen. The engine's state and its own counters
are read at each scrape, as a `Reading`, which must be taken between two rounds
of the engine, in its thread.
"""

import collections
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import functools
from typing import NamedTuple

import prometheus_client
from prometheus_client import core
from prometheus_client import registry as registry_lib
from starlette import applications
from starlette import requests
from starlette import responses
from starlette import routing

from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.http import loopback

# Seconds. Targets for the first token: 0.8 in the median, 2.5 at p99.
_FIRST = (0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.2, 1.8, 2.5, 5, 10, 30)
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 1, 5)
_QUEUED = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
# Tokens per second, close together around people's reading, 8 to 30.
_RATES = (1, 2, 4, 6, 8, 10, 12, 15, 20, 25, 30, 40, 60, 100, 200, 500, 1000)
# Labels that begin at zero: Prometheus sees no increase in a series whose first
# sample is 1.
_TIERS = ('adult', 'minor')
_STAGED = ['stage', 'tier']
_RATINGS = ('good', 'bad', 'wrongly_refused', 'withdrawn')
_FORMAT = 'text/plain; version=0.0.4; charset=utf-8'


class Reading(NamedTuple):
  """The state of an engine at one moment."""

  # The number of pages by (kind, state); 'row' pages are held by at least one
  # open row, 'point' pages by points alone, 'free' ones by none.
  pages: Mapping[tuple[str, str], int]
  points: int  # The points in the cache, at which prompts resume.
  evictions: int
  waiting: int
  running: int
  wait: float  # The seconds that a new sequence would wait.


class ReplicaReading(NamedTuple):
  """What a router knows of a replica at one moment."""

  name: str
  build: str  # A digest of its weights, calibration and head.
  share: float  # To which part of new conversations it is open.
  is_alive: bool
  is_closing: bool  # Whether it drains: it takes nothing any more.
  load: float  # As policies count it.
  running: int  # Sequences that have begun or wait.


class FleetReading(NamedTuple):
  """The state of a router at one moment."""

  replicas: Sequence[ReplicaReading]
  sessions: int  # The sessions that its table knows.
  moves: int  # The times that a session continued at another replica.
  # Whether the table is shared with other routers now; None where it is to be
  # this router's own.
  shared: bool | None = None
  losses: int = 0  # The times that the shared table was lost.


def reading(engine: engine_lib.Engine) -> Reading:
  """Returns an engine's state; call it in the engine's thread."""
  account, load = engine.decoder.account, engine.load()
  pages = {}
  for kind in account.pages.kinds:
    rows = {
      page
      for row in account.open_rows
      for page in account.pages_of(row)[kind].values()
    }
    pages[kind, 'free'] = account.pages.free(kind)
    pages[kind, 'row'] = len(rows)
    pages[kind, 'point'] = account.pages.count_held(kind) - len(rows)
  return Reading(
    pages,
    load.points,
    account.tree.evicted,
    load.waiting,
    load.running,
    load.wait,
  )


def add_up(found: Sequence[Reading]) -> Reading:
  """Returns the readings of several engines as one; its wait is the least."""
  pages: collections.Counter[tuple[str, str]] = collections.Counter()
  for one in found:
    pages.update(one.pages)
  sums = (
    sum(getattr(one, name) for one in found)
    for name in ('points', 'evictions', 'waiting', 'running')
  )
  return Reading(pages, *sums, min(one.wait for one in found))


class Metrics:
  """The metrics of one server."""

  def __init__(self, read: Callable[[], Reading | None]):
    """Makes metrics in a registry of their own.

    Args:
      read: returns the engine's state, from any thread and quickly; None while
        no engine runs.
    """
    self._registry = prometheus_client.CollectorRegistry()
    own = {'namespace': 'kaiju', 'registry': self._registry}
    counter = functools.partial(prometheus_client.Counter, **own)
    histogram = functools.partial(prometheus_client.Histogram, **own)
    self.ttft: prometheus_client.Histogram = histogram(
      'ttft_seconds', 'From a request to its first token.', buckets=_FIRST
    )
    self.itl: prometheus_client.Histogram = histogram(
      'itl_seconds', 'Between two tokens.', buckets=_BETWEEN
    )
    self.queue: prometheus_client.Histogram = histogram(
      'queue_seconds', 'From a request to its row.', buckets=_QUEUED
    )
    # The tokens per second of each stream (`TokenStream.rate`).
    self.rate: prometheus_client.Histogram = histogram(
      'stream_tokens_per_second',
      "A stream's tokens after its first, per second since.",
      buckets=_RATES,
    )
    self.prompt_tokens: prometheus_client.Counter = counter(
      'prompt_tokens', 'Tokens of prompts.'
    )
    self.cached_tokens: prometheus_client.Counter = counter(
      'cached_tokens', 'Tokens of prompts that were in the cache.'
    )
    self.rejected: prometheus_client.Counter = counter(
      'rejected', 'Requests that were not begun.', ['reason']
    )
    # The ratings of replies, by kind; 'withdrawn' for one that was taken back.
    # A rating that is sent again counts once.
    self.ratings: prometheus_client.Counter = counter(
      'ratings', 'What owners said of replies.', ['kind']
    )
    self.requests: prometheus_client.Counter = counter(
      'http_requests',
      'Answers, by route and status.',
      ['method', 'route', 'status'],
    )
    self._add_safety(counter)
    self._add_drift(functools.partial(prometheus_client.Gauge, **own))
    # The answers under /v1/ that the server failed to give: 'status' for one of
    # 500 or above, 'stream' for an error after the answer had begun.
    self.failed: prometheus_client.Counter = counter(
      'failed_answers', 'Answers that the server failed to give.', ['kind']
    )
    self.store_failures: prometheus_client.Counter = counter(
      'store_failures', 'Calls that the store did not answer.'
    )
    # 1 while requests are taken, as /readyz says, the store left out; the
    # server's context sets the function that answers.
    self.ready: prometheus_client.Gauge = prometheus_client.Gauge(
      'ready', 'Whether requests are taken.', **own
    )
    # The operators' commands, by operation and result: 'done', 'refused' or
    # 'failed'.
    self.operations: prometheus_client.Counter = counter(
      'operations', "Operators' commands.", ['operation', 'result']
    )
    for kind in 'status', 'stream':
      self.failed.labels(kind)
    self.rejected.labels('busy')
    for kind in _RATINGS:
      self.ratings.labels(kind)
    prometheus_client.ProcessCollector('kaiju', registry=self._registry)
    self._registry.register(_Scraped(lambda: _engine_metrics(read())))

  def _add_safety(self, counter: Callable[..., prometheus_client.Counter]):
    """Makes the counters of safety, with all their labels at zero."""
    # 'gate' for users' texts, 'head' for prompts with their replies.
    self.judged: prometheus_client.Counter = counter(
      'judged', 'Texts that safety read.', _STAGED
    )
    self.gate_failures: prometheus_client.Counter = counter(
      'gate_failures', 'Texts that the gate could not judge.', ['tier']
    )
    # Stages as in `moderation.Verdict`.
    self.refusals: prometheus_client.Counter = counter(
      'refusals', 'Texts that safety stopped.', _STAGED
    )
    for tier in _TIERS:
      self.gate_failures.labels(tier)
      for stage in 'gate', 'head':
        self.judged.labels(stage, tier)
      for stage in 'gate', 'prompt', 'head':
        self.refusals.labels(stage, tier)

  def _add_drift(self, gauge: Callable[..., prometheus_client.Gauge]):
    # The divergence of the last window, of 'tokens' and of 'codes'; without
    # series where nothing watches (`drift/watch.py`).
    self.drift_kl: prometheus_client.Gauge = gauge(
      'drift_kl',
      'How far the last window of traffic is from the first ones, nats.',
      ['what'],
    )
    # 1 while the guard has frozen calibration.
    self.drift_frozen: prometheus_client.Gauge = gauge(
      'drift_frozen', 'Whether drift has frozen calibration.'
    )

  def add_fleet(self, read: Callable[[], FleetReading]) -> None:
    """Adds the metrics of a router, read at each scrape, from any thread."""
    self._registry.register(_Scraped(lambda: _fleet_metrics(read())))

  def show_drift(
    self, tokens: float | None, codes: float | None, is_frozen: bool
  ) -> None:
    """Takes the state of what watches traffic; None before it knows."""
    for what, value in (('tokens', tokens), ('codes', codes)):
      if value is not None:
        self.drift_kl.labels(what).set(value)
    self.drift_frozen.set(is_frozen)

  def text(self) -> bytes:
    """Returns all metrics in Prometheus's text format."""
    return prometheus_client.generate_latest(self._registry)

  def answer(self, request: requests.Request) -> responses.Response:
    """Answers /metrics; may block, so call it in a thread."""
    return responses.Response(self.text(), headers={'Content-Type': _FORMAT})

  def app(self, *routes: routing.Route) -> applications.Starlette:
    """Returns an application that answers /metrics only to this machine.

    Args:
      *routes: more of its routes.
    """

    def answer(request: requests.Request) -> responses.Response:
      loopback.check(request)
      return self.answer(request)

    return applications.Starlette(
      routes=[routing.Route('/metrics', answer), *routes],
      exception_handlers=errors.HANDLERS,
    )


class _Scraped(registry_lib.Collector):
  """Metrics that are read at each scrape, and not when they are registered."""

  def __init__(self, read: Callable[[], Iterator[core.Metric]]):
    self._read = read

  def describe(self) -> Iterator[core.Metric]:
    return iter(())

  def collect(self) -> Iterator[core.Metric]:
    return self._read()


def _engine_metrics(found: Reading | None) -> Iterator[core.Metric]:
  """Yields the gauges and counters of a reading, if there is one."""
  if found is None:
    return
  gauge, counter = core.GaugeMetricFamily, core.CounterMetricFamily
  pages = gauge('kaiju_pages', 'Pages of the cache.', labels=['kind', 'state'])
  for (kind, state), count in found.pages.items():
    pages.add_metric([kind, state], count)
  yield pages
  yield gauge(
    'kaiju_points', 'Texts that prompts can go on from.', found.points
  )
  yield counter('kaiju_evictions', 'Points that were evicted.', found.evictions)
  yield gauge('kaiju_waiting', 'Sequences without a row.', found.waiting)
  yield gauge('kaiju_running', 'Sequences with a row.', found.running)
  yield gauge(
    'kaiju_expected_wait_seconds', 'What a new sequence would wait.', found.wait
  )


def _fleet_metrics(found: FleetReading) -> Iterator[core.Metric]:
  """Yields the gauges and counters of a router's reading."""
  gauge, counter = core.GaugeMetricFamily, core.CounterMetricFamily
  for name, text, attribute in (
    ('up', 'Whether the replica answers.', 'is_alive'),
    ('share', 'The part of new conversations that it takes.', 'share'),
    ('load', 'Its prompt tokens and requests, as policies count.', 'load'),
    ('running', 'Its sequences.', 'running'),
  ):
    family = gauge(f'kaiju_replica_{name}', text, labels=['replica', 'build'])
    for one in found.replicas:
      labels = [one.name, one.build[:12]]
      family.add_metric(labels, getattr(one, attribute))
    yield family
  yield gauge(
    'kaiju_affinity_sessions', "Sessions in the router's table.", found.sessions
  )
  yield counter(
    'kaiju_affinity_moves',
    'Sessions that went on at another replica.',
    found.moves,
  )
  if found.shared is not None:
    yield gauge(
      'kaiju_affinity_shared',
      'Whether the table is shared with other routers.',
      found.shared,
    )
    yield counter(
      'kaiju_affinity_losses',
      'Times that the shared table was lost.',
      found.losses,
    )
