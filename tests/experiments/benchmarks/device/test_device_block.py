"""What one device of several computes of a layer block."""

import pytest

from kaiju_jax.experiments.benchmarks.device import step
from kaiju_jax.model import presets


def test_a_part_is_one_devices():
  part = step.part_of('13b', 8)
  assert part.num_layers == 14
  assert (part.d_model, part.num_heads, part.d_ff) == (5120, 5, 3072)
  assert part.layers()[:7] == presets.preset('13b').layers()[:7]


def test_what_does_not_divide_is_refused():
  with pytest.raises(ValueError, match='--tensor=3 does not divide num_heads='):
    step.part_of('13b', 3)
