"""A rehearsal goes through every slice, and every page has its table."""

import pytest

from experiments.benchmarks.device import order
from kaiju_jax.storage import files
from tests.experiments.benchmarks.device import commands


@pytest.mark.slow
def test_every_slice_has_figures(tmp_path):
  done = commands.run(tmp_path)
  assert done.returncode == 0, done.stderr
  for name in order.SLICES:
    found = files.read_json(tmp_path / f'{name}.json')
    assert found['problem'] is found['running'] is None, name
    assert set(found['cases']) == set(found['names'])
    assert set(commands.statuses(tmp_path, name).values()) == {'done'}, name
  for record in _records(tmp_path, 'numerics'):
    assert record['holds'], record
  for name in 'attention', 'int8_matmul', 'paged_decode', 'squinch':
    ((record),) = _records(tmp_path, name)
    assert record['default'] in {
      row['implementation'].partition(',')[0] for row in record['rows']
    }
    assert any(row['spread'] for row in record['rows'])
  tuned = files.read_json(tmp_path / 'tuned' / 'squinch' / 'tuned.json')
  assert tuned
  pages = {page.name: page.read_text() for page in tmp_path.rglob('*.md')}
  assert set(pages) == {
    *('kernels.md', 'step.md', 'decoding.md', 'startup.md', 'proposal.md')
  }
  for name, page in pages.items():
    assert 'REHEARSAL' in page and '|---|' in page, name
    assert 'Not measured.' not in page and 'Not drawn' not in page
  again = commands.run(tmp_path)
  assert again.stdout.count('finished before') == len(order.SLICES)


def _records(out, name):
  cases = files.read_json(out / f'{name}.json')['cases'].values()
  return [case['record'] for case in cases]


@pytest.mark.slow
def test_kernels_of_a_tpu_have_figures(tmp_path):
  kernels = 'numerics', 'attention', 'int8_matmul', 'paged_decode', 'squinch'
  flags = '--platform=tpu', f'--slices={",".join(kernels)}'
  done = commands.run(tmp_path, *flags)
  assert done.returncode == 0, done.stderr
  for name in kernels:
    assert set(commands.statuses(tmp_path, name).values()) == {'done'}, name
  checked = {x['implementation'] for x in _records(tmp_path, 'numerics')}
  assert 'pallas_tpu' in checked and 'pallas_gpu' not in checked
  page = (tmp_path / 'tables' / 'proposal.md').read_text()
  assert 'Platform tpu, measured on cpu. A REHEARSAL' in page
