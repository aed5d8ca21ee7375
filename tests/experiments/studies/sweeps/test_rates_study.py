"""The rates' study on planted losses: runs, sentences, figure."""

import dataclasses
import math

import pytest

from experiments.configs import sweep
from kaiju_jax.experiments.studies.sweeps import rates
from kaiju_jax.experiments.studies.sweeps import study
from tests.experiments.studies.sweeps import planted

SETTINGS = study.RateGrid(rates=(1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2))


def loss(experiment, slope=-0.8):
  """Best at .006 in width 48; under 'width' in all."""
  optimizer, width = experiment.optimizer, experiment.model.d_model
  b = slope if optimizer.transfer == 'none' else 0.0
  x = math.log(optimizer.learning_rate / 6e-3) - b * math.log(width / 48)
  return 2.0 + 0.05 * x**2 + 1e-3 * experiment.seed


def test_the_next_width_is_run_where_the_line_says(monkeypatch, tmp_path):
  jobs = planted.Jobs(monkeypatch, loss)
  all_found = rates.measure(sweep.get_config(), SETTINGS, tmp_path)
  studies, predictions, _ = all_found
  assert abs(studies['none'].line.b + 0.8) < 0.02
  assert abs(studies['width'].line.b) < 0.02
  for one in predictions.values():
    assert 1 / 1.05 < one.ratio < 1.05
    assert one.excess < 0.001
  # The contrast: the narrowest width's rate, which 'width' may keep.
  assert predictions['none'].kept > 0.02
  assert predictions['width'].kept < 0.001
  text, found = planted.publish(tmp_path, rates, all_found)
  assert text.count('target 1.4, met') == 2
  assert 'one rate serves all (target |b| ≤ 0.2 met)' in text
  # 4 widths, 5 rates and 2 transfers; then 4 and 3 rates, on two seeds.
  assert len(jobs.folders) == 2 * (4 * 5 * 2 + 4 + 3)
  assert found['none']['predicted']['width'] == 192
  assert len(found['width']['widths']['48']['losses']) == 2


def test_an_optimum_at_the_edge_is_said_and_not_predicted_from(
  monkeypatch, tmp_path
):
  jobs = planted.Jobs(monkeypatch, lambda one: loss(one, slope=-3.0))
  settings = dataclasses.replace(SETTINGS, transfer=('none',))
  all_found = rates.measure(sweep.get_config(), settings, tmp_path)
  studies, predictions, _ = all_found
  assert studies['none'].line is None and predictions == {}
  assert len(jobs.folders) == 4 * 5 * 2
  text, _ = planted.publish(tmp_path, rates, all_found)
  assert 'none: nothing is predicted' in text


@pytest.mark.slow
def test_a_slope_that_width_leaves_is_said(monkeypatch, tmp_path):
  def steep(experiment):
    experiment.optimizer.transfer = 'none'
    return loss(experiment, slope=-0.5)

  planted.Jobs(monkeypatch, steep)
  settings = dataclasses.replace(SETTINGS, transfer=('width',))
  all_found = rates.measure(sweep.get_config(), settings, tmp_path)
  assert (
    'does NOT serve all (target |b| ≤ 0.2 MISSED)'
    in planted.publish(tmp_path, rates, all_found)[0]
  )
