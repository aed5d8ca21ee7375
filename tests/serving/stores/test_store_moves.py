"""Random operations: every store does what plain dicts do."""

import collections

import pytest

from kaiju_jax.serving.stores import characters
from tests.serving import store_moves

STEPS = 200
QUICK, SEEDS = 4, 20

# What must have happened, or the test says too little.
OUTCOMES = [
  *((name, None) for name in ('publish', 'rollback', 'remove', 'open_session')),
  *((name, None) for name in ('append', 'set_head', 'rename', 'versions')),
  *((name, None) for name in ('remove_session', 'idle', 'live', 'version')),
  *((name, None) for name in ('rate', 'ratings', 'agree')),
  *((name, characters.NotOwner) for name in ('publish', 'rollback', 'remove')),
  *((name, characters.Conflict) for name in ('append', 'set_head')),
  *((name, characters.OverLimit) for name in ('publish', 'open_session')),
  ('append', characters.OverLimit),
  *((name, characters.Missing) for name in ('messages', 'append', 'live')),
  *((name, characters.Missing) for name in ('rate', 'ratings')),
  ('rate', ValueError),
  *((name, is_so) for name in ('read', 'public') for is_so in (False, True)),
]


@pytest.mark.parametrize(
  'seeds',
  [
    range(QUICK),
    pytest.param(range(QUICK, SEEDS), marks=pytest.mark.slow),
  ],
  ids=['some', 'more'],
)
def test_a_store_does_what_the_model_does(make_store, seeds):
  done = collections.Counter()
  for seed in seeds:
    clock = store_moves.Clock()
    store = make_store(store_moves.LIMITS, clock, place=str(seed))
    moves = store_moves.Moves(store, clock, seed)
    moves.run(STEPS)
    done.update(moves.done)
    # What another process would read.
    moves.store = make_store(store_moves.LIMITS, clock, place=str(seed))
    for _ in range(20):
      moves.look()
  assert not [one for one in OUTCOMES if not done[one]]
