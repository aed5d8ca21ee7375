"""The phases of a sequence: those of the table follow each other, no others."""

import numpy as np
import pytest

from kaiju_jax.decoding.engine import phases
from kaiju_jax.decoding.engine import sequence as sequence_lib
from kaiju_jax.decoding.requests import request as request_lib
from tests.decoding import phase_table

# What leads to each phase, and what asks for it.
PATHS = {
  'WAITING': (),
  'PREFILLING': ('join',),
  'DRAWING': ('join', 'begin'),
  'SEARCHING': ('join', 'begin'),
  'PARKED': ('join', 'park'),
  'ENDED': ('end',),
}
ARGUMENTS = {'join': (2, 4, 1.5), 'end': ('cancelled',)}


def moved(one, step):
  getattr(one, step)(*ARGUMENTS.get(step, ()))


def reached(phase):
  """Returns a sequence in a phase."""
  guide = request_lib.Guide(1) if phase == 'SEARCHING' else None
  request = request_lib.Request([1, 2, 3], 4, guided=guide)
  one = sequence_lib.Sequence(7, request, np.arange(3), None)
  for step in PATHS[phase]:
    moved(one, step)
  assert one.phase.name == phase
  return one


@pytest.mark.parametrize('phase', PATHS)
@pytest.mark.parametrize('step', ['join', 'begin', 'park', 'end'])
def test_a_phase_follows_by_the_table_or_the_step_is_refused(phase, step):
  one = reached(phase)
  begun = 'DRAWING' if one.draws else 'SEARCHING'
  names = {'join': 'PREFILLING', 'park': 'PARKED', 'end': 'ENDED'}
  following = names.get(step, begun)
  if (phase, following) in phase_table.LEGAL:
    moved(one, step)
    assert one.phase.name == following
    return
  before = one.row, one.reason, one.joined_at, one.reused
  message = f'sequence 7 is {phase} and cannot be {following}: expected '
  with pytest.raises(ValueError, match=message):
    moved(one, step)
  assert one.phase.name == phase
  assert (one.row, one.reason, one.joined_at, one.reused) == before


def test_the_table_is_whole():
  found = {(x.name, y.name) for x, then in phases.NEXT.items() for y in then}
  assert found == phase_table.LEGAL
  assert list(phases.NEXT) == list(phases.Phase)
