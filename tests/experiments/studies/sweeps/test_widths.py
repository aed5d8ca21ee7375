"""The same model in another width."""

import pytest

from experiments.configs import sweep
from kaiju_jax.experiments.studies.sweeps import study


def test_a_width_keeps_the_ratios():
  made = study.with_width(sweep.get_config(), 96)
  assert (made.model.d_model, made.model.num_heads, made.model.d_ff) == (
    96,
    6,
    384,
  )
  assert made.model.head_dim == 16
  with pytest.raises(
    ValueError, match=r'width 40: model\.num_heads=4 at .*2.5'
  ):
    study.with_width(sweep.get_config(), 40)
