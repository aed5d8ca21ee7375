"""Random operations: every store does what plain dicts do."""

import collections
import functools
import itertools

from hypothesis import stateful
import pytest

from kaiju_jax.serving.stores import characters
from tests.decoding import machines
from tests.serving import store_moves

# What must have happened, or the test says too little.
OUTCOMES = [
  *((name, None) for name in ('publish', 'rollback', 'remove', 'open_session')),
  *((name, None) for name in ('append', 'set_head', 'rename', 'versions')),
  *((name, None) for name in ('remove_session', 'idle', 'live', 'version')),
  *((name, None) for name in ('rate', 'ratings', 'agree')),
  *((name, characters.NotOwner) for name in ('publish', 'rollback', 'remove')),
  *((name, characters.OverLimit) for name in ('publish', 'open_session')),
  *(('append', x) for x in (characters.Conflict, characters.OverLimit)),
  *((name, characters.Missing) for name in ('messages', 'append', 'live')),
  *((name, characters.Missing) for name in ('rate', 'ratings')),
  ('rate', ValueError),
  *((name, is_so) for name in ('read', 'public') for is_so in (False, True)),
]


@pytest.mark.parametrize(
  'lives', [10, pytest.param(40, marks=pytest.mark.slow)]
)
def test_a_store_does_what_the_model_does(make_store, lives):
  done, places = collections.Counter(), itertools.count()

  def begin():
    place = str(next(places))
    return store_moves.Moves(functools.partial(make_store, place=place), done)

  settings = machines.quick(store_moves.Moves, lives, 100).settings
  stateful.run_state_machine_as_test(begin, settings=settings)
  assert not [one for one in OUTCOMES if not done[one]]
