"""The scaling study on planted losses: runs, sentences, figure."""

import pytest

from experiments.configs import sweep
from kaiju_jax.experiments.studies.sweeps import scaling
from kaiju_jax.experiments.studies.sweeps import study
from kaiju_jax.experiments.studies.sweeps.fits import scaling as fits
from kaiju_jax.training import batch_schedule
from tests.experiments.studies.sweeps import planted

PLACES = [(w, t << 17) for w in (32, 48, 64, 96) for t in (1, 2, 4, 8)]
LARGEST = 192, 64 << 17
LAW = fits.Law(1.3, 25.0, 90.0, 0.4, 0.38)


def loss(experiment):
  """The law; N of two layers with a key and a value each."""
  d, f, heads = (
    experiment.model.d_model,
    experiment.model.d_ff,
    experiment.model.num_heads,
  )
  layer = 2 * d * 16 * heads + 2 * d * 16 + 2 * d * f
  size = 2 * layer + 5 * d  # Two gains a layer, and the last.
  tokens = batch_schedule.schedule_of(experiment).tokens
  wobble = 5e-4 * (-1) ** (d // 16 + tokens // (3 << 17))
  return float(LAW.predict(size, tokens)) * (1 + wobble)


def measured(tmp_path):
  settings = study.Scaling(
    tokens=tuple(t << 17 for t in (1, 2, 4, 8)), largest=LARGEST
  )
  return scaling.measure(sweep.get_config(), settings, tmp_path)


def test_the_largest_run_is_predicted_and_the_contrasts_are_not(
  monkeypatch, tmp_path
):
  jobs = planted.Jobs(monkeypatch, loss)
  found = measured(tmp_path)
  assert len(jobs.folders) == 17
  truth = found.largest.loss
  assert abs(found.predicted / truth - 1) < 0.02
  assert abs(found.without_e / truth - 1) > abs(found.predicted / truth - 1)
  assert abs(found.carried / truth - 1) > 0.05
  text, written = planted.publish(tmp_path, scaling, found)
  assert 'target 2%, met' in text
  assert len(written['points']) == 16


def test_rates_follow_the_slope_and_tokens_the_grid(monkeypatch, tmp_path):
  cells = [scaling.SizeCell(96, 1000, 0)]
  (run,) = scaling.runs(sweep.get_config(), cells, -0.5, tmp_path).values()
  assert run.experiment.optimizer.learning_rate == pytest.approx(
    8e-3 * (96 / 64) ** -0.5, rel=1e-3
  )
  assert run.tokens == 1024, 'a whole microbatch'


def test_a_run_that_diverged_is_named(monkeypatch, tmp_path):
  def diverged(experiment):
    return 'nan' if experiment.model.d_model == 96 else loss(experiment)

  planted.Jobs(monkeypatch, diverged)
  with pytest.raises(ValueError, match=r'width 96, .*: diverged'):
    measured(tmp_path)


def test_a_width_keeps_the_ratios():
  made = study.with_width(sweep.get_config(), 96).model
  assert (made.d_model, made.num_heads, made.d_ff) == (96, 6, 384)
  assert made.head_dim == 16
  with pytest.raises(ValueError, match=r'width 40: model\.num_heads=4 .*2.5'):
    study.with_width(sweep.get_config(), 40)
