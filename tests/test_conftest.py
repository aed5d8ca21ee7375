"""The settings of conftest.py are in force."""

import jax
import jax.numpy as jnp
import pytest

pytestmark = pytest.mark.versions


def test_eight_cpu_devices():
  if jax.default_backend() != 'cpu':
    pytest.skip('JAX_PLATFORMS chose an accelerator')
  assert jax.device_count() == 8


def test_broadcasting_ranks_raises():
  with pytest.raises(ValueError, match='rank_promotion'):
    jnp.ones((2, 3)) + jnp.ones((3,))
