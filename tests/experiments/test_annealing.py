"""The arms of the experiment on annealing differ in order alone."""

import json

import numpy as np
import pytest

from experiments.configs import annealing
from kaiju_jax.data import packing
from kaiju_jax.tasks import registry as tasks
from tests.experiments import forked


@pytest.fixture
def texts(tmp_path, monkeypatch):
  rng = np.random.default_rng(0)
  for name in 'clean', 'noisy':
    lines = [
      json.dumps({'text': ''.join(rng.choice(list('abc '), 300))})
      for _ in range(40)
    ]
    (tmp_path / f'{name}.jsonl').write_text('\n'.join(lines))
  monkeypatch.setattr(annealing, 'TEXT', str(tmp_path))


def _rows(arm):
  experiment = annealing.get_config(arm)
  experiment.loop.steps = 50
  return tasks.rows(experiment), 50 * experiment.data.batch


def test_all_arms_read_the_same_clean_rows_at_different_times(texts):
  clean, places = {}, {}
  for arm in annealing.ARMS:
    rows, total = _rows(arm)
    assert rows.counts(total).tolist() == [total // 5, total - total // 5]
    parts = [rows[n].extras[packing.COMPONENT] for n in range(total)]
    places[arm] = np.flatnonzero(np.array(parts) == 0)
    clean[arm] = [rows[n].tokens for n in places[arm]]
  for arm in 'last', 'first':
    np.testing.assert_array_equal(clean[arm], clean['spread'])
  assert places['first'].tolist() == list(range(total // 5))
  assert places['last'].tolist() == list(range(total - total // 5, total))
  assert 0.4 < np.mean(places['spread']) / total < 0.6
  with pytest.raises(ValueError, match="arm='middle': must be one of spread"):
    annealing.get_config('middle')


@pytest.mark.slow
def test_the_text_is_written_whole(tmp_path):
  """And the standard library has enough of both sources."""
  (done,) = forked.run(
    [['experiments.texts', '--of=annealing', f'--out={tmp_path}/t']]
  )
  assert done.returncode == 0, done.stderr
  assert {path.name for path in (tmp_path / 't').iterdir()} == {
    'clean.jsonl',
    'noisy.jsonl',
  }
  for name, least in ('clean', 200_000), ('noisy', 400_000):
    lines = (tmp_path / f't/{name}.jsonl').read_text().splitlines()
    assert sum(len(json.loads(line)['text']) for line in lines) > least
