"""Metrics: the names, what they count, and that they stay few."""

import asyncio
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
  'kaiju_ttft_seconds': 'histogram',
  'kaiju_itl_seconds': 'histogram',
  'kaiju_queue_seconds': 'histogram',
  'kaiju_stream_tokens_per_second': 'histogram',
  'kaiju_prompt_tokens': 'counter',
  'kaiju_cached_tokens': 'counter',
  'kaiju_rejected': 'counter',
  'kaiju_judged': 'counter',
  'kaiju_gate_failures': 'counter',
  'kaiju_refusals': 'counter',
  'kaiju_failed_answers': 'counter',
  'kaiju_store_failures': 'counter',
  'kaiju_operations': 'counter',
  'kaiju_drift_kl': 'gauge',
  'kaiju_drift_frozen': 'gauge',
  'kaiju_ready': 'gauge',
  'kaiju_ratings': 'counter',
  'kaiju_http_requests': 'counter',
  'kaiju_pages': 'gauge',
  'kaiju_points': 'gauge',
  'kaiju_evictions': 'counter',
  'kaiju_waiting': 'gauge',
  'kaiju_running': 'gauge',
  'kaiju_expected_wait_seconds': 'gauge',
}


def test_names_and_types_are_those_that_dashboards_know():
  measured = metrics.Metrics(lambda: _READING)
  families = parser.text_string_to_metric_families(measured.text().decode())
  found = {x.name: x.type for x in families if not x.name.endswith('_created')}
  process = {x for x in found if x.startswith('kaiju_process_')}
  assert 'kaiju_process_start_time_seconds' in process
  assert {x: found[x] for x in found.keys() - process} == _NAMES


def test_a_router_tells_of_its_replicas():
  measured = metrics.Metrics(lambda: None)
  replicas = [
    metrics.ReplicaReading('one', 'b1', 1.0, True, False, 30.0, 2),
    metrics.ReplicaReading('two', 'b2', 0.1, False, False, 0.0, 0),
  ]
  read = [metrics.FleetReading(replicas, 5, 3, False, 2)]
  measured.add_fleet(lambda: read[0])
  told = exposed.samples(measured)
  two = ('build', 'b2'), ('replica', 'two')
  one = ('build', 'b1'), ('replica', 'one')
  assert told['kaiju_replica_up', one] == 1
  assert told['kaiju_replica_up', two] == 0
  assert told['kaiju_replica_share', two] == 0.1
  assert told['kaiju_replica_load', one] == 30
  assert told['kaiju_replica_running', one] == 2
  assert told['kaiju_affinity_sessions', ()] == 5
  assert told['kaiju_affinity_moves_total', ()] == 3
  assert told['kaiju_affinity_losses_total', ()] == 2
  assert told['kaiju_affinity_shared', ()] == 0
  # A table that is one router's own is not shared, and no alert says so.
  read[0] = metrics.FleetReading(replicas[:1], 5, 3)
  told = exposed.samples(measured)
  assert ('kaiju_affinity_shared', ()) not in told
  assert ('kaiju_replica_up', two) not in told


def test_labels_that_are_known_begin_at_zero():
  """Prometheus sees no increase in a series whose first sample is 1."""
  told = exposed.samples(metrics.Metrics(lambda: None))
  zeros = [
    ('rejected', {'reason': 'busy'}),
    ('failed_answers', {'kind': 'status'}),
    ('failed_answers', {'kind': 'stream'}),
    ('store_failures', {}),
    ('ratings', {'kind': 'wrongly_refused'}),
  ]
  for tier in 'adult', 'minor':
    zeros += [
      ('gate_failures', {'tier': tier}),
      *(('judged', {'stage': x, 'tier': tier}) for x in ('gate', 'head')),
      *(
        ('refusals', {'stage': x, 'tier': tier})
        for x in ('gate', 'prompt', 'head')
      ),
    ]
  for name, labels in zeros:
    assert told[f'kaiju_{name}_total', tuple(sorted(labels.items()))] == 0


def test_only_the_servers_own_faults_under_v1_count_as_failed():
  measured = metrics.Metrics(lambda: None)

  async def send(_):
    pass

  def answer(status):
    async def app(scope, receive, send):
      await send({'type': 'http.response.start', 'status': status})

    return app

  for path, status in (
    ('/v1/models', 500),
    ('/v1/models', 503),
    ('/v1/models', 429),
    ('/v1/models', 200),
    ('/readyz', 503),
  ):
    route = types.SimpleNamespace(path=path)
    scope = {'type': 'http', 'method': 'GET', 'route': route}
    asyncio.run(edge.count_answers(answer(status), measured)(scope, None, send))
  told = exposed.samples(measured)
  assert told['kaiju_failed_answers_total', (('kind', 'status'),)] == 2


def test_what_is_counted_is_told():
  measured = metrics.Metrics(lambda: _READING)
  measured.ttft.observe(0.7)
  measured.prompt_tokens.inc(10)
  measured.rejected.labels('busy').inc()
  measured.refusals.labels('gate', 'minor').inc()
  told = exposed.samples(measured)
  assert told['kaiju_prompt_tokens_total', ()] == 10
  assert told['kaiju_rejected_total', (('reason', 'busy'),)] == 1
  tier = (('stage', 'gate'), ('tier', 'minor'))
  assert told['kaiju_refusals_total', tier] == 1
  assert told['kaiju_ttft_seconds_bucket', (('le', '0.4'),)] == 0
  assert told['kaiju_ttft_seconds_bucket', (('le', '0.8'),)] == 1
  assert told['kaiju_evictions_total', ()] == 6
  labels = (('kind', 'global'), ('state', 'free'))
  assert told['kaiju_pages', labels] == 3


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
  told = exposed.samples(measured)
  assert told['kaiju_ttft_seconds_count', ()] == 1
  assert told['kaiju_ttft_seconds_sum', ()] == pytest.approx(0.5)
  # Three of 0.2 seconds and one of 0.2.
  assert told['kaiju_itl_seconds_count', ()] == 4
  assert told['kaiju_itl_seconds_sum', ()] == pytest.approx(0.8)
  assert told['kaiju_itl_seconds_bucket', (('le', '0.32'),)] == 4


def test_servers_share_nothing_and_need_no_engine():
  first = metrics.Metrics(lambda: None)
  second = metrics.Metrics(lambda: _READING)
  second.prompt_tokens.inc()
  assert exposed.samples(first)['kaiju_prompt_tokens_total', ()] == 0
  assert ('kaiju_points', ()) not in exposed.samples(first)


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
  client.get('/fails')

  def labels(method, route, status):
    return ('method', method), ('route', route), ('status', status)

  told = {
    key: value
    for (name, key), value in exposed.samples(measured).items()
    if name == 'kaiju_http_requests_total'
  }
  assert told == {
    labels('GET', '/', '200'): 2,
    labels('GET', 'none', '404'): 50,
    labels('other', '/', '405'): 50,
    labels('POST', '/echo', '415'): 1,
    labels('GET', '/fails', '500'): 1,
  }


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
