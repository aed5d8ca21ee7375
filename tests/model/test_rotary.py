"""Rotary angles: today's bits, and the rates of scaled ones by hand."""

import math

import numpy as np
import pytest

from kaiju_jax.model import rope_scaling
from kaiju_jax.model import rotary
from tests.model import oracle

Config = rope_scaling.RopeScalingConfig


def test_unscaled_angles_are_those_of_the_formula_bit_for_bit():
  rates = 500.0 ** (-np.arange(0, 16, 2, dtype=np.float64) / 16)
  angles = np.arange(40, dtype=np.float64)[:, None] * rates
  cosine, sine = rotary.table(40, 16, 500.0)
  np.testing.assert_array_equal(cosine, np.cos(angles).astype(np.float32))
  np.testing.assert_array_equal(sine, np.sin(angles).astype(np.float32))


@pytest.mark.parametrize('angles', ['float64', 'float32'])
@pytest.mark.parametrize(
  'config',
  [
    Config(),
    Config('linear', 8.0),
    Config('llama3', 8.0, 8192),
    Config('llama3', 32.0, 64, low=1.0, high=4.0),
    Config('yarn', 20.0, 4096),
    Config('yarn', 4.0, 64, fast=8.0, slow=2.0),
  ],
  ids=lambda config: f'{config.kind} {config.original_length}',
)
def test_rates_are_those_of_the_papers(config, angles):
  config.angles = angles
  got = rotary.rates(64, 10_000.0, config)
  want = [oracle.rate_of(pair, 64, 10_000.0, config) for pair in range(32)]
  assert got.dtype == angles
  limit = 1e-12 if angles == 'float64' else 4e-7
  np.testing.assert_allclose(got, want, rtol=limit)


def test_llama3_by_hand():
  """Wavelengths of 2π·base^(i/2) over an original length of 100."""
  config = Config('llama3', 4.0, 100, low=1.0, high=4.0)
  base = (100 / (2 * math.pi)) ** 2  # Pair 1 of 2 has a wavelength of 100.
  rates = rotary.rates(4, base, config)
  own = base**-0.5
  # It turns once over 100 positions, which is `low`: scaled in full.
  np.testing.assert_allclose(rates, [1.0, own / 4])


def test_a_scaling_of_global_layers_leaves_the_local_ones():
  config = Config('yarn', 4.0, 64, layers='global', angles='float32')
  assert rotary.scaling_of(config, 'global') is config
  assert rotary.scaling_of(config, 'local') == Config(angles='float32')
  config.layers = 'all'
  assert rotary.scaling_of(config, 'local') is config


def test_the_attention_factor_multiplies_cosines_and_sines():
  plain = rotary.table(8, 4, 100.0, Config('yarn', 4.0, 64))
  scaled = rotary.table(
    8, 4, 100.0, Config('yarn', 4.0, 64, attention_factor=1.25)
  )
  for one, other in zip(plain, scaled):
    np.testing.assert_allclose(one * 1.25, other, rtol=1e-6)
