"""RMSNorm against its formula in float64."""

import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax.model import norm


@pytest.mark.parametrize('size', [1e-3, 1.0, 1e3])
def test_epsilon_is_added_to_the_mean_square(size):
  """At a size of √ε most of what is divided by is ε's, inside the root."""
  rng = np.random.default_rng(0)
  x_BLD = size * rng.standard_normal((2, 3, 16))
  gain_D = rng.uniform(0.5, 2, 16).astype(np.float32)
  epsilon = 1e-6
  got_BLD, got_D = norm.RMSNorm(epsilon).apply(
    {'params': {'gain_D': jnp.asarray(gain_D)}}, jnp.asarray(x_BLD, jnp.float32)
  )
  mean_square = np.mean(x_BLD**2, axis=-1, keepdims=True)
  want_BLD = x_BLD / np.sqrt(mean_square + epsilon) * gain_D
  np.testing.assert_allclose(got_BLD, want_BLD, rtol=1e-5)
  np.testing.assert_array_equal(got_D, gain_D)
