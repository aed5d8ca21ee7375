"""The phases of a sequence: those of the table follow each other, no others."""

import numpy as np
import pytest

from kaiju_jax.decoding.engine import phases
from kaiju_jax.decoding.engine import sequence as sequence_lib
from kaiju_jax.decoding.requests import request as request_lib
from tests.decoding import phase_table


@pytest.mark.parametrize('following', phases.Phase)
@pytest.mark.parametrize('phase', phases.Phase)
def test_a_phase_follows_by_the_table_or_is_refused(phase, following):
  request = request_lib.Request([1, 2, 3], 4)
  one = sequence_lib.Sequence(7, request, np.arange(3), None)
  assert one.phase is phases.Phase.WAITING
  one.phase = phase
  if (phase.name, following.name) in phase_table.LEGAL:
    one.enter(following)
    assert one.phase is following
    return
  message = f'sequence 7 is {phase.name} and cannot be {following.name}:'
  with pytest.raises(ValueError, match=message):
    one.enter(following)
  assert one.phase is phase


def test_the_table_is_whole():
  found = {(x.name, y.name) for x, then in phases.NEXT.items() for y in then}
  assert found == phase_table.LEGAL
  assert list(phases.NEXT) == list(phases.Phase)
