"""A trace of the steps that the setting names, once, and of no others."""

import gzip
import json

import jax
import numpy as np
import pytest

from kaiju_jax.training import config
from kaiju_jax.training.records import metrics
from tests.training import toy


def _traced(folder):
  """Returns the steps in each trace of a workdir."""
  files = sorted((folder / 'profile').rglob('*.trace.json.gz'))
  found = []
  for file in files:
    events = json.loads(gzip.decompress(file.read_bytes()))['traceEvents']
    steps = [
      int(one['args']['step_num'])
      for one in events
      if 'step_num' in one.get('args', {})
    ]
    found.append(sorted(steps))
  assert all(file.with_suffix('').name for file in files)
  return found


def test_it_traces_its_steps_and_changes_no_number(tmp_path):
  plain = toy.train(tmp_path / 'plain')
  made = toy.experiment(profile='6:3')
  state = toy.train(tmp_path / 'run', made, until=5)
  assert not (tmp_path / 'run' / 'profile').exists()
  state = toy.train(tmp_path / 'run', made, until=10)
  assert _traced(tmp_path / 'run') == [[6, 7, 8]]
  assert list((tmp_path / 'run' / 'profile').rglob('*.xplane.pb'))
  # Behind its first step a run traces nothing, nor the rest of a window; and
  # the setting may change, as no number depends on it.
  toy.train(tmp_path / 'run', made, until=11)
  state = toy.train(tmp_path / 'run', toy.experiment(profile='11:9'))
  assert len(_traced(tmp_path / 'run')) == 1
  jax.tree.map(np.testing.assert_array_equal, state, plain)
  found, wanted = (
    [
      {k: v for k, v in one.items() if k not in metrics.TIMING}
      for one in metrics.read(tmp_path / name)
    ]
    for name in ('run', 'plain')
  )
  assert found == wanted


def test_a_window_beyond_the_end_is_closed_there(tmp_path):
  toy.train(tmp_path, toy.experiment(profile='11:5'))
  assert _traced(tmp_path) == [[11, 12]]
  toy.train(tmp_path / 'next', toy.experiment(profile='1:1'))
  assert _traced(tmp_path / 'next') == [[1]]


@pytest.mark.parametrize('name', ['start_trace', 'stop_trace'])
def test_a_profiler_that_fails_stops_no_run(tmp_path, monkeypatch, capfd, name):
  def fail(*_):
    raise RuntimeError('no profiler here')

  stop = jax.profiler.stop_trace
  monkeypatch.setattr(jax.profiler, name, fail)
  assert int(toy.train(tmp_path, toy.experiment(profile='3:2')).step) == 12
  if name == 'stop_trace':
    stop()
  assert capfd.readouterr().err.count('no profiler here') == 1


@pytest.mark.parametrize(
  'text',
  ['100', '0:3', '3:0', 'a:1', '1:b', ':', '-1:2', '1:2:3', '²:1', '1: 2'],
)
def test_what_names_no_steps_is_refused(text):
  with pytest.raises(ValueError, match='profile='):
    config.check_loop(config.LoopConfig(profile=text))
