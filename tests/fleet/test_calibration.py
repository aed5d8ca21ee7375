"""A law is found again from rounds, and another model's is refused."""

import dataclasses

import numpy as np
import pytest

from kaiju_jax.fleet import calibration
from kaiju_jax.fleet import ceilings
from kaiju_jax.fleet import state
from kaiju_jax.model import presets
from kaiju_jax.tpu_gpu_configs.chips import h100

LAW = state.Law(4e-3, 2e-5, 3e-8, 5e-6, 2e-10, 2e-3)
SIZES = state.Sizes(8, 64, 256, 100, 50, 16, 1)


def rounds(count=400, noise=0.05, seed=0):
  rng = np.random.default_rng(seed)
  drawing = rng.integers(0, 64, count)
  chunk = rng.choice([0, 64, 256], count)
  features = np.stack(
    [
      np.ones(count),
      drawing,
      drawing * rng.integers(100, 16_000, count),
      chunk,
      chunk * rng.integers(0, 16_000, count),
      chunk > 0,
    ],
    axis=1,
  )
  seconds = features @ np.array(LAW)
  return features, seconds * np.exp(noise * rng.normal(size=count))


def test_a_law_is_found_again():
  law, residuals = calibration.fit(*rounds())
  for found, expected in zip(law, LAW):
    assert found == pytest.approx(expected, rel=0.15)
  assert residuals.rounds == 400 and 0.02 < residuals.median < 0.06
  assert abs(residuals.bias) < 0.02
  # Noise that is skewed: its mean is above its median.
  law, residuals = calibration.fit(*rounds(noise=0.3))
  assert abs(residuals.bias) < 0.02 and residuals.median > 0.15
  exact, none = calibration.fit(*rounds(noise=0.0))
  assert exact == pytest.approx(LAW) and none.p90 < 1e-9


def test_rounds_that_another_process_held_up_are_left_out():
  features, seconds = rounds()
  seconds[::20] *= 30
  law, residuals = calibration.fit(features, seconds)
  assert residuals.left_out >= 20
  for found, expected in zip(law, LAW):
    assert found == pytest.approx(expected, rel=0.15)


def test_weights_are_never_negative():
  features, seconds = rounds()
  law, _ = calibration.fit(features, seconds.max() + 1 - seconds)
  assert min(law) >= 0 and law.fixed > 0


def test_a_chips_law_has_its_ceilings():
  config = presets.preset('13b')
  law, residuals = calibration.fit_chip(config, h100.CHIP)
  assert residuals.p90 < 0.02
  rate = ceilings.decode_rate(config, h100.CHIP, 8_192, 32)
  seconds = law.fixed + 32 * law.row + 32 * 8_192 * law.context
  assert seconds == pytest.approx(32 / rate, rel=0.02)
  slower, _ = calibration.fit_chip(config, h100.CHIP, slower=2.0)
  assert slower == pytest.approx(2 * np.array(law), rel=1e-6)


def test_a_calibration_is_read_as_written_and_serves_its_model_alone(tmp_path):
  residuals = calibration.fit(*rounds())[1]
  engine = calibration.Engine(
    'a' * 32, 'runs/one, step 5', LAW, SIZES, ((1, 64), (4, 16)), residuals
  )
  calibration.write(tmp_path / 'engine.json', engine)
  assert calibration.read(tmp_path / 'engine.json') == engine
  engine.check_model('a' * 32)
  with pytest.raises(ValueError, match='calibrated on runs/one, step 5'):
    engine.check_model('b' * 32)
  fields = dataclasses.asdict(engine)
  (tmp_path / 'half.json').write_text('{"model": "a"}')
  with pytest.raises(ValueError, match=r"half.json: is no cal.*'origin'"):
    calibration.read(tmp_path / 'half.json')
  assert fields['shapes'] == ((1, 64), (4, 16))
