"""The contrast to Squinch rounds as it says."""

import jax.numpy as jnp
import numpy as np

from kaiju_jax.wire import contrast


def test_blocks_run_along_d_or_as_memory_has_them():
  x_DF = np.zeros((64, 8), np.float32)
  x_DF[0, 0], x_DF[1, 0], x_DF[1, 1], x_DF[40, 0] = 7, 0.4, 3.6, 0.6
  along = np.asarray(contrast.int4(jnp.asarray(x_DF), flat=False))
  # 7 sets the step of rows 0…31 of its own column alone.
  assert along[0, 0] == 7 and along[1, 0] == 0
  np.testing.assert_allclose(along[[1, 40], [1, 0]], [3.6, 0.6], rtol=4e-3)
  flat = np.asarray(contrast.int4(jnp.asarray(x_DF), flat=True))
  # In memory it sets that of rows 0…31 of all eight columns.
  assert flat[0, 0] == 7 and flat[1, 0] == 0 and flat[1, 1] == 4
  np.testing.assert_allclose(flat[40, 0], 0.6, rtol=4e-3)
