"""Debian's promtool, and series as a server would export them."""

from collections.abc import Sequence
import importlib.resources
import json
import re
import shutil
import subprocess
from typing import NamedTuple

import pytest

_FOLDER = importlib.resources.files('kaiju_jax.serving') / 'operations'
ALERTS = _FOLDER / 'alerts.yml'
DASHBOARD = _FOLDER / 'dashboard.json'
PROGRAM = shutil.which('promtool')
needs_promtool = pytest.mark.skipif(
  PROGRAM is None,
  reason='no promtool here: apt-get install prometheus',
)
_LABELS = 'job="kaiju",instance="a:8000"'


class Load(NamedTuple):
  """A server's events per minute.

  Attributes:
    requests: answers of /v1/chat/completions.
    failed, busy: the shares of them that fail, or find it busy.
    ttft: the shares of their times to the first token, by bucket.
    rates: the shares of their tokens per second, by bucket.
    cached: the share of 900 prompt tokens each that is in the cache.
    gate, head: the shares that each stage refuses.
    wrong: refusals per minute that people call wrong.
    store_failures, gate_failures: per minute.
    up, ready: the gauges; None where nothing is scraped.
    start: the process's start time.
    replica: whether one of two replicas is up; None where it was removed.
    losses: of the shared table, per minute.
    shared: whether the table is.
    drift: whether drift has frozen calibration; None where it is not exported.
  """

  requests: float = 60.0
  failed: float = 0.0003
  busy: float = 0.0
  ttft: dict[str, float] = {'0.2': 0.9, '1.2': 0.095, '5.0': 0.005}
  rates: dict[str, float] = {'10.0': 0.04, '25.0': 0.7, '100.0': 0.26}
  cached: float = 0.8
  gate: float = 0.01
  head: float = 0.005
  wrong: float = 0.0
  store_failures: float = 0.0
  gate_failures: float = 0.0
  up: int = 1
  ready: int | None = 1
  start: float = 1000.0
  replica: int | None = 1
  losses: float = 0.0
  shared: int = 1
  drift: int | None = 0


def _counters(load: Load, bounds: dict[str, Sequence[str]]) -> dict[str, float]:
  """Returns the counters' increases per minute."""
  count = load.requests
  found = {
    'http_requests_total{method="POST",route="/v1/chat/completions"'
    ',status="200"}': count * (1 - load.failed - load.busy),
    'http_requests_total{method="POST",route="/v1/chat/completions"'
    ',status="500"}': count * load.failed,
    'http_requests_total{method="POST",route="/v1/chat/completions"'
    ',status="429"}': count * load.busy,
    'failed_answers_total{kind="status"}': count * load.failed,
    'failed_answers_total{kind="stream"}': 0.0,
    'rejected_total{reason="busy"}': count * load.busy,
    'prompt_tokens_total': count * 900,
    'cached_tokens_total': count * 900 * load.cached,
    'ratings_total{kind="wrongly_refused"}': load.wrong,
    'store_failures_total': load.store_failures,
    'affinity_losses_total': load.losses,
    'ttft_seconds_count': count,
    'stream_tokens_per_second_count': count,
  }
  for tier in 'adult', 'minor':
    found |= {
      f'judged_total{{stage="gate",tier="{tier}"}}': count / 2,
      f'judged_total{{stage="head",tier="{tier}"}}': count / 2,
      f'refusals_total{{stage="gate",tier="{tier}"}}': count * load.gate / 2,
      f'refusals_total{{stage="prompt",tier="{tier}"}}': 0.0,
      f'refusals_total{{stage="head",tier="{tier}"}}': count * load.head / 2,
      f'gate_failures_total{{tier="{tier}"}}': load.gate_failures,
    }
  for name, shares in (
    ('ttft_seconds', load.ttft),
    ('stream_tokens_per_second', load.rates),
  ):
    assert shares.keys() <= set(bounds[name])
    for bound in bounds[name]:
      below = [x for le, x in shares.items() if float(le) <= float(bound)]
      found[f'{name}_bucket{{le="{bound}"}}'] = count * sum(below)
  return found


def _gauges(load: Load) -> dict[str, float | None]:
  return {
    'ready': load.ready,
    'process_start_time_seconds': load.start,
    'replica_up{replica="one",build="b"}': 1,
    'replica_up{replica="two",build="b"}': load.replica,
    'affinity_shared': load.shared,
    'drift_frozen': load.drift,
  }


def series(
  spans: Sequence[tuple[int, Load]], bounds: dict[str, Sequence[str]]
) -> list[dict[str, str]]:
  """Returns promtool's input for minutes of loads, one after the other.

  Args:
    spans: minutes, and the load in each. Counters begin anew where the start
      time changes.
    bounds: by histogram, its buckets' bounds as it exports them.
  """
  values: dict[str, list[str]] = {}
  for name in ('up', *_gauges(Load())):
    values[name] = []
  counts: dict[str, float] = {}
  start = None
  for minutes, load in spans:
    gone = f'_x{minutes}'
    values['up'].append(f'{load.up}x{minutes - 1}')
    for name, value in _gauges(load).items():
      is_there = load.up and value is not None
      values[name].append(f'{value}x{minutes - 1}' if is_there else gone)
    if load.start != start:
      counts, start = {}, load.start
    for name, more in _counters(load, bounds).items():
      # Sums are exact, or promtool's could lie above ours: a counter's reset.
      more = round(more * 2**16) / 2**16
      count = counts.get(name, 0.0) + more
      at = values.setdefault(name, [])
      at.append(f'{count}+{more}x{minutes - 1}' if load.up else gone)
      counts[name] = count + more * (minutes - 1)
  found = []
  for name, texts in values.items():
    name, _, labels = name.partition('{')
    labels = ','.join(x for x in (labels.rstrip('}'), _LABELS) if x)
    name = name if name == 'up' else f'kaiju_{name}'
    found.append({'series': f'{name}{{{labels}}}', 'values': ' '.join(texts)})
  return found


def queries(dashboard) -> list[str]:
  """Returns a dashboard's queries, with Grafana's variables replaced."""
  return [
    target['expr'].replace('$__rate_interval', '5m').replace('$job', '.+')
    for panel in dashboard['panels']
    for target in panel['targets']
  ]


def selectors(expression: str) -> list[tuple[str, list[tuple[str, ...]]]]:
  """Returns an expression's metrics, with (label, operator, value) of each."""
  return [
    (name, re.findall(r'(\w+)(=~|!=|!~|=)"([^"]*)"', labels))
    for name, labels in re.findall(
      r'\b(kaiju_\w+|up\b)(\{[^}]*\})?', expression
    )
  ]


def selects(selector, samples) -> bool:
  """Returns whether a selector finds a sample, whatever its job is."""
  name, labels = selector
  for one in samples:
    if one.name == name and all(
      re.fullmatch(value, one.labels.get(label, ''))
      for label, operator, value in labels
      if label != 'job'
    ):
      return True
  return False


def run(*arguments: str) -> subprocess.CompletedProcess:
  """Runs promtool; returns what it said, and its exit status."""
  return subprocess.run(
    [PROGRAM, *map(str, arguments)],
    text=True,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    timeout=200,
  )


def check_alerts(folder, rules, spans, bounds, expected, interval='1m') -> None:
  """Asserts which alerts fire.

  Args:
    folder: for the file of the test.
    rules: the path of the rules.
    spans, bounds: see `series`.
    expected: by minute, the names of the alerts that fire then; by a pair of
      minutes, of those that fire at any time between the two.
    interval: between two evaluations of the rules.
  """
  looks = []
  for when, names in expected.items():
    expression, last = 'ALERTS{alertstate="firing"}', when
    if isinstance(when, tuple):
      first, last = when
      expression = f'last_over_time({expression}[{last - first}m])'
    looks.append(
      {
        'expr': f'max by (alertname) ({expression})',
        'eval_time': f'{last}m',
        'exp_samples': [
          {'labels': f'{{alertname="{name}"}}', 'value': 1} for name in names
        ],
      }
    )
  test = {
    'rule_files': [str(rules)],
    'evaluation_interval': interval,
    'tests': [
      {
        'interval': '1m',
        'input_series': series(spans, bounds),
        'promql_expr_test': looks,
      }
    ],
  }
  path = folder / 'alerts_test.yml'
  path.write_text(json.dumps(test))
  done = run('test', 'rules', path)
  assert done.returncode == 0, done.stdout
