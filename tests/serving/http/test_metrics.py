"""Metrics: the names, what they count, and that they stay few."""

import types

from prometheus_client import parser
import pytest
from starlette import testclient

from kaiju_jax.decoding.engine import compiled
from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.serving.http import edge
from kaiju_jax.serving.http import metrics
from kaiju_jax.serving.routes import submit
from tests.decoding import fake_device
from tests.serving import trivial
from tests.serving.http import exposed

_READING = metrics.Reading(
  {('global', 'free'): 3, ('local', 'point'): 4}, 5, 6, 7, 8, 0.5
)
_NAMES = {
  'histogram': 'ttft_seconds itl_seconds queue_seconds'
  ' stream_tokens_per_second',
  'counter': 'prompt_tokens cached_tokens rejected judged gate_failures'
  ' refusals failed_answers store_failures operations ratings http_requests'
  ' evictions',
  'gauge': 'drift_kl drift_frozen ready pages points waiting running'
  ' expected_wait_seconds',
}


def told(measured):
  """Returns a function that reads a sample; the name is without `kaiju_`."""
  found = exposed.samples(measured)

  def read(name, **labels):
    return found.get((f'kaiju_{name}', tuple(sorted(labels.items()))))

  return read


def test_names_and_types_are_those_that_dashboards_know():
  measured = metrics.Metrics(lambda: _READING)
  families = parser.text_string_to_metric_families(measured.text().decode())
  found = {x.name: x.type for x in families if not x.name.endswith('_created')}
  process = {x for x in found if x.startswith('kaiju_process_')}
  assert 'kaiju_process_start_time_seconds' in process
  assert {x: found[x] for x in found.keys() - process} == {
    f'kaiju_{name}': kind
    for kind, names in _NAMES.items()
    for name in names.split()
  }


def test_a_router_tells_of_its_replicas():
  measured = metrics.Metrics(lambda: None)
  replicas = [
    metrics.ReplicaReading('one', 'b1', 1.0, True, False, 30.0, 2),
    metrics.ReplicaReading('two', 'b2', 0.1, False, False, 0.0, 0),
  ]
  read = [metrics.FleetReading(replicas, 5, 3, False, 2)]
  measured.add_fleet(lambda: read[0])
  one, two = (
    {'build': x.build, 'replica': x.name} for x in (replicas[0], replicas[1])
  )
  tell = told(measured)
  assert (tell('replica_up', **one), tell('replica_up', **two)) == (1, 0)
  assert tell('replica_share', **two) == 0.1
  assert tell('replica_load', **one) == 30
  assert tell('replica_running', **one) == 2
  assert tell('affinity_sessions') == 5
  assert tell('affinity_moves_total') == 3
  assert tell('affinity_losses_total') == 2
  assert tell('affinity_shared') == 0
  # A table that is one router's own is not shared, and no alert says so.
  read[0] = metrics.FleetReading(replicas[:1], 5, 3)
  tell = told(measured)
  assert tell('affinity_shared') is None
  assert tell('replica_up', **two) is None


def test_labels_that_are_known_begin_at_zero():
  """Prometheus sees no increase in a series whose first sample is 1."""
  tell = told(metrics.Metrics(lambda: None))
  assert tell('rejected_total', reason='busy') == 0
  assert tell('store_failures_total') == 0
  assert tell('ratings_total', kind='wrongly_refused') == 0
  for kind in 'status', 'stream':
    assert tell('failed_answers_total', kind=kind) == 0
  for tier in 'adult', 'minor':
    assert tell('gate_failures_total', tier=tier) == 0
    for name, stages in (
      ('judged', ('gate', 'head')),
      ('refusals', ('gate', 'prompt', 'head')),
    ):
      for stage in stages:
        assert tell(f'{name}_total', stage=stage, tier=tier) == 0


def test_what_is_counted_is_told():
  measured = metrics.Metrics(lambda: _READING)
  measured.ttft.observe(0.7)
  measured.prompt_tokens.inc(10)
  measured.rejected.labels('busy').inc()
  measured.refusals.labels('gate', 'minor').inc()
  tell = told(measured)
  assert tell('prompt_tokens_total') == 10
  assert tell('rejected_total', reason='busy') == 1
  assert tell('refusals_total', stage='gate', tier='minor') == 1
  assert tell('ttft_seconds_bucket', le='0.4') == 0
  assert tell('ttft_seconds_bucket', le='0.8') == 1
  assert tell('evictions_total') == 6
  assert tell('pages', kind='global', state='free') == 3
  # Servers share nothing, and need no engine.
  tell = told(metrics.Metrics(lambda: None))
  assert tell('prompt_tokens_total') == 0 and tell('points') is None


def test_tokens_that_come_together_share_the_time_since_those_before(
  monkeypatch,
):
  measured, seconds = metrics.Metrics(lambda: None), iter([10.0, 10.6, 10.8])
  clock = types.SimpleNamespace(perf_counter=lambda: next(seconds))
  monkeypatch.setattr(submit, 'time', clock)
  note = submit._observe_times(measured, 9.5, 7)
  stream = types.SimpleNamespace(waited=0.1, reused=2)
  for count in 2, 3, 1:
    note(stream, count)
  tell = told(measured)
  assert tell('ttft_seconds_count') == 1
  assert tell('ttft_seconds_sum') == pytest.approx(0.5)
  # Three of 0.2 seconds and one of 0.2.
  assert tell('itl_seconds_count') == 4
  assert tell('itl_seconds_sum') == pytest.approx(0.8)
  assert tell('itl_seconds_bucket', le='0.32') == 4


def test_an_engine_is_asked_only_when_somebody_scrapes():
  reads = []
  measured = metrics.Metrics(lambda: reads.append(1))
  assert not reads
  measured.text()
  assert len(reads) == 1


@pytest.fixture
def engine(monkeypatch):
  monkeypatch.setattr(
    compiled,
    'Rounds',
    lambda decoder, chunk, *_: fake_device.Rounds(decoder, chunk, None),
  )
  pools = fake_device.pools(64, 4, 10, (40, 14))
  return engine_lib.Engine(fake_device.Decoder(pools, 3, 64), chunk=16)


def test_a_reading_accounts_for_every_page(engine):
  account = engine.decoder.account
  sizes = {kind: account.pages.size(kind) for kind in account.pages.kinds}

  def read():
    found = metrics.reading(engine)
    for kind, size in sizes.items():
      states = [found.pages[kind, x] for x in ('free', 'row', 'point')]
      assert sum(states) == size and min(states) >= 0
      assert found.pages[kind, 'free'] == account.pages.free(kind)
    return found

  empty = read()
  assert empty.pages['global', 'free'] == sizes['global']
  sequences = [
    engine.submit(request_lib.Request([n + 1] * 20, 8, owner=str(n)))
    for n in range(4)
  ]
  assert (read().waiting, read().running) == (4, 0)
  engine.advance()
  busy = read()
  assert (busy.waiting, busy.running) == (1, 3)
  assert busy.pages['global', 'row'] > 0
  while any(one.reason is None for one in sequences):
    engine.advance()
    read()
  done = read()
  assert done.pages['global', 'row'] == 0 < done.pages['global', 'point']
  assert done.points == len(account.tree) > 0
  for n in range(20):
    one = engine.submit(request_lib.Request([n + 9] * 40, 8, owner='x'))
    while one.reason is None:
      engine.advance()
  assert read().evictions == account.tree.evicted > 0


def test_answers_are_counted_by_route_and_status():
  measured = metrics.Metrics(lambda: None)
  app = edge.count_answers(trivial.Application().app, measured)
  client = testclient.TestClient(app, raise_server_exceptions=False)
  client.get('/')
  client.get('/?a=b')
  for n in range(50):  # Whoever asks for anything makes no new series.
    client.get(f'/nowhere/{n}')
    client.request(f'X{n}', '/')
  client.post('/echo', content=b'{', headers={'Content-Type': 'text/plain'})
  for path in '/fails', '/v1/fails', '/v1/away', '/v1/busy', '/v1/hello':
    client.get(path)
  found = {
    tuple(dict(labels)[x] for x in ('method', 'route', 'status')): value
    for (name, labels), value in exposed.samples(measured).items()
    if name == 'kaiju_http_requests_total'
  }
  assert found == {
    ('GET', '/', '200'): 2,
    ('GET', 'none', '404'): 50,
    ('other', '/', '405'): 50,
    ('POST', '/echo', '415'): 1,
    ('GET', '/fails', '500'): 1,
    ('GET', '/v1/fails', '500'): 1,
    ('GET', '/v1/away', '503'): 1,
    ('GET', '/v1/busy', '429'): 1,
    ('GET', '/v1/hello', '200'): 1,
  }
  # The server's own faults alone count as failed, under /v1.
  assert told(measured)('failed_answers_total', kind='status') == 2


def test_a_port_of_their_own_answers_this_machine_alone():
  app = metrics.Metrics(lambda: _READING).app()
  own = testclient.TestClient(app, 'http://127.0.0.1', client=('127.0.0.1', 1))
  answer = own.get('/metrics')
  assert answer.status_code == 200 and 'kaiju_points 5.0' in answer.text
  assert answer.headers['content-type'].startswith('text/plain; version=0.0.4')
  assert own.get('/').status_code == 404
  for client in (
    testclient.TestClient(app, 'http://evil.example', client=('127.0.0.1', 1)),
    testclient.TestClient(app, 'http://127.0.0.1', client=('192.0.2.1', 1)),
  ):
    assert client.get('/metrics').status_code == 403
