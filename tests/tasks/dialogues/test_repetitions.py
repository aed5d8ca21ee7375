"""Repetitions: only what can be copied is asked."""

import numpy as np
import pytest

from kaiju_jax.data import chat
from kaiju_jax.data import packing
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.tasks.dialogues import repetitions
from kaiju_jax.tasks.dialogues import rows as rows_lib

BOS = 0
FORMAT = chat.format_of(tokenizer_lib.Bytes())


def documents(row):
  """Yields tokens and weights of each document, its first token aside."""
  for number in range(row.source.max() + 1):
    own = row.source == number
    assert row.tokens[own][0] == BOS
    yield row.tokens[own][1:], row.weight[own][1:]


@pytest.mark.parametrize('longest', [0, 160])
def test_what_is_asked_stood_behind_the_same_tokens_before(longest):
  rng = np.random.default_rng(longest)
  row = repetitions.row(rng, np.arange(4, 256), BOS, 1024, longest)
  packing.stack([row])  # Refuses ranges outside of a row.
  sizes = []
  for tokens, weights in documents(row):
    weighted = np.flatnonzero(weights)
    if not len(weighted):
      continue  # Cut off in its first run.
    size = weighted[0] - 1  # One token into the second time.
    assert np.array_equal(weighted, np.arange(size + 1, len(tokens)))
    assert np.array_equal(tokens[weighted], tokens[weighted - size])
    sizes.append(size)
  assert min(sizes) >= 3 and (max(sizes) > 8) == bool(longest)
  assert row.tokens[row.source >= 0].max() < 256


def test_a_run_begins_with_repetitions_and_ends_with_dialogues():
  rows = rows_lib.Rows(FORMAT, 400)

  def is_repeated(row):
    return chat.SOH not in FORMAT.tokenizer.decode(row.tokens)

  found = np.array([is_repeated(rows[index]) for index in range(0, 400, 4)])
  assert found[:10].all()
  assert 0 < found[-40:].mean() < 0.3
  assert not any(is_repeated(rows.unseen()[index]) for index in range(5))
