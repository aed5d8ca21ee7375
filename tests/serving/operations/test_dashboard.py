"""The dashboard: Prometheus reads its queries; its panels do not overlap."""

import itertools
import json

import pytest

from tests.serving.operations import prometheus


@pytest.fixture(scope='module')
def dashboard():
  return json.loads(prometheus.DASHBOARD.read_text())


def test_each_panel_asks_the_data_source_that_the_user_chose(dashboard):
  variables = {one['name']: one for one in dashboard['templating']['list']}
  assert variables['datasource']['type'] == 'datasource'
  assert dashboard['schemaVersion'] >= 37  # Grafana 10 and newer read it.
  ids = [panel['id'] for panel in dashboard['panels']]
  assert len(set(ids)) == len(ids)
  own = {'type': 'prometheus', 'uid': '${datasource}'}
  for panel in dashboard['panels']:
    assert panel['datasource'] == own and panel['description'], panel['title']
    assert panel['targets']
    for target in panel['targets']:
      assert target['datasource'] == own
      assert 'job=~"$job"' in target['expr'], panel['title']


def test_panels_do_not_overlap(dashboard):
  boxes = [panel['gridPos'] for panel in dashboard['panels']]
  for a, b in itertools.combinations(boxes, 2):
    assert (
      a['x'] + a['w'] <= b['x']
      or b['x'] + b['w'] <= a['x']
      or a['y'] + a['h'] <= b['y']
      or b['y'] + b['h'] <= a['y']
    )
  assert all(box['x'] + box['w'] <= 24 for box in boxes)


@prometheus.needs_promtool
@pytest.mark.slow
def test_prometheus_reads_each_query(dashboard, tmp_path):
  queries = prometheus.queries(dashboard)
  named = [
    {'record': f'query:{n}', 'expr': query} for n, query in enumerate(queries)
  ]
  path = tmp_path / 'queries.yml'
  path.write_text(json.dumps({'groups': [{'name': 'all', 'rules': named}]}))
  done = prometheus.run('check', 'rules', path)
  assert done.returncode == 0, done.stdout
  assert f'{len(queries)} rules found' in done.stdout
