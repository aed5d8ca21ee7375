"""Without pinned versions: an edit of a character empties its sessions' cache.

Source 003 says that 60 % falls to nearly 0, for two minutes with 100,000 users.
The engine's own prefix tree is asked, without a model.
"""

import numpy as np
import pytest

from kaiju_jax.experiments.studies import economics
from kaiju_jax.fleet import book as book_lib
from kaiju_jax.fleet import caches
from kaiju_jax.fleet import traffic

SIZES = caches.Sizes(8, 40, {'local': 400, 'global': 100}, 500)
PREFIX, HISTORY, USERS = 192, 128, 12


def serve(pinned):
  """Returns hit rates of the turn before an edit, of its turn, of the next."""
  rng = np.random.default_rng(0)
  numbers = iter(range(1_000))

  def piece(size):
    tokens = rng.integers(2**15, size=size, dtype=np.int32)
    return traffic.Piece(next(numbers), tokens)

  old, new = piece(PREFIX), piece(PREFIX)
  histories, answers = (
    [piece(size) for _ in range(USERS)] for size in (HISTORY, 8)
  )
  cache = caches.Points(SIZES, 10**6, local=0.5)
  rates = []
  for turn in range(4):
    prefix = new if turn >= 2 and not pinned else old
    hits = 0
    for user in range(USERS):
      prompt = prefix, histories[user]
      request = traffic.Request(
        60.0 * turn + user, 0, user, 'turn', prompt, answers[user]
      )
      hits += cache.serve(request)
    rates.append(hits / (USERS * (PREFIX + HISTORY)))
  return rates[1:]


def test_an_edit_costs_the_histories_once_and_the_prefix_once_a_shard():
  before, edited, next_turn = serve(pinned=False)
  assert before > 0.95 and next_turn > 0.95
  # All but the first user find the new prefix: 11/12 of 192 of 320 tokens.
  expected = (USERS - 1) / USERS * PREFIX / (PREFIX + HISTORY)
  assert edited == pytest.approx(expected, abs=0.02)


def test_a_pinned_version_keeps_the_hits():
  before, edited, next_turn = serve(pinned=True)
  assert before == edited == next_turn > 0.95


def test_warming_takes_a_prefill_per_shard_not_minutes():
  said = book_lib.values(economics.load('source'))
  prefill = said.prefix / said.h100_prefill_rate
  assert prefill == pytest.approx(0.12, abs=0.01)
  assert said.edit_users / said.peak_claimed == 2  # Not "2 minutes".
  assert said.edit_users / said.peak_rate == pytest.approx(111, abs=1)
