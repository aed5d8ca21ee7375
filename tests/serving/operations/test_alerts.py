"""Alerts: each fires in its time, and a quiet week is silent."""

import re

from prometheus_client import parser
import pytest
import yaml

from kaiju_jax.serving.http import metrics
from tests import pages
from tests.serving.operations import prometheus

DOWN, NOT_READY = 'KaijuDown', 'KaijuNotReady'
RESTARTS, STORE = 'KaijuRestarts', 'KaijuStoreFails'
FAST, SLOW = 'KaijuErrorsBurnFast', 'KaijuErrorsBurnSlow'
REFUSALS, REFUSALS_FAST = 'KaijuRefusals', 'KaijuRefusalsFast'
QUIET = prometheus.Load()
NIGHT = QUIET._replace(requests=0)
# Where a share of few requests would be above any threshold.
LONELY = QUIET._replace(
  requests=0.1, ttft={'5.0': 1.0}, rates={'4.0': 1.0}, cached=0.0, gate=0.3
)


def rules():
  read = yaml.safe_load(prometheus.ALERTS.read_text())
  return [rule for group in read['groups'] for rule in group['rules']]


@pytest.fixture(scope='module')
def bounds():
  """By histogram, its buckets' bounds, as a server exports them."""
  text = metrics.Metrics(lambda: None).text().decode()
  found = {}
  for family in parser.text_string_to_metric_families(text):
    if family.type == 'histogram':
      found[family.name.removeprefix('kaiju_')] = [
        one.labels['le'] for one in family.samples if 'le' in one.labels
      ]
  return found


def test_each_alert_has_a_severity_a_summary_and_a_section():
  page = pages.pages()['docs/alerts.md']
  names = {rule['alert'] for rule in rules()}
  for rule in rules():
    name, notes = rule['alert'], rule['annotations']
    assert rule['labels']['severity'] in ('page', 'ticket'), name
    assert 'for' in rule and notes['summary'].endswith('.'), name
    assert notes['runbook'] == f'docs/alerts.md#{name.lower()}'
  sections = set(re.findall(r'^### (Kaiju\w+)$', page, re.M))
  assert sections == names
  for section in re.split(r'^### ', page, flags=re.M)[1:]:
    for word in '**Means.**', '**Look.**', '**Do.**':
      assert word in section, section.splitlines()[0]


def test_each_alert_is_broken_by_a_test():
  broken = {name for names in map(fired, BREAKS.values()) for name in names}
  assert broken == {rule['alert'] for rule in rules()}


def fired(case):
  return case[2]


# By name: the load, the minutes within which the alerts fire, and these alerts.
BREAKS = {
  'down': (QUIET._replace(up=0), 3, [DOWN]),
  'not ready': (QUIET._replace(ready=0), 6, [NOT_READY]),
  'store': (QUIET._replace(store_failures=2), 8, [STORE]),
  'replica down': (QUIET._replace(replica=0), 2, ['KaijuReplicaDown']),
  'table lost': (QUIET._replace(losses=1), 3, ['KaijuTableLost']),
  'table apart': (QUIET._replace(shared=0), 6, ['KaijuTableApart']),
  'all fail': (QUIET._replace(failed=1.0), 4, [FAST]),
  'one in 20 fails': (QUIET._replace(failed=0.05), 21, [FAST]),
  'one in 100 fails': (QUIET._replace(failed=0.01), 4 * 60, [SLOW]),
  'busy': (QUIET._replace(busy=0.2), 14, ['KaijuBusy']),
  'slow first tokens': (
    QUIET._replace(ttft={'0.2': 0.4, '1.2': 0.6}),
    20,
    ['KaijuFirstTokenSlow'],
  ),
  'late first tokens': (
    QUIET._replace(ttft={'0.2': 0.98, '5.0': 0.02}),
    20,
    ['KaijuFirstTokenLate'],
  ),
  'slow streams': (
    QUIET._replace(rates={'4.0': 0.1, '25.0': 0.9}),
    20,
    ['KaijuStreamsSlow'],
  ),
  'few hits': (QUIET._replace(cached=0.2), 28, ['KaijuFewHits']),
  'gate refuses, soon': (QUIET._replace(gate=0.1), 5, [REFUSALS_FAST]),
  'head refuses, soon': (QUIET._replace(head=0.1), 5, [REFUSALS_FAST]),
  'gate refuses': (
    QUIET._replace(gate=0.1),
    45,
    [REFUSALS, REFUSALS_FAST],
  ),
  'head refuses': (
    QUIET._replace(head=0.1),
    45,
    [REFUSALS, REFUSALS_FAST],
  ),
  'gate refuses few': (
    QUIET._replace(requests=15, gate=0.1),
    70,
    [REFUSALS],
  ),
  'wrongly refused': (
    QUIET._replace(gate=0.04, wrong=2.0),
    2 * 60,
    ['KaijuWronglyRefused'],
  ),
  'gate fails': (QUIET._replace(gate_failures=1), 2, ['KaijuGateFails']),
  'drift': (QUIET._replace(drift=1), 1, ['KaijuDrift']),
  'restarts': (None, 17, [RESTARTS]),
}


@prometheus.needs_promtool
@pytest.mark.slow
@pytest.mark.parametrize('name', BREAKS)
def test_an_alert_fires_in_its_time_and_no_other_does(name, tmp_path, bounds):
  load, minutes, alerts = BREAKS[name]
  before = 2 * 60
  if load is None:
    starts = [QUIET._replace(start=2000.0 + n) for n in range(4)]
    spans = [(before, QUIET), *((5, one) for one in starts)]
  else:
    spans = [(before, QUIET), (minutes + 10, load)]
  expected = {(0, before - 1): [], before + minutes: alerts}
  prometheus.check_alerts(tmp_path, prometheus.ALERTS, spans, bounds, expected)


def week():
  """Returns seven days, with nights without anybody and bad minutes."""
  day = [
    (6 * 60, NIGHT),
    (2 * 60, LONELY),
    (8 * 60, QUIET),
    (5 * 60, QUIET._replace(requests=400)),
    (3 * 60, NIGHT._replace(requests=2)),
  ]
  # A restart at noon of the third day: counters begin anew, the cache is cold.
  new = 90_000.0
  restart = [
    *day[:2],
    (4 * 60, QUIET),
    (1, QUIET._replace(ready=0)),
    (1, QUIET._replace(up=0)),
    (12, QUIET._replace(start=new, cached=0.05)),
    (3 * 60 + 46, QUIET._replace(start=new)),
    *((minutes, load._replace(start=new)) for minutes, load in day[3:]),
  ]
  day_after = [(minutes, load._replace(start=new)) for minutes, load in day]
  moments = [
    {'store_failures': 1, 'replica': None},
    {'wrong': 3.0},
    {'failed': 0.05, 'shared': 0},
    {'busy': 0.1},
  ]
  spans = [*day, *day, *restart]
  for moment in moments:
    *morning, (minutes, load), last, night = day_after
    spans += [
      *morning,
      (1, load._replace(**moment)),
      (minutes - 1, load),
      last,
      night,
    ]
  return spans


@prometheus.needs_promtool
@pytest.mark.slow
def test_a_quiet_week_is_silent(tmp_path, bounds):
  spans = week()
  minutes = sum(span for span, _ in spans)
  assert minutes == 7 * 24 * 60
  # Each look takes long: the windows of the rules hold hours of samples.
  prometheus.check_alerts(
    tmp_path, prometheus.ALERTS, spans, bounds, {(0, minutes): []}, '3m'
  )


@prometheus.needs_promtool
@pytest.mark.slow
def test_prometheus_reads_the_rules():
  done = prometheus.run('check', 'rules', prometheus.ALERTS)
  assert done.returncode == 0, done.stdout
